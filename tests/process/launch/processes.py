"""Helpers for tests of real process trees: start them, read what they print, find what they leave behind."""

import os
import re
import signal
import subprocess
import tempfile
import time
import uuid

MARK = "LAUNCH_TEST_MARK"
# Where launchers keep what failed jobs recorded.
STATE = tempfile.TemporaryDirectory()

# A shell ignores them for what it starts in its background, and the launcher would leave them ignored.
for _number, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, _handler)


def process_state(pid):
    """("S", parent's pid) of a process, as ps shows it; None if there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            state, parent = re.match(r"\d+ \(.*\) (\S) (\d+)", file.read()).groups()
            return state, int(parent)
    except (OSError, AttributeError):
        return None


def wait_for(condition, timeout=10):
    """What the condition came to within the time: once it is true, it is not asked again."""
    end = time.monotonic() + timeout
    while not (value := condition()) and time.monotonic() < end:
        time.sleep(0.01)
    return value


def rank_process(launcher, rank):
    """The pid of a rank, from its first instruction on; None if it is not there, or just executes another program."""
    try:
        with open(f"/proc/{launcher}/task/{launcher}/children", encoding="ascii") as file:
            children = [int(pid) for pid in file.read().split()]
    except OSError:
        return None
    for pid in children:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if f"RANK={rank}".encode() in file.read().split(b"\0"):
                    return pid
        except OSError:
            pass
    return None


class PausedReader:
    """A pipe that is full, and that nobody reads: `writer` is for a process to start."""

    def __init__(self):
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.writer, False)
        try:
            while True:
                os.write(self.writer, b"x" * 512)
        except BlockingIOError:
            os.set_blocking(self.writer, True)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        os.close(self.reader)
        os.close(self.writer)


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


class Tree:
    """A started command, whose descendants can be found by a mark in their environment."""

    def __init__(self, command, environment=None, **options):
        self.mark = uuid.uuid4().hex
        options.setdefault("stdin", subprocess.DEVNULL)
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        merged = {**os.environ, "XDG_STATE_HOME": STATE.name, **(environment or {}), MARK: self.mark}
        # The thread sanitizer would let every process linger for a second before it ends.
        merged["TSAN_OPTIONS"] = os.environ.get("TSAN_OPTIONS", "") + " atexit_sleep_ms=0"
        for name in ("OMP_NUM_THREADS", "NO_COLOR", "LOCKSTEP_LOG"):
            if name not in (environment or {}):
                merged.pop(name, None)
        self.process = subprocess.Popen(command, env=merged, **options)

    @property
    def pid(self):
        return self.process.pid

    def finish(self, timeout=30):
        """Waits for the end; returns (exit code, standard output, standard error) as text."""
        output, error = self.process.communicate(timeout=timeout)
        return self.process.returncode, (output or b"").decode(), (error or b"").decode()

    def read_lines(self, count):
        """The next lines of standard output, as soon as there are that many."""
        return [self.process.stdout.readline().decode().rstrip("\n") for _ in range(count)]

    def survivors(self):
        """Processes that carry the mark, except the started one; zombies have no environment and do not count."""
        found = []
        for name in os.listdir("/proc"):
            if not name.isdigit() or int(name) == self.pid:
                continue
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    if self.mark.encode() in file.read():
                        found.append(int(name))
            except OSError:
                pass
        return found

    def wait_until_gone(self, timeout):
        """What is left after at most `timeout` seconds."""
        wait_for(lambda: not self.survivors(), timeout)
        return self.survivors()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        for pid in self.survivors() + ([self.pid] if self.process.poll() is None else []):
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                pass
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream:
                stream.close()
