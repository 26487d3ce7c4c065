"""Ranks that are told to stop, one or all, at any moment: stop_test.py <lockstep> <stop_worker>

LOCKSTEP_TEST_KILLS says how many jobs each way is tried with (default 4), LOCKSTEP_TEST_SEED at which moments."""

import os
import pathlib
import random
import re
import signal
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "launch"))
from processes import Tree  # noqa: E402

LOCKSTEP = ""
WORKER = ""
RANKS = 3
TIMES = int(os.environ.get("LOCKSTEP_TEST_KILLS", "4"))
SEED = int(os.environ.get("LOCKSTEP_TEST_SEED", "0")) or random.randrange(1 << 30)


class StopTest(unittest.TestCase):
    def setUp(self):
        self.random = random.Random(SEED)
        print(f"seed {SEED}", flush=True)

    def start(self, how, sleep_us, transport="automatic"):
        return Tree([LOCKSTEP, "run", "--nproc-per-node", str(RANKS), WORKER, how, str(sleep_us)],
                    {"OMP_NUM_THREADS": "1", "LOCKSTEP_TRANSPORT": transport})

    def processes_of(self, tree):
        """rank -> pid, once all have asked."""
        pids = {}
        while len(pids) < RANKS:
            (line,) = tree.read_lines(1)
            found = re.fullmatch(r"\[(\d)\] ready (\d+)", line)
            self.assertTrue(found, line)
            pids[int(found[1])] = int(found[2])
        return pids

    def assert_stopped(self, tree, told, expected=0):
        """All after the same step; told: rank -> signal"""
        code, output, error = tree.finish()
        self.assertEqual(code, expected, output + error)
        stopped = {int(rank): (int(step), int(told)) for rank, step, told in
                   re.findall(r"\[(\d)\] stopped after (\d+), told (\d+), agreed\n", output)}
        self.assertEqual(sorted(stopped), list(range(RANKS)), output + error)
        self.assertEqual(len({step for step, _ in stopped.values()}), 1, stopped)
        for rank, number in told.items():
            self.assertEqual(stopped[rank][1], number, stopped)
        self.assertEqual(tree.wait_until_gone(5), [])
        return stopped

    # fault: 50
    def test_all_stop_after_the_same_step_if_one_is_told(self):
        for transport in ("automatic", "tcp"):
            for how in ("loop", "loader", "join"):
                for turn in range(TIMES):
                    sleep_us = self.random.choice((0, 100, 1000, 20_000))
                    with self.subTest(transport=transport, how=how, turn=turn, sleep_us=sleep_us):
                        with self.start(how, sleep_us, transport) as tree:
                            pids = self.processes_of(tree)
                            time.sleep(self.random.uniform(0, 0.1))
                            rank = self.random.randrange(RANKS)
                            number = self.random.choice((signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
                            os.kill(pids[rank], number)
                            self.assert_stopped(tree, {other: number if other == rank else 0 for other in pids})

    def test_ranks_that_are_told_at_different_moments(self):
        for turn in range(TIMES):
            sleep_us = self.random.choice((0, 1000, 20_000))
            with self.subTest(turn=turn, sleep_us=sleep_us), self.start("loop", sleep_us) as tree:
                pids = self.processes_of(tree)
                for rank in self.random.sample(sorted(pids), RANKS):
                    try:
                        os.kill(pids[rank], signal.SIGTERM)
                    except ProcessLookupError:
                        pass
                    time.sleep(self.random.uniform(0, 0.03))
                self.assert_stopped(tree, {})

    def test_the_launcher_passes_it_on(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            with self.subTest(number=number), self.start("loop", 1000) as tree:
                self.processes_of(tree)
                os.kill(tree.pid, number)
                told = {told for _, told in self.assert_stopped(tree, {}, 75).values()}
                self.assertIn(number, told)

    def test_a_program_with_a_handler_of_its_own_says_so_itself(self):
        with self.start("own", 1000) as tree:
            os.kill(self.processes_of(tree)[1], signal.SIGTERM)
            self.assert_stopped(tree, {1: signal.SIGTERM})

    def test_another_signal_that_the_program_asked_for(self):
        with self.start("usr1", 1000) as tree:
            os.kill(self.processes_of(tree)[1], signal.SIGUSR1)
            self.assert_stopped(tree, {1: signal.SIGUSR1})

    def test_a_program_that_does_not_ask_dies_of_the_signal(self):
        for how in ("never", "usr1"):
            with self.subTest(how=how), self.start(how, 1000) as tree:
                pids = self.processes_of(tree)
                os.kill(pids[2], signal.SIGTERM)
                code, output, error = tree.finish()
                self.assertEqual(code, 128 + signal.SIGTERM, output)
                self.assertRegex(error, rf"rank 2 \(pid {pids[2]}\) was killed by SIGTERM")

    # fault: 50
    def test_a_second_signal_ends_a_rank_that_does_not_get_on(self):
        with self.start("loop", 10_000_000) as tree:
            # In its first step, and it has asked before that: each step takes from 10 to 30 seconds.
            pids = {}
            end = time.monotonic() + 10
            while len(pids) < RANKS and time.monotonic() < end:
                for pid in tree.survivors():
                    with open(f"/proc/{pid}/status", encoding="ascii") as file:
                        caught = int(re.search(r"SigCgt:\s*(\w+)", file.read())[1], 16)
                    if caught >> signal.SIGTERM - 1 & 1 and self.is_worker(pid):
                        pids[pid] = True
                time.sleep(0.01)
            self.assertEqual(len(pids), RANKS)
            victim = sorted(pids)[0]
            os.kill(victim, signal.SIGTERM)
            time.sleep(1.1)  # sooner it is the same request
            self.assertIsNone(tree.process.poll())
            begun = time.monotonic()
            os.kill(victim, signal.SIGTERM)
            code, output, error = tree.finish()
            self.assertEqual(code, 128 + signal.SIGTERM, output)
            self.assertRegex(error, rf"\(pid {victim}\) was killed by SIGTERM")
            self.assertLess(time.monotonic() - begun, 9)

    def is_worker(self, pid):
        try:
            return os.readlink(f"/proc/{pid}/exe") == os.path.realpath(WORKER)
        except OSError:
            return False


if __name__ == "__main__":
    LOCKSTEP, WORKER = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main(verbosity=2)
