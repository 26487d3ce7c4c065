"""What is told of ranks that do not come: flight_test.py <lockstep> <flight_worker> Frozen|Apart|Recordings"""

import glob
import json
import os
import pathlib
import random
import re
import signal
import stat
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "group"))
from jobs import Job, Tree  # noqa: E402
from processes import process_state, wait_for  # noqa: E402

LOCKSTEP = ""
WORKER = ""
TRANSPORTS = ("shared_memory", "tcp")
# What a machine that does other things besides may add, in seconds.
BUSY = 5.0  # seconds; who is told nothing waits for longer


def job(*arguments, size=3, transport="automatic", of_rank=None, **environment):
    return Job(WORKER, arguments, size, {"LOCKSTEP_TRANSPORT": transport, **environment}, of_rank)


class Frozen(unittest.TestCase):
    def assert_timeouts(self, work, missing, limit, pattern):
        """All ranks but `missing` time out within the limit, and name it."""
        ranks = [rank for rank in range(len(work.ranks)) if rank != missing]
        failures = [work.failure(rank) for rank in ranks]
        for failure in failures:
            print(f"  {failure}", flush=True)
            self.assertEqual(failure.kind, "timeout", failure)
            self.assertLess(failure.waited, limit + 0.1 + BUSY, failure)
            self.assertRegex(failure.text, pattern)
            self.assertIn(f"rank {missing} (host ", failure.text)
            self.assertIn(f"pid {work.ranks[missing].pid})", failure.text)
            for other in ranks:
                self.assertNotRegex(failure.text.partition("missing:")[2], rf"\brank {other}\b")
        return failures

    def test_a_rank_that_is_stopped_outside_of_a_collective_is_told_so(self):
        state = {"shared_memory": r"stopped \(by SIGSTOP or the like\), last seen in barrier #3, left it \d\.\d s ago",
                 "tcp": r"barrier #4 .*silent for \d\.\d s: it is stopped, or its host is down or overloaded, "
                        r"last seen in barrier #3"}
        for transport in TRANSPORTS:
            # The limit leaves time to stop the rank before the others ask it how it fares.
            with self.subTest(transport), job("away", 1, transport=transport, TEST_CALL_MS="1500") as work:
                os.kill(int(work.line(1).removeprefix("running ")), signal.SIGSTOP)
                for rank in (0, 2):
                    work.line(rank)
                self.assert_timeouts(work, 1, 1.5, state[transport])

    def test_who_sends_no_message_is_told_with_host_and_process_and_how_it_fares(self):
        for transport in TRANSPORTS:
            for stops, state in ((False, "alive"), (True, "stopped")):
                with self.subTest(transport, stops=stops), \
                        job("mute", 1, size=2, transport=transport, TEST_CALL_MS="1200") as work:
                    pid = int(work.line(1).removeprefix("running "))
                    if stops:
                        os.kill(pid, signal.SIGSTOP)
                    work.line(0)
                    failure = work.failure(0)
                    print(f"  {failure}", flush=True)
                    self.assertEqual(failure.kind, "timeout", failure)
                    self.assertLess(failure.waited, 1.2 + 0.1 + BUSY, failure)
                    self.assertRegex(failure.text, "receive of 16 bytes with tag 7 from rank 1 timed out .*; "
                                                   rf"rank 1 \(host \S+, pid {pid}\): .*{state}")

    # fault: 12
    def test_a_rank_that_is_slow_is_told_to_be_alive_with_where_it_was_last(self):
        for transport in TRANSPORTS:
            with self.subTest(transport), job("away", 1, transport=transport, TEST_CALL_MS="1500") as work:
                work.wait_until_running()
                self.assert_timeouts(work, 1, 1.5, r"barrier #4 .*missing: .*alive, last seen in barrier #3, "
                                                   r"left it \d\.\d s ago")

    # fault: 10
    def test_a_rank_that_is_stopped_inside_of_a_collective_is_named(self):
        for transport in TRANSPORTS:
            with self.subTest(transport), job("loop", 4 << 20, transport=transport, TEST_CALL_MS="1500") as work:
                work.wait_until_running()
                time.sleep(random.uniform(0.05, 0.3))
                os.kill(work.ranks[2].pid, signal.SIGSTOP)
                failures = [work.failure(rank) for rank in (0, 1)]
                for failure in failures:
                    print(f"  {failure}", flush=True)
                    self.assertEqual(failure.kind, "timeout", failure)
                    self.assertLess(failure.waited, 1.5 + 0.1 + BUSY, failure)
                # Over TCP a rank may have all that the stopped one owed it, and wait for one that does not.
                named = [each for each in failures if re.search(
                    rf"all_reduce\(sum\) #\d+ of 4194304 float32 .*missing: rank 2 .*pid {work.ranks[2].pid}\).*"
                    r"(stopped|silent)", each.text)]
                self.assertTrue(named, failures)
                self.assertTrue(transport == "tcp" or len(named) == 2, failures)

    # fault: 10
    def test_a_wait_for_a_stopped_rank_is_warned_of_within_three_seconds(self):
        for transport in TRANSPORTS:
            with self.subTest(transport), tempfile.TemporaryDirectory() as folder:
                into = lambda rank: {"before": ["sh", "-c", 'exec "$@" 2>>"$0"', f"{folder}/{rank}"]}
                said = lambda: "".join(pathlib.Path(path).read_text() for path in glob.glob(f"{folder}/0"))
                with job("away", 1, transport=transport, of_rank=into, TEST_CALL_MS="5000") as work:
                    work.wait_until_running()
                    at = time.monotonic()
                    os.kill(work.ranks[1].pid, signal.SIGSTOP)
                    self.assertTrue(wait_for(said, 4.5), "no warning before the deadline")
                    print(f"  warned after {time.monotonic() - at:.2f} s: {said().strip()}", flush=True)
                    self.assertLess(time.monotonic() - at, 3 + BUSY)
                    self.assertRegex(said(), rf"rank 0: warning: .*rank 1 \(host \S+, pid {work.ranks[1].pid}\) .*"
                                             r"(is stopped|silent for)")
                    work.failure(0)
                    self.assertEqual(said().count("warning"), 1, said())


