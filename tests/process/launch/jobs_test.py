"""`lockstep ps`, `lockstep top` and `lockstep stop`: jobs_test.py <lockstep> [<flight_worker>]"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest

from agents import Job, listens
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


class HostsTest(unittest.TestCase):
    """Hosts with process tables of their own, as far as one kernel can have them."""

    SCRIPT = "trap 'echo saved; exit 0' INT; echo ready; sleep 1000 & wait"

    def start(self, *options):
        if os.geteuid() != 0:
            self.skipTest("needs root, for namespaces of processes")
        wrap = lambda name: ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
        job = Job(LOCKSTEP, "--nnodes", "2", "--rdzv-id", "night", *options, wrap=wrap)
        self.addCleanup(job.__exit__)
        a = job.start("a", self.SCRIPT, "--node-rank", "0")
        self.assertTrue(wait_for(lambda: listens(job.endpoint), 20), job.texts())
        job.start("b", self.SCRIPT)
        self.assertTrue(wait_for(lambda: a.output.count("ready") == 4, 30), job.texts())
        return job

    def within(self, agent, *command):
        """On the host of an agent: unshare's child is its process 1."""
        with open(f"/proc/{agent.pid}/task/{agent.pid}/children", encoding="ascii") as file:
            inside = file.read().split()[0]
        return subprocess.run(["nsenter", "-t", inside, "-p", "-m", LOCKSTEP, *command], capture_output=True, text=True,
                              timeout=30, check=False)

    def outside(self, job, *command, token=None):
        return subprocess.run([LOCKSTEP, *command, "--rdzv-endpoint", job.endpoint], capture_output=True, text=True,
                              timeout=30, check=False,
                              env={**os.environ, "LOCKSTEP_TOKEN_FILE": token or job.token})

    def assert_whole(self, done, where):
        listed, = json.loads(done.stdout)
        ranks = [(rank["rank"], rank["host"], rank["program"][:5]) for rank in listed["ranks"]]
        self.assertEqual(ranks, [(0, "a", "sh -c"), (1, "a", "sh -c"), (2, "b", "sh -c"), (3, "b", "sh -c")], where)
        self.assertEqual((listed["world_size"], listed["run_id"]), (4, "night"), where)

    def test_every_host_shows_all_of_them(self):
        job = self.start()
        for agent in job.agents:
            done = self.within(agent, "ps", "--json")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assert_whole(done, agent.name)
            self.assertRegex(self.within(agent, "ps", "--long").stdout, r"  rank 3 on b +\d+ ")
            self.assertRegex(self.within(agent, "top", "--once", "--interval", "0.2").stdout, r"  rank 0 on a +\d+ ")
        self.assert_whole(self.outside(job, "ps", "--json", "--rdzv-id", "night"), "outside")

    def test_strangers_and_other_jobs_see_nothing(self):
        job = self.start()
        for command in (["ps"], ["stop"]):
            done = self.outside(job, *command, "--rdzv-id", "night", token=job.write_token("other"))
            self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
            done = self.outside(job, *command)
            self.assertIn("there is no job with --rdzv-id default at", done.stderr)
        self.assertEqual([agent.process.poll() for agent in job.agents], [None, None])

    def test_without_the_first_host_its_own_ranks_are_shown(self):
        job = self.start()
        with open(f"/proc/{job.agents[0].pid}/task/{job.agents[0].pid}/children", encoding="ascii") as file:
            first = int(file.read().split()[0])
        os.kill(first, signal.SIGSTOP)
        done = self.within(job.agents[1], "ps", "--json")
        os.kill(first, signal.SIGCONT)
        self.assertEqual([rank["rank"] for each in json.loads(done.stdout) for rank in each["ranks"]], [2, 3])
        self.assertIn("only its ranks on this machine are shown", done.stderr)

    def test_stop_at_any_host_stops_all_of_them(self):
        for how in ("a", "b", "outside"):
            job = self.start()
            if how == "outside":
                done = self.outside(job, "stop", "--rdzv-id", "night")
            else:
                done = self.within(job.agents["ab".index(how)], "stop", "night")
            # The launcher is process 1 of its namespace: as it ends, the kernel kills all that are within.
            if how == "outside" or done.returncode != -signal.SIGKILL:
                self.assertEqual((done.returncode, done.stderr), (0, ""), how)
                self.assertRegex(done.stdout, r"job \w+ has ended with exit code 75\n")
            self.assertEqual(job.codes(), [75, 75], job.texts())
            self.assertEqual(job.agents[0].output.count("saved"), 4, job.texts())


