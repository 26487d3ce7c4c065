"""How jobs of `lockstep run` end: ending_test.py <lockstep>"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from processes import Tree, process_state, wait_for

LOCKSTEP = ""


class EndingTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def is_there(self, name):
        return os.path.exists(self.path(name))

    @staticmethod
    def job(*program, ranks=2, options=()):
        return [LOCKSTEP, "run", "--nproc-per-node", str(ranks), *options, *program]

    def start(self, script, *options, ranks=2, **more):
        """A job of `sh -c script`, whose working folder is the test's own."""
        return Tree(self.job("sh", "-c", script, ranks=ranks, options=options), cwd=self.folder, **more)

    def start_python(self, script, *options, ranks=2, **more):
        return Tree(self.job(sys.executable, "-c", script, ranks=ranks, options=options), cwd=self.folder, **more)


class PausedReaderTest(EndingTest):
    PRINT = "head -c 300000 /dev/zero | tr '\\0' x | fold -w 100; "

    def test_it_does_not_hold_up_a_stop(self):
        script = "trap 'exit 0' TERM; " + self.PRINT + ": > ready$RANK; while :; do sleep 0.05; done"
        with self.start(script, stderr=subprocess.DEVNULL) as tree:
            self.assertTrue(wait_for(lambda: self.is_there("ready0") and self.is_there("ready1")))
            os.kill(tree.pid, signal.SIGTERM)
            self.assertEqual(tree.process.wait(timeout=8), 75)

    def test_it_does_not_hold_up_a_restart(self):
        script = ": > began$RESTART_COUNT; " + self.PRINT + "exit 3"
        with self.start(script, "--max-restarts", "2") as tree:
            self.assertTrue(wait_for(lambda: self.is_there("began2")), "it waits for the reader")
            code, output, error = tree.finish()
        self.assertEqual(code, 3, error)
        # Ranks that fail at the same time may be ended before they have printed all.
        lines = re.findall(r"^\[\d\] (x+)$", output, re.M)
        self.assertGreaterEqual(len(lines), 3 * 3000)

    def test_the_last_output_does_not_hold_up_a_stop(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            report = f"report{number}"
            with self.start(self.PRINT, "--report", report, stderr=subprocess.PIPE) as tree:
                self.assertTrue(wait_for(lambda name=report: self.is_there(name)))  # the job has ended
                time.sleep(0.1)  # what it waits for now is the reader
                self.assertIsNone(tree.process.poll())
                os.kill(tree.pid, number)
                self.assertEqual(tree.process.wait(timeout=8), 0)
                self.assertIn(b"2 ranks on this machine", tree.process.stderr.read())

    def test_what_it_missed_is_there_when_it_reads_on(self):
        with self.start(self.PRINT, "--report", "report") as tree:
            self.assertTrue(wait_for(lambda: self.is_there("report")))
            time.sleep(1.2)  # longer than the patience with a reader during a job
            code, output, _ = tree.finish()
        self.assertEqual((code, output.count("\n")), (0, 2 * 3000))


class OutputTest(EndingTest):
    def test_all_that_an_enlarged_pipe_holds_is_shown(self):
        # More than the launcher reads at once, in one piece, right before the end.
        script = ("import fcntl, os; fcntl.fcntl(1, 1031, 1 << 20); "
                  "os._exit(0 if os.write(1, (b'x' * 99 + b'\\n') * 10000) == 1000000 else 1)")
        for _ in range(20):
            with self.start_python(script, ranks=1) as tree:
                code, output, _ = tree.finish()
            self.assertEqual((code, output.count("\n")), (0, 10000))

    def test_lines_of_the_launcher_begin_on_a_new_line(self):
        with self.start("printf 'step 7' >&2; exit 3", ranks=1) as tree:
            error = tree.finish()[2]
        self.assertRegex(error, r"\nstep 7\nlockstep: rank 0 \(pid \d+\) exited with code 3")

    def test_a_last_line_without_newline_is_filtered_too(self):
        for ranks in (1, 2):
            with self.start("echo first; echo second; printf 'first again'", "--log-dir", "logs", ranks=ranks,
                            *("--duplicate-stdout-filters", "first")) as tree:
                self.assertEqual(tree.finish()[0], 0)
            with open(self.path("logs/filtered_stdout.log"), encoding="ascii") as file:
                self.assertEqual(sorted(file.read().splitlines()), sorted(
                    f"[{rank}] {line}" for rank in range(ranks) for line in ("first", "first again")))


class GroupTest(EndingTest):
    # fault: 50
    def test_a_rank_in_another_process_group_ends_too(self):
        script = """import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.environ["RANK"] == "1":
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        time.sleep(1000)
    while os.getpgid(pid) != pid:
        time.sleep(0.01)
    os.setpgid(0, pid)
    open("moved", "w").close()
    time.sleep(1000)
while not os.path.exists("moved"):
    time.sleep(0.01)
os._exit(3)"""
        with self.start_python(script, "--shutdown-timeout", "0.2") as tree:
            self.assertTrue(wait_for(lambda: self.is_there("moved")))
            code, _, error = tree.finish(8)
            self.assertEqual(code, 3, error)
            self.assertEqual(tree.survivors(), [])

    # fault: 50
    def test_a_program_behind_a_shell_has_the_grace_too(self):
        save = """import signal, sys, time
def save(*unused):
    time.sleep(0.5)
    print("saved")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("ready")
time.sleep(1000)"""
        command = self.job("bash", "-c", 'export X=1; "$0" -c "$1"; echo finished', sys.executable, save)
        with Tree(command, cwd=self.folder) as tree:
            tree.read_lines(2)
            os.kill(tree.pid, signal.SIGTERM)
            started = time.monotonic()
            code, output, error = tree.finish()
            self.assertEqual((code, sorted(output.splitlines())), (75, ["[0] saved", "[1] saved"]), error)
            self.assertLess(time.monotonic() - started, 4)
            self.assertNotIn("killed", error.replace("repeat to kill", ""))

    # fault: 50
    def test_a_program_behind_a_shell_does_not_outlive_the_grace(self):
        script = ("import signal, time; signal.signal(signal.SIGTERM, lambda *unused: print('no')); print('ready')\n"
                  "while True: time.sleep(1)")
        command = self.job("bash", "-c", 'export X=1; "$0" -c "$1"; echo finished', sys.executable, script,
                           options=("--stop-grace", "0.7"))
        with Tree(command, cwd=self.folder) as tree:
            tree.read_lines(2)
            os.kill(tree.pid, signal.SIGTERM)
            started = time.monotonic()
            code, output, error = tree.finish()
            self.assertEqual((code, sorted(output.splitlines())), (75, ["[0] no", "[1] no"]), error)
            self.assertTrue(0.6 < time.monotonic() - started < 4)
            self.assertEqual(error.count("did not stop in time and was killed"), 2, error)
            self.assertEqual(tree.survivors(), [])

    def test_what_ignores_the_signal_is_not_waited_for(self):
        with self.start("(trap '' TERM; exec sleep 1000) & echo ready; wait") as tree:
            tree.read_lines(2)
            os.kill(tree.pid, signal.SIGTERM)
            self.assertEqual(tree.finish(8)[0], 75)
            self.assertEqual(tree.survivors(), [])


class LeftBehindTest(EndingTest):
    """Processes that ranks have left behind, which are told by a file with their pid."""

    # Becomes a daemon; what follows is what it does.
    DAEMON = """import os, signal, sys, time
if os.fork():
    while not os.path.exists("pid"): time.sleep(0.01)
    sys.exit(0)
os.setsid()
if os.fork(): os._exit(0)
def tell():
    with open("pid.new", "w") as file: file.write(str(os.getpid()))
    os.rename("pid.new", "pid")
"""

    def pid(self):
        with open(self.path("pid"), encoding="ascii") as file:
            return int(file.read())

    def is_gone(self):
        return (process_state(self.pid()) or "Z")[0] == "Z"

    def end_if_there(self):
        if not self.is_gone():
            os.kill(self.pid(), signal.SIGKILL)

    def assert_ended(self, script):
        with self.start_python(self.DAEMON + script, ranks=1) as tree:
            code, _, error = tree.finish()
            self.assertEqual(code, 0, error)
            gone = wait_for(self.is_gone, 0.5)
            self.end_if_there()
            self.assertTrue(gone, "the daemon lives")
            self.assertEqual(tree.survivors(), [])
        return error

    # fault: 9
    def test_a_daemon_that_has_overwritten_its_environment_is_ended(self):
        error = self.assert_ended("""fields = open("/proc/self/stat").read().rsplit(")", 1)[1].split()
begin, end = int(fields[47]), int(fields[48])
with open("/proc/self/mem", "r+b", buffering=0) as memory:
    memory.seek(begin)
    memory.write(b"worker: idle".ljust(end - begin, b"\\0"))
tell()
time.sleep(1000)""")
        self.assertIn("1 process that the ranks had left behind was ended", error)

    # fault: 9
    def test_processes_that_fork_and_end_again_and_again_are_ended(self):
        # So often that it takes longer than the search, also beside other load, and yet comes to an end.
        chain = """tell()
for i in range(20000):
    if os.fork(): os._exit(0)
    {}
    with open("steps", "a") as file: file.write(".")
    time.sleep(0.0005)"""
        def steps():  # none if it was ended before the first
            return os.path.getsize(self.path("steps")) if os.path.exists(self.path("steps")) else 0

        for step in ("pass", "os.setsid()") * 5:
            with self.start_python(self.DAEMON + chain.format(step), ranks=1) as tree:
                self.assertEqual(tree.finish()[0], 0)
                done = steps()
                self.assertEqual(tree.survivors(), [])
            self.assertFalse(wait_for(lambda: steps() > done, 0.1))
            os.remove(self.path("pid"))

    def test_a_daemon_without_any_environment_stays(self):
        with self.start("env -i setsid sh -c 'echo $$ > pid.new; mv pid.new pid; exec sleep 1000' & "
                        "while [ ! -e pid ]; do sleep 0.01; done", ranks=1) as tree:
            self.assertEqual(tree.finish()[0], 0)
            gone = self.is_gone()
            self.end_if_there()
            self.assertFalse(gone)

    def test_the_first_process_of_a_container_reaps_orphans(self):
        if os.geteuid() != 0 or not shutil.which("unshare"):
            self.skipTest("no root, or no unshare")
        # Until nothing is left of them, not even a zombie, or 10 s have passed.
        script = ("for i in 1 2 3 4 5; do (sleep 0.1 &); done; n=0; "
                  "while sleep 0.1; grep -qs '^Name:.sleep' /proc/[0-9]*/status && [ $n -lt 100 ]; do n=$((n + 1)); "
                  "done; grep -ls '^State:.Z' /proc/[0-9]*/status; echo end")
        with Tree(["unshare", "-pf", "--mount-proc", *self.job("sh", "-c", script, ranks=1)]) as tree:
            code, output, error = tree.finish()
        self.assertEqual((code, output), (0, "end\n"), error)


class CauseTest(EndingTest):
    def stop(self, script):
        """(exit code, rank of the cause or None, the launcher's report in lines) of a job that is asked to stop."""
        with self.start(script, "--report", "report") as tree:
            tree.read_lines(2)
            os.kill(tree.pid, signal.SIGTERM)
            code = tree.finish()[0]
        with open(self.path("report"), encoding="utf-8") as file:
            attempt = json.load(file)["attempts"][0]
        return code, attempt["cause"] and attempt["cause"]["rank"], attempt["report"]

    def test_what_the_launcher_has_killed_is_told_so(self):
        script = "test $RANK = 0 && exit 3; trap '' TERM; echo ready; while :; do sleep 0.05; done"
        with self.start(script, "--report", "report", "--shutdown-timeout", "0.1") as tree:
            tree.finish()
        with open(self.path("report"), encoding="utf-8") as file:
            rank = json.load(file)["attempts"][0]["ranks"][1]
        self.assertEqual((rank["killed"], rank["failure"]), (True, "was killed by SIGKILL (by the launcher)"))

    # fault: 50
    def test_a_rank_that_fails_while_it_saves_is_the_cause(self):
        wait = "echo ready; while :; do sleep 0.05; done"
        for end, code in (("ulimit -c 0; kill -SEGV $$", 139), ("exit 5", 5)):
            script = f"trap 'test $RANK = 1 || exit 0; {end}' TERM; {wait}"
            self.assertEqual(self.stop(script)[:2], (code, 1))
        for end in ("exit 143", "exit 75", "trap - TERM; kill -TERM $$"):
            code, cause, report = self.stop(f"trap '{end}' TERM; {wait}")
            self.assertEqual((code, cause, report), (75, None, ["stopped by SIGTERM"]))

    # fault: 50
    def test_a_save_that_fails_on_all_ranks_is_a_failure_too(self):
        for ranks in (1, 2):
            script = 'trap "echo could not save >&2; exit 1" TERM; echo ready; sleep 1000 & wait'
            with self.start(script, ranks=ranks) as tree:
                tree.read_lines(ranks)
                os.kill(tree.pid, signal.SIGTERM)
                code, _, error = tree.finish()
            self.assertEqual(code, 1, error)
            self.assertRegex(error, r"lockstep: rank \d \(pid \d+\) exited with code 1")
            self.assertIn("  | could not save\n", error)
            self.assertIn("stopped by SIGTERM", error)


if __name__ == "__main__":
    LOCKSTEP = os.path.abspath(sys.argv.pop(1))
    unittest.main()
