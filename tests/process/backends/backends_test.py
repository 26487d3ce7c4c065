"""Other backends with a process for each rank.

backends_test.py gloo|mpi <lockstep> <backend_rank> <group_worker> <flight_worker> <mpirun>

Ranks of mpi are started by MPI's own mpirun, all others by hand.
"""

import os
import re
import subprocess
import sys
import tempfile
import unittest

for folder in ("group", "launch"):
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", folder))
from jobs import Job, free_port  # noqa: E402
from shared_memory import own_shared_memory  # noqa: E402

BACKEND, LOCKSTEP, RANK, WORKER, FLIGHT, MPIRUN = sys.argv[1:7]
SKIPPED = 77


class Ranks:
    """The lines that each rank of a job printed, and their exit codes."""

    def __init__(self, size, program, *arguments, **environment):
        with tempfile.TemporaryDirectory() as folder:
            self.environment = {
                **os.environ, "HOME": folder, "LOCKSTEP_TOKEN_FILE": Job.token(_Folder(folder)), "OMP_NUM_THREADS": "1",
                "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
                "LOCKSTEP_BACKEND": BACKEND, **environment}
            run = self.by_mpirun if BACKEND == "mpi" else self.by_hand
            self.lines, self.codes = run(size, folder, [program, *map(str, arguments)])

    def by_hand(self, size, folder, command):
        ranks = [subprocess.Popen(command, env={**self.environment, "RANK": str(rank)}, stdout=subprocess.PIPE,
                                  text=True) for rank in range(size)]
        outputs = [rank.communicate(timeout=90)[0] for rank in ranks]
        return [output.splitlines() for output in outputs], [rank.returncode for rank in ranks]

    def by_mpirun(self, size, folder, command):
        # Each into a file of its own; the status as well, since mpirun reports one for all.
        script = ('RANK=${OMPI_COMM_WORLD_RANK:-$PMI_RANK} && export RANK && cd "$0" && "$@" > out.$RANK; '
                  'code=$?; echo $code > code.$RANK')
        # Open MPI's mpirun can deadlock when two ranks leave at once and it ends the rest, and fails where another one
        # makes or removes the folder that all of a user's share.
        options = (["--allow-run-as-root", "--oversubscribe", "--mca", "orte_allowed_exit_without_sync", "1",
                    "--mca", "orte_tmpdir_base", folder]
                   if "Open" in version_of_mpirun() else [])
        with subprocess.Popen([MPIRUN, *options, "-n", str(size), "sh", "-c", script, folder, *command],
                              env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                              start_new_session=True) as mpirun:
            try:
                mpirun.communicate(timeout=90)
            except subprocess.TimeoutExpired as expired:
                seen = processes_under(mpirun.pid)
                mpirun.kill()
                raise AssertionError(f"mpirun has not ended:\n{seen}") from expired

        def read(name):
            path = os.path.join(folder, name)
            if not os.path.exists(path):
                return ""
            with open(path, encoding="utf-8") as file:
                return file.read()

        return ([read(f"out.{rank}").splitlines() for rank in range(size)],
                [int(read(f"code.{rank}") or -1) for rank in range(size)])


class _Folder:
    """What Job.token() needs to see of a job."""

    def __init__(self, name):
        self.folder = self
        self.name = name


def processes_under(parent):
    """Of each process below: its command, state, and where each of its threads waits."""
    def read(path):
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                return file.read()
        except OSError:
            return ""

    lines, pids = [], [parent]
    for pid in pids:
        lines.append(f"{pid} {read(f'/proc/{pid}/cmdline').replace(chr(0), ' ')[:200]}")
        for thread in os.listdir(f"/proc/{pid}/task") if os.path.exists(f"/proc/{pid}") else ():
            task = f"/proc/{pid}/task/{thread}"
            state = re.search(r"State:\s+(.*)", read(f"{task}/status"))
            lines.append(f"  thread {thread}: {state and state[1]}, {read(f'{task}/wchan')}, "
                         f"{read(f'{task}/syscall').strip()}")
            pids.extend(int(child) for child in read(f"{task}/children").split())
    return "\n".join(lines)


def version_of_mpirun():
    return subprocess.run([MPIRUN, "--version"], capture_output=True, text=True).stdout


