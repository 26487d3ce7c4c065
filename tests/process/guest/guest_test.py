"""Lockstep in a program that has its own handlers, allocator and children: guest_test.py <lockstep> <guest>"""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "launch"))
from processes import Tree  # noqa: E402

LOCKSTEP = ""
GUEST = ""
RANKS = 2


class GuestTest(unittest.TestCase):
    def run_ranks(self, mode, **environment):
        command = [LOCKSTEP, "run", "--nproc-per-node", str(RANKS), GUEST, mode]
        with Tree(command, {"OMP_NUM_THREADS": "2", **environment}) as tree:
            code, output, error = tree.finish(60)
            self.assertEqual(tree.wait_until_gone(5), [])
        self.assertNotIn("FAILED", output + error)
        return code, output, error

    def assert_done(self, mode, **environment):
        code, output, error = self.run_ranks(mode, **environment)
        self.assertEqual((code, output.count("done\n")), (0, RANKS), output + error)

    def test_handlers_of_terminate_are_each_called_once(self):
        code, output, error = self.run_ranks("terminate")
        self.assertEqual(code, 128 + 6, output + error)
        self.assertEqual((output.count("the second handler"), output.count("the first handler")), (1, 1), output)
        self.assertRegex(output, r"rank 0 .*an uncaught exception ended it: a mistake in a thread")

    def test_signals_are_given_back_unless_the_program_has_taken_them(self):
        for backend in ("native", "gloo"):
            with self.subTest(backend):
                self.assert_done("signals", LOCKSTEP_BACKEND=backend)

    def test_an_error_is_printed_though_the_launcher_already_stops_the_job(self):
        code, output, error = self.run_ranks("unwinding")
        self.assertEqual((code, output.count("done\n")), (0, RANKS), output + error)
        self.assertIn("the cause\n", output)

    def test_handlers_of_crashes_are_called_the_latest_first(self):
        code, output, error = self.run_ranks("crash")
        self.assertEqual(code, 7, output + error)
        lines = [line.split("] ")[-1] for line in output.splitlines() if line.endswith("handler")]
        self.assertEqual(lines, ["the later handler", "the earlier handler"])

    def test_the_allocator_of_the_program_replaces_ours(self):
        self.assert_done("allocator")

    def test_a_child_of_a_forward_ends_and_the_training_goes_on(self):
        self.assert_done("fork", OMP_NUM_THREADS="1")  # OpenMP's threads do not survive fork()

    def test_threads_of_the_library_take_no_signals_and_end_with_the_world(self):
        self.assert_done("threads")

    def test_a_buffer_that_the_program_has_chosen_stays(self):
        self.assert_done("output")

    def test_spawn_gives_signals_back_and_leaves_children_alone(self):
        with Tree([GUEST, "spawn"]) as tree:
            code, output, error = tree.finish(60)
        self.assertNotIn("FAILED", output + error)
        self.assertEqual((code, output), (0, "done\n"), error)


if __name__ == "__main__":
    LOCKSTEP, GUEST = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main(verbosity=2)
