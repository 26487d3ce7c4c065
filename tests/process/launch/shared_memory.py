"""The names in /dev/shm, for tests that look at them or start programs that make some, as MPI does.

Each such test calls own_shared_memory() first, and may then run beside the others."""

import ctypes
import fcntl
import os
import tempfile

CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_REC, MS_SLAVE = 0x4000, 0x80000
FOLDER = "/dev/shm"
_held = []


def shared_memory():
    """Names of shared memory, without the files that other tests keep there (temporary_directory.h)."""
    names = os.listdir(FOLDER) if os.path.isdir(FOLDER) else []
    return sorted(name for name in names if not name.startswith("lockstep-test-"))


def own_shared_memory():
    """Mounts an empty /dev/shm that only this process and its descendants see. Where that is not permitted, waits until
    no other test that calls this runs."""
    if not os.path.isdir(FOLDER):
        return
    try:
        _mount()
    except OSError as error:
        path = os.path.join(tempfile.gettempdir(), f"lockstep-test-shared-memory-{os.geteuid()}.lock")
        print(f"{FOLDER} is shared with other tests ({error}); waiting for {path}", flush=True)
        _held.append(open(os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600), "w", encoding="ascii"))
        fcntl.flock(_held[0], fcntl.LOCK_EX)


def _mount():
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        _call("unshare", CLONE_NEWNS)
    else:
        _call("unshare", CLONE_NEWNS | CLONE_NEWUSER)
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)
    # What others mount, as network namespaces, still arrives here; nothing from here arrives there.
    _call("mount", None, b"/", None, ctypes.c_ulong(MS_REC | MS_SLAVE), None)
    _call("mount", b"tmpfs", FOLDER.encode(), b"tmpfs", ctypes.c_ulong(0), b"mode=1777")


def _call(name, *arguments):
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")
