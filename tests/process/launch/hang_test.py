"""Jobs that hang, and stacks: hang_test.py <lockstep> <hang_worker>"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from agents import Job
from processes import Tree, wait_for

LOCKSTEP = ""
WORKER = ""


def job(*arguments, ranks=3, options=(), tell="2", program=None, stderr=subprocess.PIPE, **environment):
    command = [LOCKSTEP, "run", "--nproc-per-node", str(ranks), *options, *(program or [WORKER, *arguments])]
    if tell:
        environment["LOCKSTEP_HANG_SECONDS"] = tell
    return Tree(command, {"OMP_NUM_THREADS": "1", "TORCH_SHOW_CPP_STACKTRACES": "0", **environment}, stderr=stderr)


def text_of(file):
    return os.pread(file.fileno(), 1 << 20, 0).decode()


class Hanging(unittest.TestCase):
    def finish(self, tree):
        """The exit code and what the launcher said."""
        code, _, error = tree.finish(timeout=60)
        self.assertEqual(tree.wait_until_gone(5), [], "left behind")
        print(re.sub(r"(?m)^", "  ", error), flush=True)
        return code, error

    def running(self, tree, ranks=3):
        """The pids of the ranks, once all are about to call the collective that hangs."""
        lines = tree.read_lines(ranks)
        return {int(rank): int(pid) for rank, pid in (re.findall(r"^\[(\d)\] running (\d+)", line)[0]
                                                      for line in lines)}


class HangTest(Hanging):
    # fault: 12
    def test_a_rank_that_does_not_come_is_named_with_the_stacks_of_all(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "report.json")
            with job("away", "1", options=["--hang-timeout", "3", "--report", path]) as tree:
                pids = self.running(tree)
                code, error = self.finish(tree)
            with open(path, encoding="utf-8") as file:
                attempt = json.load(file)["attempts"][0]
        self.assertEqual((attempt["cause"]["rank"], attempt["cause"]["pid"]), (1, pids[1]))
        self.assertRegex(attempt["hang"], "ranks 0, 2 wait in all_reduce #3 .* for rank 1$")
        self.assertEqual(code, 4, error)
        self.assertRegex(error, r"the job has made no progress for \d s: ranks 0, 2 wait in all_reduce #3 .* "
                                r"for rank 1\n")
        for rank, text in ((0, r"in all_reduce #3 .*for \d s"), (1, r"in no collective, its last was all_reduce #2 "),
                           (2, r"in all_reduce #3 ")):
            self.assertRegex(error, rf"rank {rank} \(pid {pids[rank]}\): {text}.*; sleeping")
        away = error.index("stacks of rank 1:")
        self.assertRegex(error[away:], r"sleeps_for_ever\(\) \(")
        self.assertRegex(error[away:], r"\bmain \(hang_worker.cpp:\d+\)")
        self.assertIn("stacks of ranks 0, 2:", error)
        self.assertIn("Collectives::all_reduce<double>", error)
        self.assertRegex(error, r"lockstep: the job hung and was ended: no progress for \d s: ranks 0, 2 wait .* for "
                                r"rank 1\n")
        self.assertNotIn("failed because of it", error)
        self.assertIn("lockstep trace --flight", error)

    # fault: 12
    def test_a_worker_that_waits_in_a_function_of_the_program_is_shown_first(self):
        with job("queue", "1", options=["--hang-timeout", "3"]) as tree:
            code, error = self.finish(tree)
        self.assertEqual(code, 4, error)
        self.assertRegex(error, r"stacks of rank 1:\n.*  thread .*\n(.*  #\d .*\n)*?"
                                r".*  #\d takes_from_queue\(\) \(\S+:\d+\)\n(.*  #\d .*\n)*.*main thread\n")
        self.assertNotRegex(error, r"only waits? for work: .*(takes_from_queue|Prefetcher)")

    # fault: 12
    def test_without_a_limit_it_is_only_told_and_then_more_rarely(self):
        with tempfile.TemporaryFile("w+") as error, job("away", "0", ranks=2, tell="1", stderr=error) as tree:
            told = lambda: re.findall(r"the job has made no progress for (\d+) s", text_of(error))
            self.running(tree, 2)
            self.assertTrue(wait_for(lambda: len(told()) == 3, 20), text_of(error))
            self.assertIsNone(tree.process.poll())
            tree.process.send_signal(signal.SIGINT)
            self.assertEqual(tree.finish()[0], 75)
            self.assertEqual(tree.wait_until_gone(5), [], "left behind")
            for seconds, after in zip(map(int, told()), (1, 2, 4)):  # whole seconds, rounded down
                self.assertGreaterEqual(seconds, after - 1)

    # fault: 10
    def test_a_stopped_rank_is_told_to_be_stopped(self):
        with job("away", "2", options=["--hang-timeout", "2"]) as tree:
            pid = self.running(tree)[2]
            os.kill(pid, signal.SIGSTOP)
            code, error = self.finish(tree)
        self.assertEqual(code, 4, error)
        self.assertRegex(error, rf"rank 2 \(pid {pid}\): .*; stopped \(by SIGSTOP")
        self.assertRegex(error, r"wait in all_reduce.* for rank 2\n")
        self.assertRegex(error, r"stacks of rank 2:\n.*none: a stopped process cannot record its stacks")

    # fault: 11
    # feature: K-03
    def test_a_rank_that_computes_extends_the_wait(self):
        for scenario in ("compute", "child"):
            with self.subTest(scenario), \
                    job(scenario, "1", options=["--hang-timeout", "2"], TEST_SECONDS="4") as tree:
                code, error = self.finish(tree)
                self.assertEqual(code, 0, error)
                self.assertNotIn("the job has made no progress", error)
                self.assertRegex(error, r"for \d s ranks 0, 2 wait in all_reduce.* for rank 1; rank 1 is running, "
                                        r"using \d+ % of a core")

    # fault: 11
    # feature: K-03
    def test_it_also_does_where_only_the_timeout_is_given(self):
        with job("compute", "1", options=["--hang-timeout", "2"], tell=None, TEST_SECONDS="5") as tree:
            code, error = self.finish(tree)
        self.assertEqual(code, 0, error)
        self.assertRegex(error, r"for 2 s ranks 0, 2 wait in all_reduce.* for rank 1; rank 1 is running")

    # fault: 11
    # feature: K-03
    def test_the_wait_for_a_rank_that_computes_has_an_end(self):
        with job("compute", "1", options=["--hang-timeout", "2"], TEST_SECONDS="40",
                 LOCKSTEP_HANG_CAP_SECONDS="3") as tree:
            code, error = self.finish(tree)
        self.assertEqual(code, 4, error)
        self.assertRegex(error, r"computes_for\(.*\) \(hang_worker.cpp:\d+\)")

    # fault: 12
    def test_ranks_that_wait_for_each_other_are_not_blamed(self):
        with job("circle", "-", ranks=2, options=["--hang-timeout", "2"]) as tree:
            code, error = self.finish(tree)
        self.assertEqual(code, 4, error)
        self.assertIn("ranks 0, 1 wait for each other, in different collectives", error)
        self.assertRegex(error, r"rank 0 \(pid \d+\): in barrier #1 .*\n.*rank 1 \(pid \d+\): in barrier #1 ")

    # fault: 12
    def test_a_hang_is_restarted(self):
        with job("once", "1", options=["--hang-timeout", "2", "--max-restarts", "1"]) as tree:
            code, error = self.finish(tree)
        self.assertEqual(code, 0, error)
        self.assertIn("the job hung and was ended", error)
        self.assertIn("restart 1 of 1", error)

    def test_a_pause_of_the_launcher_does_not_count(self):
        with job("compute", "1", options=["--hang-timeout", "3"], tell="3", TEST_SECONDS="2") as tree:
            pids = self.running(tree)
            for pid in (tree.pid, *pids.values()):
                os.kill(pid, signal.SIGSTOP)
            time.sleep(4.2)  # longer than any pause between two looks of a launcher that runs
            for pid in (*pids.values(), tree.pid):
                os.kill(pid, signal.SIGCONT)
            code, error = self.finish(tree)
        self.assertEqual(code, 0, error)
        self.assertNotIn("the job has made no progress", error)

    def test_programs_without_the_library_are_left_alone(self):
        # They would die of a signal that they do not handle.
        script = "import time; time.sleep(2); print('well')"
        programs = (["sh", "-c", "sleep 2; echo well"], [sys.executable, "-c", script])
        with contextlib.ExitStack() as stack:
            for tree in [stack.enter_context(job(program=program, ranks=2, tell="1")) for program in programs]:
                code, output, error = tree.finish()
                self.assertEqual((code, output.count("well")), (0, 2), error)


class CrashTest(Hanging):
    # fault: 2
    def test_the_stack_of_a_crash_is_in_the_report(self):
        with tempfile.TemporaryDirectory() as folder:
            report = os.path.join(folder, "report.json")
            with job("crash", "1", options=["--report", report]) as tree:
                code, error = self.finish(tree)
            with open(report, encoding="utf-8") as file:
                cause = json.load(file)["attempts"][0]["cause"]
        self.assertEqual(code, 128 + signal.SIGSEGV)
        self.assertRegex(error, r"rank 1 \(pid \d+\) was killed by SIGSEGV")
        self.assertRegex(error, r"SIGSEGV in its main thread, at address 0x30:\n"
                                r"lockstep:   #0 falls_over\(int volatile\*\) \(hang_worker.cpp:\d+\)\n"
                                r"(lockstep:   #\d .*\n)*?lockstep:   #\d main \(hang_worker.cpp:\d+\)\n")
        self.assertIn("falls_over", cause["stack"][1])

    # fault: 2
    def test_other_ends_by_a_signal(self):
        for scenario, number, pattern in (
                ("abort", signal.SIGABRT, r"SIGABRT in its main thread:\n"
                                          r"lockstep:   #0 gives_up\(\) \(hang_worker.cpp:\d+\)"),
                ("nothing", signal.SIGSEGV, r"SIGSEGV .*at address 0x0:\nlockstep:   #0 0x0, in no file\n"
                                            r"lockstep:   #1 calls_nothing\(\) \(hang_worker.cpp:\d+\)")):
            with self.subTest(scenario), job(scenario, "1") as tree:
                code, error = self.finish(tree)
                self.assertEqual(code, 128 + number)
                self.assertRegex(error, pattern)

    # feature: D-03
    def test_an_exception_that_nobody_catches_is_reported_with_the_stack_at_which_it_was_thrown(self):
        with job("throw", "1") as tree:
            code, error = self.finish(tree)
        self.assertEqual(code, 128 + signal.SIGABRT)
        self.assertRegex(error, r"its error: boom\nlockstep: SIGABRT in its main thread:\n"
                                r"lockstep:   #0 throws_boom\(\) \(hang_worker.cpp:\d+\)\n"
                                r"(lockstep:   #\d+ .*\n)*?lockstep:   #\d+ main \(hang_worker.cpp:\d+\)\n")

    def test_terminate_handlers_that_go_on_to_each_other_end(self):
        with job("chain", "1") as tree:
            code, error = self.finish(tree)
        self.assertEqual(code, 128 + signal.SIGABRT, error)
        self.assertEqual(len(re.findall(r"(?m)^\[1\] hang_worker: my handler$", error)), 1, error)
        self.assertIn("its error: boom\n", error)

    def test_a_crash_that_somebody_else_sends(self):
        with job("away", "1") as tree:
            os.kill(self.running(tree)[1], signal.SIGSEGV)
            code, error = self.finish(tree)
        self.assertEqual(code, 128 + signal.SIGSEGV)
        self.assertIn(f"SIGSEGV in its main thread, sent by process {os.getpid()}:", error)
        self.assertRegex(error, r"#\d+ main \(")


class HostsTest(unittest.TestCase):
    """Jobs of two launchers, neither of which sees all ranks."""

    def pair(self, *arguments, options=(), ranks=(1, 1), **environment):
        """The exit codes, and what the first one said."""
        job = Job(LOCKSTEP, "--nnodes", "2", *options)
        self.addCleanup(job.__exit__)
        program = ["env", "OMP_NUM_THREADS=1", *(f"{name}={value}" for name, value in environment.items()), WORKER,
                   *arguments]
        os.environ["LOCKSTEP_HANG_SECONDS"] = "2"
        self.addCleanup(os.environ.pop, "LOCKSTEP_HANG_SECONDS", None)
        for node_rank, name in enumerate("ab"):
            job.start(name, program, "--node-rank", str(node_rank), ranks=ranks[node_rank])
        codes = job.codes()
        self.assertEqual(job.left(), [], job.texts())
        print(re.sub(r"(?m)^", "  ", job.agents[0].error), flush=True)
        return codes, job.agents[0].error

    # fault: 12
    def test_a_rank_on_another_host_that_does_not_come_is_named_with_stacks(self):
        for actor, host in ((0, "a"), (1, "b")):
            codes, error = self.pair("away", str(actor), options=["--hang-timeout", "3"])
            self.assertEqual(codes, [4, 4], error)
            self.assertRegex(error, rf"the job has made no progress for \d s: rank {1 - actor} waits in "
                                    rf"all_reduce #3 .* for rank {actor}\n")
            self.assertRegex(error, rf"rank {actor} \(host {host}, pid \d+\): in no collective, its last was "
                                    r"all_reduce #2 .*, \d s ago; sleeping")
            self.assertRegex(error, rf"host {host}: stacks of rank {actor}:\n(.*\n)*?.*sleeps_for_ever\(\)")
            self.assertRegex(error, r"the job hung and was ended: no progress for \d s: rank \d waits")

    # fault: 12
    def test_a_hang_on_hosts_is_restarted(self):
        codes, error = self.pair("once", "2", options=["--hang-timeout", "2", "--max-restarts", "1"], ranks=(2, 1))
        self.assertEqual(codes, [0, 0], error)
        self.assertIn("the job hung and was ended", error)
        self.assertIn("restart 1 of 1", error)

    # fault: 11
    def test_a_rank_on_another_host_that_computes_extends_the_wait(self):
        codes, error = self.pair("compute", "1", options=["--hang-timeout", "2"], TEST_SECONDS="4")
        self.assertEqual(codes, [0, 0], error)
        self.assertNotIn("the job has made no progress", error)
        self.assertRegex(error, r"for \d s rank 0 waits in all_reduce.* for rank 1; rank 1 is running")

    # fault: 2
    def test_the_stack_of_a_crash_on_another_host_is_in_the_report(self):
        codes, error = self.pair("crash", "1")
        self.assertEqual(codes, [128 + signal.SIGSEGV] * 2, error)
        self.assertRegex(error, r"rank 1 \(host b, pid \d+\) was killed by SIGSEGV")
        self.assertRegex(error, r"SIGSEGV in its main thread, at address 0x30:\n"
                                r"lockstep:   #0 falls_over\(int volatile\*\) \(hang_worker.cpp:\d+\)\n")
        self.assertIn("its last operation: ", error)


if __name__ == "__main__":
    LOCKSTEP, WORKER = sys.argv[1:3]
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
