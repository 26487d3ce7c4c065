"""Ranks that share a GPU, over NCCL: what they compute, and how they fail.

device_test.py <lockstep> <device_worker>
"""

import re
import subprocess
import sys
import unittest

SKIPPED = 77
LOCKSTEP, WORKER = "", ""


class Nccl(unittest.TestCase):
    def run_ranks(self, task, *options):
        run = subprocess.run([LOCKSTEP, "run", "-n", "2", "--no-prefix", *options, WORKER, task], text=True,
                             timeout=200, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT)
        return run.returncode, run.stdout

    # feature: L-05
    def test_random_collectives_give_what_the_host_gives(self):
        code, said = self.run_ranks("collectives")
        self.assertEqual((code, said.count(": done")), (0, 2), said)

    def test_training_gives_what_one_process_does(self):
        code, said = self.run_ranks("train")
        self.assertEqual((code, said.count(": done")), (0, 2), said)

    def expect_known_soon(self, said, ranks):
        seconds = [float(each) for each in re.findall(r"^after ([\d.e-]+) s: ", said, re.MULTILINE)]
        self.assertEqual(len(seconds), ranks, said)
        self.assertLess(max(seconds), 1, said)
        self.assertEqual(said.count("the GPU is free"), ranks, said)

    def test_a_killed_rank_is_named_within_a_second(self):
        _, said = self.run_ranks("killed", "--stop-grace", "10s")
        self.expect_known_soon(said, 1)
        self.assertRegex(said, r"after .*rank 1 ")

    def test_different_calls_are_named_within_a_second(self):
        _, said = self.run_ranks("different")
        self.expect_known_soon(said, 2)
        self.assertRegex(said, r"after .*all_reduce\(sum\).* on a device.*broadcast")


if __name__ == "__main__":
    LOCKSTEP, WORKER = sys.argv[1:3]
    if subprocess.run([WORKER, "none"], env={"RANK": "0"}, check=False, capture_output=True).returncode == SKIPPED:
        print("skipped: no CUDA device")
        sys.exit(SKIPPED)
    unittest.main(argv=sys.argv[:1], verbosity=2)
