"""`lockstep ps` and `lockstep top`: jobs_test.py <lockstep> [<flight_worker>]"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest

from processes import Tree, wait_for

LOCKSTEP = ""
WORKER = ""


def ask(*command):
    done = subprocess.run([LOCKSTEP, *command], capture_output=True, text=True, timeout=30, check=True)
    return done.stdout


def jobs_of(pid):
    """Those that the launcher with this pid has started: other tests start jobs, too."""
    return [job for job in json.loads(ask("ps", "--json")) if job["launcher_pid"] == pid]


class ProgramTest(unittest.TestCase):
    """Programs that know nothing of Lockstep."""

    def test_a_job_is_there_while_it_runs(self):
        script = "sleep 1000 & echo ready; wait"  # a child with the same variables is not a rank
        command = [LOCKSTEP, "run", "--nproc-per-node", "2", "--max-restarts", "1", "sh", "-c", script]
        with Tree(command) as tree:
            tree.read_lines(2)
            job = jobs_of(tree.pid)[0]
            self.assertEqual((job["world_size"], [rank["rank"] for rank in job["ranks"]]), (2, [0, 1]))
            for rank in job["ranks"]:
                self.assertTrue(rank["program"].startswith("sh -c sleep 1000"), rank)
                self.assertGreater(rank["resident_bytes"], 0)
                self.assertIn(rank["state"], "RSD")
                self.assertEqual((rank["doing"], rank["operations"], rank["attempt"]), ("", 0, 0))
            self.assertRegex(ask("ps"), rf"{job['job']} +{tree.pid} +2 +0 ")
            self.assertRegex(ask("ps", "--long"), rf"  rank 1 +{job['ranks'][1]['pid']} ")
            os.kill(tree.pid, signal.SIGTERM)
            tree.finish()
            self.assertEqual(jobs_of(tree.pid), [])

    def test_what_claims_to_be_a_recording_is_not_believed(self):
        with tempfile.TemporaryFile() as file:
            file.write(os.urandom(1 << 16))
            file.flush()
            environment = {"LOCKSTEP_JOB_ID": "x\x1b[31m", "RANK": "7", "LOCKSTEP_FLIGHT_FD": str(file.fileno())}
            with Tree(["sleep", "1000"], environment, pass_fds=[file.fileno()]) as tree:
                self.assertTrue(wait_for(lambda: tree.pid in [rank["pid"] for job in json.loads(ask("ps", "--json"))
                                                              for rank in job["ranks"]]))
                for job in json.loads(ask("ps", "--json")):
                    for rank in job["ranks"]:
                        if rank["pid"] == tree.pid:
                            self.assertEqual((rank["doing"], rank["operations"]), ("", 0))
                self.assertNotIn("\x1b", ask("ps", "-l"))

    def test_top_once_prints_one_table(self):
        with Tree([LOCKSTEP, "run", "sh", "-c", "echo ready; while :; do :; done"]) as tree:
            tree.read_lines(1)
            lines = ask("top", "--once", "--interval", "0.5").splitlines()
            line = next(line for line in lines if f" {tree.pid} " in line)
            self.assertGreater(int(line.split()[6]), 0, line)  # of the processor


class RecordedTest(unittest.TestCase):
    def start(self, *scenario):
        if not WORKER:
            self.skipTest("built without libtorch")
        tree = Tree([LOCKSTEP, "run", "--nproc-per-node", "3", "--no-prefix", WORKER, *scenario],
                    {"OMP_NUM_THREADS": "1"})
        self.addCleanup(tree.__exit__)
        tree.read_lines(3)
        return tree

    def test_where_each_rank_is(self):
        tree = self.start("away", "1")
        self.assertTrue(wait_for(lambda: [rank["operations"] for rank in jobs_of(tree.pid)[0]["ranks"]] == [4, 3, 4]))
        ranks = jobs_of(tree.pid)[0]["ranks"]
        self.assertRegex(ranks[0]["doing"], "^in barrier #4")
        self.assertRegex(ranks[1]["doing"], "^after barrier #3")
        self.assertRegex(ask("ps"), r"rank 1 is after barrier #3")

    def test_rates_of_a_job_that_runs(self):
        tree = self.start("loop", "10")
        self.assertTrue(wait_for(lambda: jobs_of(tree.pid)[0]["ranks"][0]["operations_per_second"] > 0))
        self.assertRegex(ask("top", "--once", "--interval", "0.2"), re.compile(rf" {tree.pid} .* calls/s", re.M))


if __name__ == "__main__":
    LOCKSTEP = sys.argv[1]
    WORKER = sys.argv[2] if len(sys.argv) > 2 else ""
    unittest.main(argv=sys.argv[:1])
