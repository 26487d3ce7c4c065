"""kill -9 at any moment of a training under the launcher: kills_test.py <lockstep> <fashion_mnist> [Rank|Launcher]

LOCKSTEP_TEST_KILLS says how many jobs each case kills (default 8), LOCKSTEP_TEST_SEED which moments."""

import os
import pathlib
import random
import re
import signal
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "launch"))
from fashion_mnist_test import folder_with_data  # noqa: E402
from processes import Tree, percentile, rank_process, wait_for  # noqa: E402
from shared_memory import own_shared_memory, shared_memory  # noqa: E402

LOCKSTEP = ""
PROGRAM = ""
RANKS = 3
KILLS = int(os.environ.get("LOCKSTEP_TEST_KILLS", "8"))
SEED = int(os.environ.get("LOCKSTEP_TEST_SEED", "0")) or random.randrange(1 << 30)


class KillsTest(unittest.TestCase):
    def setUp(self):
        self.folder = folder_with_data(self.addCleanup)
        self.random = random.Random(SEED)
        print(f"seed {SEED}", flush=True)

    def start(self, turn, transport):
        """A job whose every file is below one folder."""
        place = self.folder / str(turn)
        for name in ("tmp", "state"):
            (place / name).mkdir(parents=True)
        command = [LOCKSTEP, "run", "--nproc-per-node", str(RANKS), PROGRAM, "--model", "cnn", "--epochs", "3",
                   "--batch-size", "24", "--data", str(self.folder / "data"), "--out", str(place / "out")]
        tree = Tree(command, {"OMP_NUM_THREADS": "1", "TMPDIR": str(place / "tmp"), "LOCKSTEP_TRANSPORT": transport,
                              "XDG_STATE_HOME": str(place / "state")})
        return tree, place

    def assert_nothing_left(self, tree, place, names):
        self.assertEqual(tree.wait_until_gone(5), [], "processes")
        self.assertEqual(os.listdir(place / "tmp"), [], "temporary files")
        self.assertEqual([name for name in shared_memory() if name not in names], [], "shared memory")
        # A checkpoint that was being written is removed when the next job writes it.
        out = place / "out"
        files = os.listdir(out) if out.exists() else []
        self.assertEqual([name for name in files if name.startswith(".") and ".writing-" not in name], [], files)

    def seconds_of_a_job(self):
        started = time.monotonic()
        tree, _ = self.start("whole", "automatic")
        with tree:
            code, _, error = tree.finish(120)
        self.assertEqual(code, 0, error)
        return time.monotonic() - started

    def moments(self):
        whole = self.seconds_of_a_job()
        print(f"a job takes {whole:.2f} s", flush=True)
        for turn in range(KILLS):
            # Some in the first milliseconds, in which a rank is hardly there.
            at = self.random.uniform(0, 0.05) if turn % 5 == 0 else self.random.uniform(0, whole)
            yield turn, at, self.random.choice(("shared_memory", "tcp"))


class Rank(KillsTest):
    # fault: 1, 2, 3
    def test_the_launcher_names_the_killed_rank_and_nothing_is_left(self):
        taken = []
        for turn, at, transport in self.moments():
            victim = self.random.randrange(RANKS)
            names = shared_memory()
            tree, place = self.start(turn, transport)
            with tree:
                pid = None
                self.assertTrue(wait_for(lambda: rank_process(tree.pid, victim) or tree.process.poll() is not None))
                time.sleep(at)
                pid = rank_process(tree.pid, victim)
                killed = time.monotonic()
                if pid is not None:
                    os.kill(pid, signal.SIGKILL)
                code, output, error = tree.finish(60)
                now = time.monotonic()
                message = f"turn {turn}, {transport}, rank {victim} (pid {pid}) after {at:.3f} s:\n{error}\n{output}"
                if code == 0:  # it had ended before
                    self.assertTrue(pid is None or "result" not in error, message)
                    self.assertNotIn("lockstep: rank", error, message)
                else:
                    named = re.findall(r"^lockstep: rank (\d+) \(pid (\d+)\) (.*) after it started", error, re.M)
                    self.assertEqual([(int(each[0]), int(each[1])) for each in named], [(victim, pid)], message)
                    self.assertIn("was killed by SIGKILL", named[0][2], message)
                    self.assertEqual(code, 128 + signal.SIGKILL, message)
                    taken.append(now - killed)
                self.assert_nothing_left(tree, place, names)
        if taken:
            print(f"{len(taken)} of {KILLS} jobs were killed; named after p50 {percentile(taken, 0.5):.3f} s, "
                  f"p99 {percentile(taken, 0.99):.3f} s, at most {max(taken):.3f} s", flush=True)


class Launcher(KillsTest):
    # fault: 9
    def test_nothing_is_left_when_the_launcher_is_killed(self):
        taken = []
        for turn, at, transport in self.moments():
            names = shared_memory()
            tree, place = self.start(turn, transport)
            with tree:
                time.sleep(at)
                tree.process.kill()
                killed = time.monotonic()
                tree.process.wait()
                self.assertTrue(wait_for(lambda: not tree.survivors(), 5), f"turn {turn}: {tree.survivors()}")
                taken.append(time.monotonic() - killed)
                self.assert_nothing_left(tree, place, names)
        print(f"{KILLS} launchers were killed; nothing left after p50 {percentile(taken, 0.5):.3f} s, "
              f"at most {max(taken):.3f} s", flush=True)


if __name__ == "__main__":
    LOCKSTEP, PROGRAM = sys.argv.pop(1), sys.argv.pop(1)
    own_shared_memory()
    unittest.main(verbosity=2)
