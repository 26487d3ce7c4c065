"""What pages show of a training that is stopped and goes on:

resume_test.py <lockstep> <executable of snippets.py> <page>...

Each block that is marked as resuming is run by two ranks, once to its end, and once with stops in the middle of epochs.
Both have to train on the same samples in the same order: none is repeated, and none left out.
"""

import os
import subprocess
import sys
import tempfile
import unittest

from page_blocks import blocks_of

LOCKSTEP, SNIPPETS, PAGES = "", "", []
RANKS, EPOCHS, STEPS = 2, 2, 40  # as in resuming.h
SAMPLES = RANKS * STEPS * 64
STOPS = (3, 50)  # steps after which a run is told to stop; it does within 8 more: in the first epoch, in the second


class Resuming(unittest.TestCase):
    def run_once(self, name, folder, log, stop):
        done = subprocess.run([LOCKSTEP, "run", "--nproc-per-node", str(RANKS), f"./resume_{name}", log, str(stop)],
                              cwd=folder, env={**os.environ, "HOME": folder, "OMP_NUM_THREADS": "1"}, timeout=120,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual(done.returncode, 0, done.stdout)

    def samples(self, folder, log):
        """Of each rank, in their order."""
        found = []
        for rank in range(RANKS):
            with open(os.path.join(folder, f"{log}.{rank}"), encoding="utf-8") as file:
                found.append([int(line) for line in file])
        return found

    def run_with_stops(self, name, stops):
        """What ranks have trained on behind each of the runs."""
        with tempfile.TemporaryDirectory() as folder:
            os.symlink(SNIPPETS, os.path.join(folder, f"resume_{name}"))
            seen = []
            for stop in (*stops, 0):
                self.run_once(name, folder, "log", stop)
                seen.append(self.samples(folder, "log"))
            return seen

    def check(self, name):
        (whole,) = self.run_with_stops(name, ())
        per_epoch = SAMPLES // RANKS
        for epoch in range(EPOCHS):
            trained = [index for rank in whole for index in rank[epoch * per_epoch : (epoch + 1) * per_epoch]]
            self.assertEqual(sorted(trained), list(range(SAMPLES)), f"epoch {epoch}")
        self.assertNotEqual(whole[0][:per_epoch], whole[0][per_epoch:], "set_epoch() is missing")

        seen = self.run_with_stops(name, STOPS)
        for samples in seen[:-1]:
            self.assertNotEqual(len(samples[0]) % per_epoch, 0, "it has stopped between two epochs")
            self.assertLess(len(samples[0]), EPOCHS * per_epoch, "it has not stopped")
        self.assertEqual(seen[-1], whole)


def add_tests():
    for page in PAGES:
        for block in blocks_of(page, os.path.basename(page)):
            name = block.note("resumes")
            if name is not None:
                setattr(Resuming, f"test_{name}", lambda self, name=name: self.check(name))


if __name__ == "__main__":
    LOCKSTEP, SNIPPETS, *PAGES = map(os.path.abspath, sys.argv[1:])
    add_tests()
    unittest.main(argv=sys.argv[:1], verbosity=2)
