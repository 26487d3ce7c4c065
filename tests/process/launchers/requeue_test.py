"""The template for sbatch on two nodes of Slurm: requeue_test.py <lockstep> <fashion_mnist>

A training that is stopped or killed is requeued, resumes, and ends with the same bits as one that is left alone.
"""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
for folder in ("links", "launch", "example"):
    sys.path.insert(0, str(HERE.parent / folder))
import links_test  # noqa: E402
import slurm  # noqa: E402
from fashion_mnist_test import folder_with_data  # noqa: E402
from processes import wait_for  # noqa: E402

SKIPPED = 77
LOCKSTEP = ""
PROGRAM = ""
TEMPLATE = HERE.parent.parent.parent / "share" / "lockstep" / "slurm.sbatch"
EPOCHS = 25
OF_LAUNCHERS = re.compile(r"^(LOCKSTEP|SLURM|SBATCH)_|^(RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT|MAX_RE\w+)$")


class Requeue(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = folder_with_data(cls.addClassCleanup)
        cls.cluster = cls.enterClassContext(slurm.Cluster(str(cls.folder)))
        cls.environment = {name: value for name, value in os.environ.items() if not OF_LAUNCHERS.search(name)}
        cls.environment.update(HOME=str(cls.folder), LAUNCHER=LOCKSTEP, RANKS_PER_NODE="2", OMP_NUM_THREADS="1")
        cls.digest = cls.digest_of_a_whole_run()

    @classmethod
    def slurm(cls, *command):
        return subprocess.run(cls.cluster.command(*command), env=cls.environment, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=120)

    @classmethod
    def training(cls, out):
        return [PROGRAM, "--lockstep", "--shards", "4", "--model", "cnn", "--batch-size", "24", "--epochs", str(EPOCHS),
                "--data", str(cls.folder / "data"), "--out", str(cls.folder / out), "--resume"]

    @classmethod
    def digest_of_a_whole_run(cls):
        done = cls.slurm("srun", "-N1", "-n1", LOCKSTEP, "run", "--nproc-per-node", "2", "--no-prefix",
                         *cls.training("whole"))
        return re.search("SHA-256 of the run: ([0-9a-f]{64})", done.stdout)[1]

    def submit(self, out):
        self.log = self.folder / f"{out}.log"
        done = self.slurm("sbatch", "--parsable", "--time=5", "--output", str(self.log), str(TEMPLATE),
                          *self.training(out))
        self.assertEqual(done.returncode, 0, done.stderr)
        job = done.stdout.strip()
        self.addCleanup(self.slurm, "scancel", job)
        self.assertTrue(wait_for(lambda: self.epochs(out) >= 2, 60), self.said())
        return job

    def epochs(self, out):
        try:
            lines = [json.loads(line) for line in (self.folder / out / "metrics.jsonl").read_text().splitlines()]
            return len([line for line in lines if "kind" not in line])
        except (OSError, json.JSONDecodeError):
            return 0

    def said(self):
        return self.log.read_text() if self.log.exists() else ""

    def expect_resumed(self, job):
        self.assertTrue(wait_for(lambda: "SHA-256 of the run" in self.said(), 150), self.said())
        self.assertRegex(self.said(), r"resumed after step [1-9]\d*\n")
        self.assertEqual(re.findall("SHA-256 of the run: ([0-9a-f]{64})", self.said()), [self.digest])
        state = self.slurm("scontrol", "show", "job", "-o", job).stdout
        self.assertRegex(state, r" Restarts=1 ")
        ended = wait_for(lambda: "JobState=COMPLETED" in self.slurm("scontrol", "show", "job", "-o", job).stdout, 30)
        self.assertTrue(ended, self.said())

    # What --signal=B:USR1@120 does two minutes before the end.
    # feature: J-08
    def test_the_signal_before_the_end_of_its_time_saves_and_requeues(self):
        job = self.submit("signalled")
        self.slurm("scancel", "--batch", "--signal=USR1", job)
        self.assertTrue(wait_for(lambda: "requeued" in self.said(), 60), self.said())
        self.assertRegex(self.said(), r"stopped after step \d+; the same command continues it")
        self.expect_resumed(job)

    def test_a_launcher_that_is_killed_is_requeued(self):
        job = self.submit("killed")
        os.kill(self.first_agent(), signal.SIGKILL)
        self.expect_resumed(job)

    def test_preemption_requeues_and_goes_on(self):
        job = self.submit("preempted")
        self.slurm("scontrol", "requeue", job)
        self.expect_resumed(job)

    def test_a_job_that_somebody_cancels_saves_and_stays_away(self):
        job = self.submit("cancelled")
        self.slurm("scancel", job)

        def state():
            return self.slurm("scontrol", "show", "job", "-o", job).stdout

        self.assertTrue(wait_for(lambda: "JobState=CANCELLED" in state(), 30), self.said())
        self.assertTrue(wait_for(lambda: "stopped after step" in self.said(), 30), self.said())
        self.assertTrue(wait_for(lambda: not self.agents(), 30), self.said())
        self.assertRegex(state(), r"JobState=CANCELLED .* Restarts=0 ")

    def first_agent(self):
        """The launcher on the first node, not its helpers."""
        return min(self.agents())

    def agents(self):
        found = []
        namespace = self.cluster.namespaces.names[0]
        for pid in subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True).stdout.split():
            try:
                words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[:2] == [LOCKSTEP.encode(), b"run"]:
                found.append(int(pid))
        return found


if __name__ == "__main__":
    LOCKSTEP, PROGRAM = sys.argv.pop(1), sys.argv.pop(1)
    REASON = links_test.why_not() or slurm.why_not()
    if REASON:
        print(f"skipped: {REASON}")
        sys.exit(SKIPPED)
    unittest.main(verbosity=2)
