"""Jobs of two users on one machine, and kills in one of them: neighbours_test.py <lockstep> <kills_worker>

Needs root."""

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

from processes import Tree, rank_process, wait_for

LOCKSTEP = ""
WORKER = ""
KILLED, NEIGHBOUR = 65531, 65532  # users that exist nowhere else
RANKS = 3
KILLS = 20


def opened_by(user, owner, folders, pids):
    """What the one user can open of the other one's files and processes."""
    paths = [os.path.join(where, name) for folder in folders for where, inner, names in os.walk(folder)
             for name in [folder, *inner, *names]]
    for pid in pids:
        paths += [f"/proc/{pid}/{name}" for name in ("environ", "mem", "maps", "fd", "cwd")]
        paths += [f"/proc/{pid}/fd/{number}" for number in range(256)]
    own = [path for path in paths if os.path.lexists(path) and os.lstat(path).st_uid == owner]
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
        for path in own:
            for flags in (os.O_RDONLY, os.O_WRONLY):
                try:
                    os.close(os.open(path, flags | os.O_NONBLOCK))
                    os.write(writer, f"{path}\n".encode())
                except OSError:
                    pass
        os.write(writer, b"end")
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as text:
        opened = text.read().split("\n")
    os.waitpid(child, 0)
    return len(own), opened


def as_user(user):
    return {"user": user, "group": user, "extra_groups": []}


class Neighbour:
    """A job of a user, whose files are where users have them: a home of their own, and folders that all share."""

    def __init__(self, test, user):
        self.user = user
        self.home = tempfile.mkdtemp(prefix="lockstep-test-home-")
        test.addCleanup(subprocess.run, ["rm", "-rf", self.home], check=False)
        os.chown(self.home, user, user)
        self.tree = None
        self.test = test

    def start(self):
        environment = {"HOME": self.home, "XDG_STATE_HOME": self.home + "/state", "XDG_RUNTIME_DIR": "",
                       "LOCKSTEP_JOB_ID": "", "TEST_CALL_MS": "60000", "TEST_JOIN_MS": "60000"}
        self.log = open(os.path.join(self.home, "log"), "ab")
        self.test.addCleanup(self.log.close)
        self.tree = Tree([LOCKSTEP, "run", "--nproc-per-node", str(RANKS), "--max-restarts", "100", WORKER, "1000000"],
                         environment, stdout=self.log, stderr=self.log, cwd="/", **as_user(self.user))
        self.test.addCleanup(self.tree.__exit__)

    def text(self):
        with open(os.path.join(self.home, "log"), encoding="utf-8", errors="replace") as file:
            return file.read()

    def run(self, *command):
        return subprocess.run([*command], capture_output=True, text=True, timeout=60, check=False, cwd="/",
                              env={**os.environ, "HOME": self.home}, **as_user(self.user))

    def jobs(self):
        done = self.run(LOCKSTEP, "ps", "--json")
        self.test.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def operations(self):
        """Of each rank, by its pid."""
        return {rank["pid"]: rank["operations"] for job in self.jobs() for rank in job["ranks"]}

    def trains(self):
        """Whether all of its ranks make progress."""
        before = self.operations()
        return wait_for(lambda: len(now := self.operations()) == RANKS
                        and all(now[pid] > before.get(pid, 0) > 0 for pid in now), 1)

    def files(self):
        """In the folders that all share."""
        found = set()
        for folder in ("/dev/shm", tempfile.gettempdir(), "/run"):
            for where, inner, names in os.walk(folder):
                for name in inner + names:
                    path = os.path.join(where, name)
                    try:
                        if not path.startswith(self.home) and os.lstat(path).st_uid == self.user:
                            found.add(path)
                    except OSError:
                        pass
        return found

    def ports(self):
        with open("/proc/net/tcp", encoding="ascii") as file:
            rows = [line.split() for line in file.readlines()[1:]]
        return [int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A" and int(row[7]) == self.user]


class NeighboursTest(unittest.TestCase):
    # fault: S9
    def test_kills_in_a_job_leave_that_of_another_user_alone(self):
        killed, neighbour = Neighbour(self, KILLED), Neighbour(self, NEIGHBOUR)
        for job in (neighbour, killed):
            job.start()
            self.assertTrue(wait_for(job.trains, 60), job.text())
        pids, files, said = set(neighbour.operations()), neighbour.files(), neighbour.text()
        id_of_neighbour = neighbour.jobs()[0]["job"]
        shuffle = random.Random(35)
        for kill in range(KILLS):
            launcher = killed.tree.pid
            if kill % 5 == 4:
                os.kill(launcher, signal.SIGKILL)
                killed.tree.process.wait()
                self.assertEqual(killed.tree.wait_until_gone(5), [])
                killed.start()
            else:
                victim = wait_for(lambda: rank_process(launcher, shuffle.randrange(RANKS)), 30)
                os.kill(victim, signal.SIGKILL)
                self.assertTrue(wait_for(lambda: victim not in killed.operations(), 30), killed.text())
            self.assertTrue(wait_for(killed.trains, 60), killed.text())
            self.assertTrue(wait_for(neighbour.trains, 20), neighbour.text())
            self.assertEqual(set(neighbour.operations()), pids, "other ranks than before")

        # Nothing of it is named.
        own = {str(pid) for pid in killed.operations()}
        seen = killed.text() + killed.run(LOCKSTEP, "ps", "--long").stdout
        self.assertNotIn(id_of_neighbour, seen)
        self.assertNotIn(neighbour.home, seen)
        numbers = set(re.findall(r"pid (\d+)", seen)) | own
        self.assertFalse(numbers & {str(pid) for pid in [*pids, neighbour.tree.pid]}, seen)
        stop = killed.run(LOCKSTEP, "stop", id_of_neighbour)
        self.assertNotEqual(stop.returncode, 0, stop.stdout)

        # Nothing of it is readable.
        count, opened = opened_by(KILLED, NEIGHBOUR, ["/dev/shm", tempfile.gettempdir(), "/run", neighbour.home],
                                  [*pids, neighbour.tree.pid])
        self.assertGreater(count, 20)
        self.assertEqual(opened, ["end"])
        # Nothing of it is touched, also by who knocks at its ports, and nothing of the other is left.
        self.assertEqual((neighbour.files(), neighbour.text()), (files, said))
        ports = neighbour.ports()
        self.assertTrue(ports)
        for port in ports:
            with socket.create_connection(("127.0.0.1", port), 5) as stranger:
                stranger.sendall(os.urandom(100))
        self.assertTrue(wait_for(neighbour.trains, 20), neighbour.text())
        for job in (killed, neighbour):
            job.tree.process.terminate()
            self.assertEqual(job.tree.process.wait(30), 75, job.text())
            self.assertEqual(job.tree.wait_until_gone(5), [])
            self.assertEqual(job.files(), set())


if __name__ == "__main__":
    LOCKSTEP, WORKER = (os.path.abspath(path) for path in sys.argv[1:3])
    reason = "needs root, to run as two users" if os.geteuid() != 0 else ""
    if not reason and subprocess.run(["test", "-r", WORKER], check=False, **as_user(KILLED)).returncode != 0:
        reason = f"other users do not reach {WORKER}"
    if reason:
        print(f"skipped: {reason}")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