class Contract(unittest.TestCase):
    def test_every_collective_and_a_mismatch_at_the_end(self):
        for size in (1, 3):
            with self.subTest(size):
                ranks = Ranks(size, RANK, BACKEND, "contract")
                for rank, lines in enumerate(ranks.lines):
                    self.assertRegex(lines[0], r"refused \d+", ranks.lines)
                    if size == 1:
                        self.assertEqual(lines[1:], ["done"])
                        continue
                    self.assertRegex(lines[1], r"^error desync .*rank 1 \(host \S+, pid \d+\) in "
                                               r"all_reduce\(sum\) #\d+ of 0 float32")
                    self.assertIn("of 1 float32", lines[1])
                    self.assertEqual(ranks.codes[rank], 3)

    def test_a_late_rank_is_named_at_the_deadline(self):
        ranks = Ranks(3, RANK, BACKEND, "late")
        who = r"rank {} \(host \S+, pid \d+\)"
        for other, lines in zip((1, 0), ranks.lines):  # the other one can be late as well, where there is much load
            self.assertRegex(lines[-1], r"^error timeout barrier #2 failed .*missing: "
                                        f"({who.format(other)}, )?{who.format(2)}")
        if BACKEND != "mpi":  # mpirun ends the rest of a job when a rank fails
            self.assertRegex(ranks.lines[2][-1], r"^error timeout .*missing: rank 2 ")

    def test_abort_reaches_the_others_with_its_reason(self):
        ranks = Ranks(3, RANK, BACKEND, "abort")
        told = [lines[-1] for lines in ranks.lines if lines]
        self.assertTrue(told, ranks.codes)
        for line in told:
            self.assertRegex(line, "^error aborted .*rank 2 ended the group: loss is NaN")

    @unittest.skipIf(BACKEND == "mpi", "mpirun kills a job of which a rank has died")
    def test_a_rank_that_is_killed_is_named(self):
        ranks = Ranks(3, RANK, BACKEND, "die")
        for lines in ranks.lines[:2]:
            self.assertRegex(lines[-1], r"^error peer_lost .*rank 2 \(host \S+, pid \d+\) died or left the group")


class Groups(unittest.TestCase):
    """What stands on top of an engine knows nothing of backends."""

    # feature: Z-18
    def test_sums(self):
        ranks = Ranks(3, WORKER, "sums")
        self.assertEqual(ranks.lines, [[f"{rank} right over {BACKEND}"] for rank in range(3)])

    def test_parts_and_messages(self):
        ranks = Ranks(4, WORKER, "parts")
        self.assertEqual(ranks.lines, [[f"{rank} parts right over {BACKEND}"] for rank in range(4)])

    # fault: 33
    @unittest.skipIf(BACKEND == "mpi", "MPI_Finalize waits for the other ranks")
    def test_a_rank_that_leaves_early_is_named_with_the_counts_of_both_sides(self):
        ranks = Ranks(3, FLIGHT, "early", 2)
        for lines in ranks.lines[:2]:
            self.assertRegex(lines[-1], r"error peer_lost .*rank 2 \(host \S+, pid \d+\) has left the group after 3 "
                                        r"collectives; rank \d \(.*\) waits for it in barrier #4.*join\(\)")

    @unittest.skipIf(BACKEND == "mpi", "mpirun kills a job of which a rank has died")
    def test_a_rank_that_dies_is_told_from_one_that_leaves(self):
        with Job(WORKER, ["wait_for", 1], 3, {"LOCKSTEP_BACKEND": BACKEND}) as work:
            work.wait_until_running()
            work.kill(1)
            for rank in (0, 2):
                self.assertRegex(work.failure(rank).text,
                                 rf"rank 1 \(host \S+, pid {work.ranks[1].pid}\) has ended after \d+ collectives?; "
                                 rf"rank {rank} .* waits for it in")

    def test_training_keeps_replicas_equal(self):
        ranks = Ranks(2, WORKER, "train", 5)
        hashes = [re.sub(r"^\d+ ", "", lines[-1]) for lines in ranks.lines]
        self.assertRegex(hashes[0], rf"^hash [0-9a-f]+ over {BACKEND}$")
        self.assertEqual(hashes[0], hashes[1])

    def test_lockstep_mode_is_for_two_ranks(self):
        ranks = Ranks(2, WORKER, "lockstep_mode", 4)
        self.assertEqual(ranks.lines, [[f"{rank} lockstep mode over {BACKEND}"] for rank in range(2)])
        told = [lines for lines in Ranks(4, WORKER, "lockstep_mode", 4).lines if lines]  # mpirun ends a job that fails
        self.assertTrue(told)
        for lines in told:
            pattern = rf"error invalid_argument .* the {BACKEND} backend does not support with 4 ranks"
            self.assertRegex("".join(lines), pattern)

    def test_an_unknown_backend_is_refused_with_the_known_ones(self):
        ranks = Ranks(1, WORKER, "sums", LOCKSTEP_BACKEND="nonsense")
        self.assertRegex(ranks.lines[0][0], r"error invalid_argument .*LOCKSTEP_BACKEND is 'nonsense'; it can be ")


def built():
    """Whether the build has the backend, as its own error says."""
    environment = {**os.environ, "LOCKSTEP_BACKEND": BACKEND}
    said = subprocess.run([WORKER, "sums"], env=environment, capture_output=True, text=True).stdout
    return "is not in this build" not in said


if __name__ == "__main__":
    own_shared_memory()
    if not built():
        print(f"SKIPPED: this build has no backend {BACKEND}; script/bootstrap installs MPI")
        sys.exit(SKIPPED)
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[7:]])