class Apart(unittest.TestCase):
    """Ranks of which one does not do what the others do."""

    # fault: 32
    # feature: C-15, K-04
    def test_a_rank_that_skips_a_collective_is_told_on_all_ranks_with_both_sides(self):
        for transport in TRANSPORTS:
            with self.subTest(transport), job("skip", 2, transport=transport) as work:
                for rank in range(3):
                    failure = work.failure(rank)
                    self.assertEqual(failure.kind, "desync", failure)
                    self.assertIn("barrier #8", failure.text)
                    self.assertIn("all_reduce(sum) #8 of 1000 float32", failure.text)
                    self.assertRegex(failure.text, r"\brank 2\b")
                    self.assertLess(failure.waited, BUSY)
                self.assertEqual(work.exit_codes(), [3, 3, 3])

    # feature: K-04
    def test_a_rank_that_leaves_early_is_named_at_once(self):
        for transport in TRANSPORTS:
            with self.subTest(transport), job("early", 0, transport=transport) as work:
                work.wait_until_running()
                for rank in (1, 2):
                    failure = work.failure(rank)
                    self.assertEqual(failure.kind, "peer_lost", failure)
                    self.assertRegex(failure.text, r"rank 0 \(host \S+, pid \d+\) has left the group")
                    self.assertIn("barrier #4", failure.text)
                    self.assertLess(failure.waited, BUSY)
                self.assertEqual(work.exit_codes(), [0, 3, 3])

    def test_a_monitored_barrier_names_who_does_not_come_and_the_group_goes_on(self):
        for transport in TRANSPORTS:
            with self.subTest(transport), job("monitored", 2, transport=transport) as work:
                work.wait_until_running()
                for rank in (0, 1):
                    failure = work.failure(rank)
                    print(f"  {failure}", flush=True)
                    self.assertEqual(failure.kind, "timeout")
                    self.assertIn("Rank 2 failed to pass monitoredBarrier in 1000 ms", failure.text)
                    self.assertRegex(failure.text, r"rank 2 \(host \S+, pid \d+\) did not arrive: alive")
                    self.assertLess(failure.waited, 1 + 0.1 + BUSY)
                self.assertEqual([work.line(rank) for rank in range(3)], ["goes on"] * 3)
                self.assertEqual(work.exit_codes(), [0, 0, 0])