class StopTest(unittest.TestCase):
    def start(self, script, *options, ranks=2, **more):
        tree = Tree([LOCKSTEP, "run", "--nproc-per-node", str(ranks), *options, "sh", "-c", script], **more)
        self.addCleanup(tree.__exit__)
        tree.read_lines(ranks)
        return tree, jobs_of(tree.pid)[0]["job"]

    def stop(self, *arguments):
        return subprocess.run([LOCKSTEP, "stop", *arguments], capture_output=True, text=True, timeout=60, check=False)

    def test_ranks_save_and_the_end_is_told(self):
        tree, job = self.start("trap 'echo saved; exit 0' INT; echo ready; sleep 1000 & wait")
        done = self.stop(job[:9])
        self.assertEqual((done.returncode, done.stdout), (0, f"job {job} has ended with exit code 75\n"), done.stderr)
        code, output, error = tree.finish()
        self.assertEqual((code, output.count("saved")), (75, 2), error)

    def test_a_rank_that_fails_meanwhile_is_named(self):
        tree, job = self.start("trap 'exit $((RANK * 7))' INT; echo ready; sleep 1000 & wait", "--rdzv-id", "mine")
        done = self.stop("mine")
        self.assertRegex(done.stdout, rf"job {job} has ended with exit code 7: rank 1 \(pid \d+\) exited with code 7\n")
        self.assertEqual((done.returncode, tree.finish()[0]), (0, 7))

    def test_a_launcher_that_ignores_ctrl_c_gets_another_signal(self):
        ignore = lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell does in the background
        tree, job = self.start("trap 'exit 0' TERM; echo ready; sleep 1000 & wait", preexec_fn=ignore)
        self.assertEqual(self.stop(job).returncode, 0)
        self.assertEqual(tree.finish()[0], 75)

    def test_a_job_that_does_not_end_in_time(self):
        tree, job = self.start("trap 'echo asked' INT; echo ready; while :; do sleep 1000 & wait; done", ranks=1)
        done = self.stop(job, "--timeout", "0.5")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn(f"job {job} has not ended within 0.5 s", done.stderr)
        self.assertEqual(tree.read_lines(1), ["asked"])
        done = self.stop(job)
        self.assertRegex(done.stdout, "exit code 75")
        self.assertEqual(tree.wait_until_gone(3), [])

    def test_a_launcher_that_dies_says_nothing(self):
        tree, job = self.start("trap 'kill -9 $PPID' INT; echo ready; sleep 1000 & wait", ranks=1)
        done = self.stop(job)
        self.assertEqual((done.returncode, done.stdout), (0, f"job {job} has ended; its launcher did not report how\n"))
        self.assertEqual(tree.finish()[0], -9)

    def test_a_job_that_is_not_there_or_not_one(self):
        one, job = self.start("echo ready; sleep 1000", "--rdzv-id", "same")
        other, _ = self.start("echo ready; sleep 1000", "--rdzv-id", "same")
        for name, why in (("nothing", "no job has the name nothing; there are: "),
                          ("same", "more than one job has the name same; there are: ")):
            done = self.stop(name)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn(why, done.stderr)
            self.assertIn(f"{job} (same)", done.stderr)
        self.assertEqual(self.stop().returncode, 2)
        self.assertEqual([tree.process.poll() for tree in (one, other)], [None, None])

    def test_what_has_not_started_the_ranks_gets_no_signal(self):
        with Tree(["sh", "-c", "env LOCKSTEP_JOB_ID=byhand RANK=0 sleep 1000; echo over"]) as tree:
            self.assertTrue(wait_for(lambda: jobs_of(tree.pid)))
            done = self.stop("byhand")
            self.assertEqual(done.returncode, 2)
            self.assertIn("was not started by 'lockstep run'", done.stderr)
            self.assertIsNone(tree.process.poll())


if __name__ == "__main__":
    LOCKSTEP = sys.argv[1]
    WORKER = sys.argv[2] if len(sys.argv) > 2 else ""
    unittest.main(argv=sys.argv[:1])
