"""Whom the launcher names when a job fails: culprit_test.py <lockstep> <group_worker> <flight_worker>"""

import os
import re
import signal
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "launch"))
from processes import Tree  # noqa: E402

LOCKSTEP = ""
GROUP_WORKER = ""
FLIGHT_WORKER = ""
TRANSPORTS = ("shared_memory", "tcp")


class CulpritTest(unittest.TestCase):
    def run_job(self, worker, *arguments, ranks=3, **environment):
        command = [LOCKSTEP, "run", "--nproc-per-node", str(ranks), "--no-prefix", worker, *map(str, arguments)]
        return Tree(command, {"OMP_NUM_THREADS": "1", **environment})

    def summary(self, error):
        """The launcher's word on who failed first: (rank, the whole line)."""
        found = re.findall(r"^lockstep: (rank (\d+) \(pid \d+\) .* after it started.*)$", error, re.M)
        self.assertEqual(len(found), 1, error)
        print(f"  {found[0][0]}", flush=True)
        return int(found[0][1]), found[0][0]

    def test_a_rank_whose_exception_its_main_catches_and_not_one_that_it_took_along(self):
        for transport in TRANSPORTS:
            for culprit, ranks in ((1, 2), (0, 3), (2, 3)):
                with self.subTest(transport, culprit=culprit), \
                        self.run_job(GROUP_WORKER, "throw", culprit, ranks=ranks, LOCKSTEP_TRANSPORT=transport) as tree:
                    code, _, error = tree.finish()
                    self.assertEqual((code, self.summary(error)[0]), (3, culprit), error)

    def test_a_rank_that_is_killed(self):
        for transport in TRANSPORTS:
            with self.subTest(transport), \
                    self.run_job(GROUP_WORKER, "all_reduce", 100_000, LOCKSTEP_TRANSPORT=transport) as tree:
                pids = dict(line.split(" running ") for line in tree.read_lines(3))
                os.kill(int(pids["1"]), signal.SIGKILL)
                code, _, error = tree.finish()
                rank, line = self.summary(error)
                self.assertEqual((code, rank), (137, 1), error)
                self.assertIn("was killed by SIGKILL (sent by a process; the kernel has killed no process "
                              "for lack of memory since the ranks were started)", line)

    def test_a_rank_that_left_without_an_error_is_told_beside_who_lost_it(self):
        with self.run_job(FLIGHT_WORKER, "early", 1) as tree:
            code, _, error = tree.finish()
            self.assertEqual(code, 3, error)
            self.assertIn(self.summary(error)[0], (0, 2))
            self.assertRegex(error, r"lockstep: rank 1, which this error names, had exited with code 0, \d+\.\d\d s "
                             r"after it started; other ranks were still training: did it call exit\(\), or return "
                             r"from main")
            self.assertNotIn("has died", error)

    def test_a_rank_that_did_not_come_is_told_beside_who_waited_for_it(self):
        with self.run_job(FLIGHT_WORKER, "away", 1, TEST_CALL_MS="300") as tree:
            code, _, error = tree.finish()
            self.assertEqual(code, 3, error)
            self.assertIn(self.summary(error)[0], (0, 2))
            self.assertIn("lockstep: rank 1, which this error names, was still running\n", error)


if __name__ == "__main__":
    LOCKSTEP, GROUP_WORKER, FLIGHT_WORKER = sys.argv.pop(1), sys.argv.pop(1), sys.argv.pop(1)
    unittest.main(verbosity=2)