class Recordings(unittest.TestCase):
    def run_job(self, *arguments, options=(), ranks=3, **environment):
        """A job under the launcher, whose recordings have a folder of their own."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        command = [LOCKSTEP, "run", "--nproc-per-node", str(ranks), "--no-prefix", *options, WORKER,
                   *map(str, arguments)]
        tree = Tree(command, {"OMP_NUM_THREADS": "1", "XDG_STATE_HOME": folder.name, **environment})
        self.addCleanup(tree.__exit__)
        return tree, folder.name

    def trace(self, *arguments):
        return subprocess.run([LOCKSTEP, "trace", *arguments], capture_output=True, text=True, timeout=20)

    def printed_command(self, error):
        lines = re.findall(r"to see where each rank was: lockstep (trace --flight (\S+))\n", error)
        self.assertEqual(len(lines), 1, error)
        return lines[0]

    def test_a_killed_job_leaves_a_recording_that_shows_the_dead_rank_behind(self):
        for transport in TRANSPORTS:
            with self.subTest(transport):
                tree, folder = self.run_job("away", 1, LOCKSTEP_TRANSPORT=transport)
                pids = dict(line.split(" running ") for line in tree.read_lines(3))
                os.kill(int(pids["1"]), signal.SIGKILL)
                code, _, error = tree.finish()
                self.assertEqual(code, 137, error)
                arguments, directory = self.printed_command(error)
                self.assertEqual(os.path.dirname(directory), folder + "/lockstep/flight")
                self.assertEqual(stat.S_IMODE(os.stat(directory).st_mode), 0o700)
                self.assertEqual([stat.S_IMODE(os.stat(path).st_mode) for path in glob.glob(directory + "/*")],
                                 [0o600] * 3)
                told = self.trace(*arguments.split()[1:])
                print(told.stdout, flush=True)
                self.assertEqual((told.returncode, told.stderr), (0, ""))
                self.assertRegex(told.stdout, rf"rank 1 \(host \S+, pid {pids['1']}\) was killed by SIGKILL")
                self.assertIn("group world of 3 ranks: its ranks are not at the same place", told.stdout)
                self.assertIn("\n  rank 1 is at barrier #3, which it finished\n", told.stdout)
                # Whether they still wait or have failed is a matter of who was stopped first.
                self.assertRegex(told.stdout, r"\n  (ranks 0, 2 are|rank 0 is) at barrier #4, ")
                self.assertRegex(told.stdout, r"\n  (ranks 0, 2 are|rank 2 is) at barrier #4, ")
                self.assertRegex(told.stdout, rf"rank 0 \(host \S+, pid {pids['0']}\), the last 4 of 4 operations:")
                self.assertRegex(told.stdout, r"world: barrier #2  done, \d+\.\d{3} ms")

    def test_a_rank_killed_in_a_loop_of_all_reduces(self):
        tree, _ = self.run_job("loop", 100_000)
        pids = dict(line.split(" running ") for line in tree.read_lines(3))
        time.sleep(random.uniform(0.1, 0.3))
        os.kill(int(pids["2"]), signal.SIGKILL)
        _, _, error = tree.finish()
        _, directory = self.printed_command(error)
        told = self.trace("--flight", directory, "--last", "2", "--json")
        self.assertEqual(told.returncode, 0, told.stderr)
        document = json.loads(told.stdout)
        self.assertIn("SIGKILL", document["ranks"][2]["ended"])
        self.assertEqual([len(rank["operations"]) for rank in document["ranks"]], [2, 2, 2])
        last = {rank["rank"]: rank["last"] for rank in document["groups"][0]["ranks"]}
        self.assertLessEqual(last[2]["sequence"], last[0]["sequence"])
        self.assertLessEqual(last[2]["sequence"], last[1]["sequence"])
        self.assertEqual(last[2]["operation"], "all_reduce")
        self.assertEqual((last[2]["count"], last[2]["dtype"], last[2]["reduction"]), (100_000, "float32", "sum"))

    def test_a_job_that_is_well_leaves_nothing_unless_asked(self):
        tree, folder = self.run_job("sums", 5)
        code, _, error = tree.finish()
        self.assertEqual((code, os.listdir(folder)), (0, []), error)
        self.assertNotIn("trace", error)
        tree, folder = self.run_job("sums", 1100, options=("--flight", folder + "/kept"))
        code, _, error = tree.finish()
        self.assertEqual(code, 0, error)
        told = self.trace(*self.printed_command(error)[0].split()[1:], "--last", "1")
        self.assertIn("all are at the same place", told.stdout)
        self.assertIn("ranks 0, 1, 2 are at all_reduce(sum) #1100 of 1000 float32, which it finished", told.stdout)
        self.assertIn("the last 1 of 1100 operations", told.stdout)

    def test_a_job_that_hangs_and_is_interrupted_tells_where(self):
        tree, _ = self.run_job("away", 2)
        pids = dict(line.split(" running ") for line in tree.read_lines(3))
        self.assertTrue(wait_for(lambda: all(process_state(int(pids[rank]))[0] == "S" for rank in "01")))  # they wait
        tree.process.send_signal(signal.SIGINT)
        code, _, error = tree.finish()
        self.assertEqual(code, 75, error)
        told = self.trace(*self.printed_command(error)[0].split()[1:], "--last", "0")
        self.assertIn("rank 2 is at barrier #3, which it finished", told.stdout)

    def test_a_program_that_fails_before_it_joins_is_not_worth_a_recording(self):
        tree, folder = self.run_job("nothing of the kind", ranks=1)
        code, _, error = tree.finish()
        self.assertEqual(code, 3, error)
        command = [LOCKSTEP, "run", "--no-prefix", "/bin/false"]
        with Tree(command, {"XDG_STATE_HOME": folder}) as tree:
            code, _, error = tree.finish()
        self.assertEqual(code, 1)
        self.assertNotIn("trace", error)

    def test_without_a_launcher_each_rank_keeps_a_file_that_can_be_read_meanwhile(self):
        with tempfile.TemporaryDirectory() as folder:
            with job("away", 1, size=2, transport="tcp", LOCKSTEP_FLIGHT=folder + "/flight") as work:
                work.wait_until_running()
                behind = lambda: "rank 0 is at barrier #4, inside" in self.trace("--flight", folder + "/flight").stdout
                self.assertTrue(wait_for(behind))
                told = self.trace("--flight", folder + "/flight").stdout
                self.assertIn("rank 1 is at barrier #3, which it finished", told)
                work.kill(0)
                self.assertIn("rank 0 is at barrier #4, inside", self.trace("--flight", folder + "/flight").stdout)

    def test_spawn_keeps_a_recording_as_the_launcher_does(self):
        with tempfile.TemporaryDirectory() as folder:
            environment = {"OMP_NUM_THREADS": "1", "XDG_STATE_HOME": folder, "TEST_CALL_MS": "500"}
            with Tree([WORKER, "spawn", "1"], environment) as tree:
                _, output, error = tree.finish()
            self.assertIn("raised: barrier #4 timed out", output)
            _, directory = self.printed_command(error)
            self.assertIn("rank 1 is at barrier #3", self.trace("--flight", directory).stdout)

    def test_what_is_no_recording_is_refused_by_name(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertRegex(self.trace("--flight", folder).stderr, f"lockstep: {folder} holds no flight recordings")
            with open(folder + "/rank_0.flight", "wb") as file:
                file.write(os.urandom(200_000))
            told = self.trace("--flight", folder)
            self.assertEqual((told.returncode, told.stdout), (1, ""))
            self.assertRegex(told.stderr, rf"lockstep: {folder}/rank_0.flight is not a flight recording, or is damaged")
            # A file of somebody else's is neither read nor, by the next job that records here, removed.
            os.rename(folder + "/rank_0.flight", folder + "/other.flight")
            self.assertRegex(self.trace("--flight", folder).stderr, "holds no flight recordings")
            tree, _ = self.run_job("sums", 5, options=("--flight", folder))
            self.assertEqual(tree.finish()[0], 0)
            self.assertIn("all are at the same place", self.trace("--flight", folder).stdout)
            self.assertEqual(sorted(os.listdir(folder)), ["other.flight"] + [f"rank_{r}.flight" for r in range(3)])
        self.assertEqual(self.trace("--flight", "x", "more").returncode, 2)


if __name__ == "__main__":
    LOCKSTEP, WORKER = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main(verbosity=2)
