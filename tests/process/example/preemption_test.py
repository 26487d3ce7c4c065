"""fashion_mnist is told to stop and goes on later: preemption_test.py <lockstep> <fashion_mnist>

LOCKSTEP_TEST_KILLS says how many jobs are stopped at random moments (default 2), LOCKSTEP_TEST_SEED at which."""

import json
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
from processes import Tree, wait_for  # noqa: E402

LOCKSTEP = ""
PROGRAM = ""
STEPS = 10  # of an epoch of write_data()
EPOCHS = 25  # long enough to be told to stop
STOPS = int(os.environ.get("LOCKSTEP_TEST_KILLS", "2"))
SEED = int(os.environ.get("LOCKSTEP_TEST_SEED", "0")) or random.randrange(1 << 30)


STOPPED = 75  # the launcher's exit code


class PreemptionTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = folder_with_data(cls.addClassCleanup)
        cls.whole = {}

    def start(self, out, epochs, *options, ranks=2):
        launcher = [LOCKSTEP, "run", "--nproc-per-node", str(ranks)] if ranks else []
        return Tree([*launcher, PROGRAM, "--lockstep", "--shards", "4", "--model", "cnn", "--batch-size", "24",
                     "--epochs", str(epochs), "--data", str(self.folder / "data"), "--out", str(self.folder / out),
                     "--resume", *map(str, options)], {"HOME": str(self.folder)})

    def digest_of_whole_run(self, epochs):
        if epochs not in self.whole:
            with self.start(f"whole{epochs}", epochs) as tree:
                self.whole[epochs] = self.digest(*tree.finish(120))
        return self.whole[epochs]

    def digest(self, code, output, error):
        self.assertEqual(code, 0, output + error)
        return re.search("SHA-256 of the run: ([0-9a-f]{64})\n", output)[1]

    def metrics(self, out):
        """The lines of epochs in metrics.jsonl so far, the last line perhaps incomplete."""
        try:
            lines = [json.loads(line) for line in (self.folder / out / "metrics.jsonl").read_text().splitlines()]
            return [line for line in lines if "kind" not in line]
        except (OSError, json.JSONDecodeError):
            return []

    def assert_saved(self, tree, out, expected=0):
        """The step after which the job ended by itself."""
        code, output, error = tree.finish(60)
        self.assertEqual(code, expected, output + error)
        self.assertEqual(tree.wait_until_gone(5), [])
        self.assertNotIn("SHA-256", output)
        step = int(re.search(r"stopped after step (\d+); the same command continues it: ", output)[1])
        self.assertTrue((self.folder / out / f"step-{step:010d}").exists())
        return step

    def resume(self, out, epochs, step, **more):
        with self.start(out, epochs, **more) as tree:
            code, output, error = tree.finish(120)
            self.assertIn(f"resumed after step {step}\n", output, error)
            self.assertEqual(self.digest(code, output, error), self.digest_of_whole_run(epochs))
        # Each epoch is there once, whoever finished it.
        self.assertEqual([line["epoch"] for line in self.metrics(out)], list(range(epochs)))

    # fault: 50
    def test_a_job_that_is_told_to_stop_saves_and_goes_on_with_the_same_bits(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            out = f"stopped{number}"
            with self.subTest(number=number):
                with self.start(out, EPOCHS) as tree:
                    self.assertTrue(wait_for(lambda: len(self.metrics(out)) >= 2, 60))
                    os.kill(tree.pid, number)
                    step = self.assert_saved(tree, out, STOPPED)
                    self.assertGreaterEqual(step, 2 * STEPS)
                self.resume(out, EPOCHS, step, ranks=4 if number == signal.SIGINT else 2)

    def test_so_does_one_rank_that_is_told_and_a_program_without_a_launcher(self):
        with self.start("alone", EPOCHS, ranks=0) as tree:
            self.assertTrue(wait_for(lambda: self.metrics("alone"), 60))
            os.kill(tree.pid, signal.SIGTERM)
            step = self.assert_saved(tree, "alone")
        self.resume("alone", EPOCHS, step)
        with self.start("one", EPOCHS) as tree:
            self.assertTrue(wait_for(lambda: self.metrics("one"), 60))
            ranks = [pid for pid in tree.survivors() if self.is_program(pid)]
            os.kill(random.choice(ranks), signal.SIGTERM)
            step = self.assert_saved(tree, "one")
        self.resume("one", EPOCHS, step)

    # fault: 50
    def test_at_any_moment_also_while_it_saves(self):
        chance = random.Random(SEED)
        print(f"seed {SEED}", flush=True)
        for turn in range(STOPS):
            out = f"random{turn}"
            with self.subTest(turn=turn):
                step = 0
                for _ in range(2):
                    with self.start(out, EPOCHS, "--checkpoint-every", 1) as tree:
                        self.assertTrue(wait_for(lambda: self.newest(out) > step, 60))
                        time.sleep(chance.uniform(0, 0.1))
                        os.kill(tree.pid, signal.SIGTERM)
                        time.sleep(chance.uniform(0, 0.02))
                        if tree.process.poll() is None:
                            os.kill(tree.pid, signal.SIGTERM)  # the batch system sends it too
                        step = self.assert_saved(tree, out, STOPPED)
                self.resume(out, EPOCHS, step)

    def newest(self, out):
        return max((int(path.name[5:]) for path in (self.folder / out).glob("step-*")), default=-1)

    def is_program(self, pid):
        try:
            return os.readlink(f"/proc/{pid}/exe") == os.path.realpath(PROGRAM)
        except OSError:
            return False


if __name__ == "__main__":
    LOCKSTEP, PROGRAM = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main(verbosity=2)
