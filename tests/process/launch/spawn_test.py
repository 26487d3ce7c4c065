"""spawn() with real processes: spawn_test.py <launch_spawner>"""

import os
import signal
import subprocess
import sys
import time
import unittest

from processes import Tree, process_state, wait_for

SPAWNER = ""


class SpawnTest(unittest.TestCase):
    def spawn(self, mode, **options):
        with Tree([SPAWNER, mode], **options) as tree:
            code, output, error = tree.finish()
            self.assertEqual(tree.wait_until_gone(1), [], "left behind")
            return code, output, error

    def assert_fails(self, mode, pattern):
        code, output, _ = self.spawn(mode)
        self.assertEqual(code, 1, output)
        self.assertRegex(output, pattern)

    # feature: D-01, D-02, Z-14
    def test_every_rank_runs_once(self):
        code, output, error = self.spawn("fine")
        self.assertEqual((code, error), (0, ""))
        lines = output.splitlines()
        self.assertEqual(sorted(lines[:-1]), ["rank 0 of 3", "rank 1 of 3", "rank 2 of 3"])
        self.assertEqual(lines[-1], "all fine")

    def test_the_ranks_share_the_store_of_the_parent(self):
        code, output, error = self.spawn("store")
        self.assertEqual((code, error), (0, ""))
        self.assertEqual(sorted(output.splitlines()[:-1]), [f"rank {rank}: yes" for rank in range(3)])

    # feature: D-03
    def test_an_exception_is_quoted_once(self):
        code, output, error = self.spawn("throw")
        self.assertEqual((code, error), (1, ""))
        self.assertRegex(output, r"^failed: rank 1 code 1 signal 0: rank 1 \(pid \d+\) raised: boom\n$")

    def test_an_exception_of_any_type(self):
        self.assert_fails("throw_int", r"rank 1 \(pid \d+\) raised: the thrown object is not a std::exception$")

    # feature: D-04
    def test_an_exit_code(self):
        self.assert_fails("exit7", r"^failed: rank 1 code 7 signal 0: rank 1 \(pid \d+\) exited with code 7$")

    # feature: D-03
    def test_a_signal_is_named(self):
        self.assert_fails("segv", r"^failed: rank 1 code -1 signal 11: rank 1 \(pid \d+\) was killed by SIGSEGV")

    def test_a_rank_that_lost_a_peer_is_not_the_cause(self):
        with Tree([SPAWNER, "lost_peer"]) as tree:
            # Rank 2 stops the parent, which then finds three dead ranks at once.
            self.assertTrue(wait_for(lambda: process_state(tree.pid)[0] == "T"))
            self.assertTrue(wait_for(lambda: len(zombies_of(tree.pid)) == 3))
            os.kill(tree.pid, signal.SIGCONT)
            _, output, _ = tree.finish()
        self.assertRegex(output, r"rank 2 \(pid \d+\) raised: the cause")

    # feature: D-05, D-06
    def test_a_copy_that_takes_another_path(self):
        self.assert_fails("elsewhere", r'rank 1 \(pid \d+\) exited with code 0 before it reached spawn\("main"\)')

    # feature: D-03
    def test_a_rank_that_ignores_sigterm_is_killed_after_the_grace(self):
        with Tree([SPAWNER, "stubborn"], stdin=subprocess.PIPE) as tree:
            self.assertEqual(sorted(tree.read_lines(3)), [f"rank {rank} ready" for rank in range(3)])
            started = time.monotonic()
            tree.process.stdin.write(b"x")
            tree.process.stdin.flush()
            _, output, _ = tree.finish()
            self.assertRegex(output, r"rank 0 \(pid \d+\) raised: boom")
            self.assertGreaterEqual(time.monotonic() - started, 0.29)
            self.assertLess(time.monotonic() - started, 5)
            self.assertEqual(tree.wait_until_gone(1), [])

    # feature: D-03
    def test_twenty_in_a_loop_leave_nothing(self):
        code, output, error = self.spawn("loop")
        self.assertEqual((code, output, error), (0, "nothing left\n", ""))

    # feature: D-01
    def test_a_handle_knows_its_ranks_and_waits_for_them(self):
        code, output, error = self.spawn("handle_fine")
        self.assertEqual((code, error), (0, ""))
        self.assertRegex(output, r"^pids \d+ \d+\nall ended\n$")

    def test_a_handle_tells_what_failed_each_time_it_is_asked(self):
        code, output, _ = self.spawn("handle_throw")
        self.assertEqual(code, 1)
        self.assertRegex(output, r"failed: rank 1\nagain: rank 1 \(pid \d+\) raised: boom\n$")

    # feature: D-01
    def test_a_handle_gives_up_at_its_deadline_and_ends_ranks_when_told(self):
        code, output, error = self.spawn("handle_terminate")
        self.assertEqual((code, error), (0, ""))
        self.assertRegex(output, r"still running\nall ended\n$")

    def test_ranks_end_with_their_handle(self):
        code, output, _ = self.spawn("handle_drop")
        self.assertEqual(code, 0, output)

    # feature: D-05
    def test_several_calls_in_one_program(self):
        code, output, _ = self.spawn("two_jobs")
        self.assertEqual(code, 0)
        lines = output.splitlines()
        self.assertEqual(sorted(lines[:2]), ["first 0", "first 1"])
        self.assertEqual(lines[2], "other 0")
        self.assertEqual(sorted(lines[3:]), ["second 0", "second 1"])

    def test_lines_are_prefixed_on_request(self):
        code, output, _ = self.spawn("prefix")
        self.assertEqual(code, 0)
        self.assertEqual(sorted(output.splitlines()), [f"[{r}] rank {r} of 3" for r in range(3)] + ["all fine"])

    def test_ctrl_c_ends_ranks_and_parent(self):
        with Tree([SPAWNER, "sleep"]) as tree:
            tree.read_lines(3)
            os.kill(tree.pid, signal.SIGINT)
            code, output, _ = tree.finish()
            self.assertEqual((code, output), (-signal.SIGINT, ""))
            self.assertEqual(tree.wait_until_gone(1), [])

    def test_a_program_with_a_handler_of_its_own_gets_an_error(self):
        with Tree([SPAWNER, "handler"]) as tree:
            tree.read_lines(3)
            os.kill(tree.pid, signal.SIGINT)
            code, output, _ = tree.finish()
            self.assertEqual((code, output), (1, "error: spawn() was stopped by SIGINT\n"))

    # fault: 9
    def test_kill_9_of_the_parent_ends_the_ranks(self):
        with Tree([SPAWNER, "sleep"]) as tree:
            tree.read_lines(3)
            tree.process.kill()
            self.assertEqual(tree.wait_until_gone(1), [])


def zombies_of(parent):
    return [pid for pid in filter(str.isdigit, os.listdir("/proc")) if process_state(pid) == ("Z", parent)]


if __name__ == "__main__":
    SPAWNER = sys.argv.pop(1)
    unittest.main()
