"""A program that other launchers start forms its world without a flag.

launchers_test.py <rendezvous_worker> <hello_all_reduce or ""> <lockstep> OpenMpi|Mpich|Torchrun|Slurm

What is not installed here is skipped.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

for folder in ("links", "group", "launch"):
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", folder))
import links_test  # noqa: E402
import slurm  # noqa: E402
from jobs import free_port  # noqa: E402
from shared_memory import own_shared_memory  # noqa: E402

SKIPPED = 77
PROGRAM = []
HELLO = ""
LOCKSTEP = ""
ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", ".."))
TORCHRUN = os.path.join(ROOT, ".venv", "bin", "torchrun")
OF_LAUNCHERS = re.compile(r"^(LOCKSTEP|SLURM|OMPI|PMIX?|MPI|FLUX|TORCHELASTIC|PET)_|"
                          r"^(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT)$")


class Launched(unittest.TestCase):
    """Each test has a home of its own, and nothing of a launcher in its environment."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.environment = {name: value for name, value in os.environ.items() if not OF_LAUNCHERS.search(name)}
        self.environment.update(HOME=self.folder, OMP_NUM_THREADS="1")

    def start(self, *command, **environment):
        return subprocess.Popen(command, env={**self.environment, **environment}, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def finish(self, process):
        output, error = process.communicate(timeout=60)
        self.output = output
        self.said = output + error + self.kept()
        self.code = process.returncode

    def kept(self):
        """What ranks have written elsewhere."""
        return ""

    def launch(self, *command, **environment):
        self.finish(self.start(*command, **environment))

    def worlds(self):
        """(rank, world size) of all ranks that came to be."""
        return sorted((int(rank), int(size)) for rank, size in
                      re.findall(r"^(?:joined as )?rank (\d+) of (\d+)\b", self.output, re.MULTILINE))

    def expect_world(self, size):
        self.assertEqual(self.worlds(), [(rank, size) for rank in range(size)], self.said)
        self.assertEqual(self.code, 0, self.said)

    def expect_said_once(self, words):
        self.assertEqual(len(re.findall(words, self.said)), 1, self.said)

    def expect_refused(self, *words):
        self.assertEqual(self.worlds(), [], self.said)
        self.assertNotEqual(self.code, 0)
        for each in words:
            self.assertRegex(self.said, each)


class Mpi(Launched):
    """What holds for every mpirun."""

    def test_a_world_of_four(self):
        self.launch(*self.mpirun(4), *PROGRAM)
        self.expect_world(4)
        self.expect_said_once(rf"rank 0 of 4, from {self.NAME} \(.*\); the store is at 127\.0\.0\.1:2\d{{4}}")

    def test_copies_of_the_launcher_on_one_host_are_refused(self):
        self.launch(*self.mpirun(2), LOCKSTEP, "run", *PROGRAM)
        self.expect_refused(f"{self.NAME} .* has started 2 copies of `lockstep run` on 1 host,", "--standalone")

    def test_one_copy_of_the_launcher_is_a_job_of_its_own(self):
        self.launch(*self.mpirun(1), LOCKSTEP, "run", "--nproc-per-node", "2", "--no-prefix", *PROGRAM)
        self.expect_world(2)

    # feature: B-06
    def test_two_jobs_at_a_time_stay_apart(self):
        jobs = [self.start(*self.mpirun(2), *PROGRAM) for _ in range(2)]
        for job in jobs:
            self.finish(job)
            self.expect_world(2)

    def test_a_user_without_a_home(self):
        self.launch(*self.mpirun(2), *PROGRAM, HOME="/nonexistent", XDG_RUNTIME_DIR=self.folder)
        self.expect_world(2)
        token = os.path.join(self.folder, f"lockstep-{os.geteuid()}", "token")
        self.assertEqual(os.stat(token).st_mode & 0o777, 0o600)

    def test_one_rank_is_a_world_of_one(self):
        self.launch(*self.mpirun(1), *PROGRAM)
        self.expect_world(1)

    def test_worlds_of_one_where_that_is_meant(self):
        self.launch(*self.mpirun(2), *PROGRAM, LOCKSTEP_LAUNCHER="none")
        self.assertEqual(self.worlds(), [(0, 1), (0, 1)], self.said)

    def test_what_is_left_over_from_elsewhere_makes_no_worlds_of_one(self):
        self.launch(*self.mpirun(2), *PROGRAM, RANK="0", WORLD_SIZE="1")
        self.expect_refused("according to RANK and WORLD_SIZE, this process is a world of one",
                            rf"{self.NAME} \(.*\) says rank . of 2", "LOCKSTEP_LAUNCHER=none")

    def test_mistyped_variables_are_warned_of_once_and_values_refused(self):
        self.launch(*self.mpirun(2), *PROGRAM, LOCKSTEP_IFNAM="eth0")
        self.expect_world(2)
        self.expect_said_once("LOCKSTEP_IFNAM is set.*did you mean LOCKSTEP_IFNAME")
        self.launch(*self.mpirun(2), *PROGRAM, LOCKSTEP_LOG="verbose")
        self.expect_refused("LOCKSTEP_LOG is 'verbose'; it can be debug, info, warning")

    def test_a_program_with_torch(self):
        if not HELLO:
            self.skipTest("this build has no torch")
        self.launch(*self.mpirun(2), HELLO)
        self.expect_world(2)
        self.assertIn("sees the sum 3 over shared memory", self.said)


class OpenMpi(Mpi):
    NAME = "Open MPI"

    def mpirun(self, ranks):
        # Open MPI's mpirun fails where another one makes or removes the folder that all of a user's share.
        sessions = tempfile.mkdtemp(dir=self.folder)
        return ["mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "orte_tmpdir_base", sessions, "-n",
                str(ranks)]

    def test_a_world_over_mpi_takes_rank_and_address_from_mpi(self):
        need_backend_mpi(self)
        self.launch(*self.mpirun(3), HELLO, LOCKSTEP_BACKEND="mpi", HOME="/nonexistent")
        self.expect_world(3)
        self.assertIn("sees the sum 6 over mpi", self.said)
        self.expect_said_once("rank 0 of 3, from MPI; the store is at 127.0.0.1:")


class Mpich(Mpi):
    NAME = "MPICH"

    # mpiexec.hydra often loses what a process wrote to its standard error just before it failed: each has a file.
    def mpirun(self, ranks):
        return ["mpiexec.hydra", "-n", str(ranks), "sh", "-c", 'exec "$@" 2>>"$0"', os.path.join(self.folder, "errors")]

    # It also dies of SIGPIPE now and then, where ranks end before it has told them all (20 of 120 runs of `true` beside
    # other load): that is no run of ours.
    def launch(self, *command, **environment):
        super().launch(*command, **environment)
        while self.code == -signal.SIGPIPE:
            super().launch(*command, **environment)

    def kept(self):
        path = os.path.join(self.folder, "errors")
        if not os.path.exists(path):
            return ""
        with open(path, encoding="utf-8") as file:
            text = file.read()
        os.remove(path)
        return text

    def test_another_mpi_than_the_one_that_started_the_ranks_is_refused(self):
        need_backend_mpi(self)
        self.launch(*self.mpirun(2), HELLO, LOCKSTEP_BACKEND="mpi")
        if self.code == 0:
            self.expect_world(2)  # the build's MPI is MPICH
        else:
            self.expect_refused("MPI says rank 0 of 1, but the launcher has started 2")


class Torchrun(Launched):
    def test_a_world_of_two(self):
        # Its own store has this port, and Lockstep's the next one.
        self.launch(TORCHRUN, "--nnodes", "1", "--nproc-per-node", "2", "--rdzv-backend", "c10d",
                    "--rdzv-endpoint", f"127.0.0.1:{free_port(2)}", "--no-python", *PROGRAM)
        self.expect_world(2)


class Slurm(Launched):
    """Two nodes in namespaces of their own; one cluster for all tests, since it takes a second or two to come up."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.cluster = cls.enterClassContext(slurm.Cluster(folder.name))

    def slurm(self, *command, **environment):
        self.launch(*self.cluster.command(*command), **environment)

    def test_a_step_on_two_nodes(self):
        self.slurm("srun", "-N2", "--ntasks-per-node=2", *PROGRAM)
        self.expect_world(4)
        self.expect_said_once(r"rank 0 of 4, from Slurm \(SLURM_PROCID, SLURM_STEP_NUM_TASKS\); "
                              r"the store is at n1:2\d{4}")
        self.assertEqual(sorted(re.findall(r"local rank (\d) of (\d)", self.output)),
                         [("0", "2"), ("0", "2"), ("1", "2"), ("1", "2")])

    # feature: J-08
    def test_an_agent_on_each_node_needs_no_flag(self):
        self.slurm("srun", "-N2", "--ntasks-per-node=1", LOCKSTEP, "run", "--nproc-per-node", "2", "--no-prefix",
                   *PROGRAM)
        self.expect_world(4)
        self.expect_said_once(r"Slurm \(SLURM_PROCID, SLURM_STEP_NUM_TASKS\) has started launchers on 2 hosts, "
                              r"which meet at n1:2\d{4}")

    def test_several_agents_on_a_node_are_refused(self):
        self.slurm("srun", "-N2", "-n4", LOCKSTEP, "run", *PROGRAM)
        self.expect_refused("has started 4 copies of `lockstep run` on 2 hosts", "srun --ntasks-per-node=1")
        self.assertEqual(self.code, 2)

    def test_an_agent_by_mpirun_on_each_node(self):
        if shutil.which("mpirun") is None:
            self.skipTest("mpirun is not installed")
        self.slurm("salloc", "-N2", "--ntasks-per-node=2", "mpirun", "--allow-run-as-root", "--map-by", "ppr:1:node",
                   LOCKSTEP, "run", "--nproc-per-node", "2", "--no-prefix", *PROGRAM)
        self.expect_world(4)
        self.expect_said_once("Open MPI .* has started launchers on 2 hosts, which meet at n1:")

    def test_an_agent_by_mpiexec_on_each_node(self):
        if shutil.which("mpiexec.hydra") is None:
            self.skipTest("mpiexec.hydra is not installed")
        self.slurm("salloc", "-N2", "--ntasks-per-node=1", "mpiexec.hydra", "-ppn", "1", LOCKSTEP, "run",
                   "--nproc-per-node", "2", "--no-prefix", *PROGRAM)
        self.expect_world(4)
        self.expect_said_once("MPICH .* has started launchers on 2 hosts, which meet at n1:")

    def test_a_rank_that_fails_on_one_node_ends_all(self):
        self.slurm("srun", "-N2", "--ntasks-per-node=1", LOCKSTEP, "run", "--nproc-per-node", "2", "sh", "-c",
                   "[ $RANK = 3 ] && exit 9; sleep 1000")
        self.assertEqual(self.code, 9, self.said)
        self.assertRegex(self.said, r"rank 3 \(host .*, pid \d+\) exited with code 9")

    def test_a_step_on_one_node(self):
        self.slurm("srun", "-N1", "-n2", *PROGRAM)
        self.expect_world(2)
        self.assertIn("the store is at 127.0.0.1:", self.said)

    def test_a_step_with_slurms_own_pmi(self):
        self.slurm("srun", "--mpi=pmi2", "-N2", "-n2", *PROGRAM)
        self.expect_world(2)

    def test_two_steps_of_a_job_at_a_time(self):
        self.slurm("salloc", "-N2", "-n4", "sh", "-c",
                   'srun -N1 -n2 --exact "$0" "$@" & srun -N1 -n2 --exact "$0" "$@" & wait', *PROGRAM)
        self.assertEqual(self.worlds(), [(0, 2), (0, 2), (1, 2), (1, 2)], self.said)

    def test_the_script_of_sbatch_is_no_step(self):
        script = os.path.join(self.folder, "job.sh")
        program = " ".join(PROGRAM)
        with open(script, "w", encoding="ascii") as file:
            file.write(f"#!/bin/sh\n{program}\nsrun {program}\n")
        output = os.path.join(self.folder, "output")
        self.slurm("sbatch", "--wait", "-N2", "-n2", "-o", output, script)
        with open(output, encoding="utf-8") as file:
            self.output = file.read()
        self.assertEqual(self.worlds(), [(0, 1), (0, 2), (1, 2)], self.output)
        self.assertIn("alone, in a Slurm job with 2 tasks: only srun starts a program in each of them", self.output)

    def test_the_shell_of_salloc_is_no_step(self):
        self.slurm("salloc", "-N2", "-n2", *PROGRAM)
        self.expect_world(1)

    def test_mpirun_in_an_allocation(self):
        if shutil.which("mpirun") is None:
            self.skipTest("mpirun is not installed")
        self.slurm("salloc", "-N2", "--ntasks-per-node=2", "mpirun", "--allow-run-as-root", *PROGRAM)
        self.expect_world(4)
        self.expect_said_once("rank 0 of 4, from Open MPI .*; the store is at n1:")

    def test_mpi_carries_what_ranks_on_two_hosts_need(self):
        need_backend_mpi(self)
        home = "/nonexistent"  # and so no token that the hosts could share
        self.slurm("salloc", "-N2", "-n2", "mpirun", "--allow-run-as-root", HELLO, LOCKSTEP_BACKEND="mpi", HOME=home)
        self.expect_world(2)
        self.assertIn("sees the sum 3 over mpi", self.said)
        self.expect_said_once("rank 0 of 2, from MPI; the store is at 10.213.7.1:")

    def test_mpiexec_in_an_allocation(self):
        if shutil.which("mpiexec.hydra") is None:
            self.skipTest("mpiexec.hydra is not installed")
        self.slurm("salloc", "-N2", "--ntasks-per-node=2", "mpiexec.hydra", *PROGRAM)
        self.expect_world(4)
        self.expect_said_once("rank 0 of 4, from MPICH .*; the store is at n1:")

    def test_a_first_host_whose_own_name_is_loopback_to_itself(self):
        hosts = os.path.join(self.folder, "hosts")
        with open(hosts, "w", encoding="ascii") as file:
            file.write("127.0.0.1 localhost\n127.0.1.1 n1\n")
        script = os.path.join(self.folder, "run")
        with open(script, "w", encoding="ascii") as file:
            file.write(f"[ $SLURM_PROCID = 0 ] && mount --bind {hosts} /etc/hosts\nexec {' '.join(PROGRAM)}\n")
        self.slurm("srun", "-N2", "-n2", "unshare", "--mount", "sh", script)
        self.expect_world(2)
        self.assertIn(f"the store is at {self.cluster.namespaces.addresses[0]}:", self.said)

    def test_ranks_that_contradict_the_step(self):
        self.slurm("srun", "-N2", "-n2", *PROGRAM, RANK="0", WORLD_SIZE="1")
        self.expect_refused("according to RANK and WORLD_SIZE, this process is a world of one",
                            "Slurm .* says rank 0 of 2", "Slurm .* says rank 1 of 2")


def need_backend_mpi(test):
    answer = ""
    if HELLO:
        environment = {**test.environment, "LOCKSTEP_BACKEND": "mpi"}
        answer = subprocess.run([HELLO], env=environment, capture_output=True, text=True).stderr
    if not HELLO or "is not in this build" in answer:
        test.skipTest("this build has no backend mpi")


def why_not(suite):
    if suite == "OpenMpi":
        is_there = shutil.which("mpirun") and "Open" in subprocess.check_output(["mpirun", "--version"], text=True)
        return "" if is_there else "mpirun is not Open MPI's (Debian: openmpi-bin)"
    if suite == "Mpich":
        return "" if shutil.which("mpiexec.hydra") else "mpiexec.hydra is not installed (Debian: mpich)"
    if suite == "Torchrun":
        return "" if os.path.exists(TORCHRUN) else f"{TORCHRUN} is missing; script/bootstrap installs it"
    return links_test.why_not() or slurm.why_not()


if __name__ == "__main__":
    PROGRAM = [sys.argv.pop(1), "join"]
    HELLO = sys.argv.pop(1)
    LOCKSTEP = sys.argv.pop(1)
    own_shared_memory()
    reason = why_not(sys.argv[1])
    if reason:
        print(f"skipped: {reason}")
        sys.exit(SKIPPED)
    unittest.main(verbosity=2)
