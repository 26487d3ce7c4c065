"""Restarts of `lockstep run`: restart_test.py <lockstep> <hello_all_reduce, or nothing>"""

import contextlib
import json
import os
import random
import re
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import unittest

from processes import Tree, wait_for

LOCKSTEP = ""
HELLO = ""


class LauncherTest(unittest.TestCase):
    def run_tree(self, script, *options, ranks=2, timeout=60, **more):
        command = [LOCKSTEP, "run", "--nproc-per-node", str(ranks), *options, "sh", "-c", script]
        with Tree(command, **more) as tree:
            result = tree.finish(timeout)
            self.assertEqual(tree.survivors(), [], "left behind")
            return result

    def report_of(self, script, *options, ranks=2, **more):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "report.json")
            code, _, error = self.run_tree(script, "--report", path, *options, ranks=ranks, **more)
            self.assertEqual(os.listdir(folder), ["report.json"], error)
            with open(path, encoding="utf-8") as file:
                return code, json.load(file), error


class RestartTest(LauncherTest):
    # fault: 42
    # feature: J-10
    def test_a_job_is_restarted_until_it_ends_well(self):
        script = ('echo $RESTART_COUNT $TORCHELASTIC_RESTART_COUNT $TORCHELASTIC_MAX_RESTARTS $LOCKSTEP_GENERATION; '
                  'test $RANK = 0 || test $RESTART_COUNT -ge 2 || exit 3')
        code, output, error = self.run_tree(script, "--max-restarts", "5")
        self.assertEqual(code, 0, error)
        self.assertEqual(sorted(set(output.splitlines()), key=lambda line: (line[4:], line)),
                         [f"[{rank}] {n} {n} 5 {n}" for n in range(3) for rank in (0, 1)])
        self.assertEqual(re.findall(r"restart \d of \d", error), ["restart 1 of 5", "restart 2 of 5"])
        self.assertEqual(error.count("exited with code 3"), 2, error)

    # feature: J-10
    def test_the_last_failure_counts_once_restarts_are_used_up(self):
        code, output, error = self.run_tree("echo began; exit $((3 + RESTART_COUNT))", "--max-restarts=2", ranks=1)
        self.assertEqual((code, output.count("began")), (5, 3), error)

    def test_without_restarts_the_first_failure_ends_the_job(self):
        code, output, _ = self.run_tree("echo began; exit 3", ranks=1)
        self.assertEqual((code, output), (3, "began\n"))

    # fault: 42
    def test_nothing_of_an_attempt_is_left_when_the_next_begins(self):
        # Children in the rank's group, in one of their own and in a session of their own, of a rank that fails and of
        # one that is stopped.
        nap = f"sleep 1000.{os.getpid()}"  # a zombie has no command line
        script = (f'if test $RESTART_COUNT = 0; then {nap} & timeout 1000 {nap} & setsid {nap} & '
                  'test $RANK = 0 && wait; exit 9; fi; '
                  'for file in /proc/[0-9]*/cmdline; do tr "\\0" " " < $file; echo; done 2> /dev/null | '
                  f'grep "^sleep {nap[6:]}"; exit 0')
        code, output, error = self.run_tree(script, "--max-restarts", "1")
        self.assertEqual((code, output), (0, ""), error)

    def test_each_attempt_has_its_store_and_recordings(self):
        script = 'echo "$LOCKSTEP_STORE $MASTER_PORT $LOCKSTEP_JOB_ID"; test $RESTART_COUNT = 2'
        code, output, _ = self.run_tree(script, "--max-restarts", "2", ranks=1)
        self.assertEqual(code, 0)
        stores, ports, jobs = zip(*(line.split() for line in output.splitlines()))
        self.assertEqual((len(stores), len(set(jobs))), (3, 1))

    def test_log_files_of_each_attempt(self):
        with tempfile.TemporaryDirectory() as folder:
            logs = os.path.join(folder, "logs")
            code, _, error = self.run_tree("echo attempt $RESTART_COUNT of $RANK; test $RESTART_COUNT = 2",
                                           "--max-restarts", "2", "--log-dir", logs)
            self.assertEqual(code, 0, error)
            for attempt in range(3):
                for rank in range(2):
                    inner = f"attempt_{attempt}" if attempt else ""
                    with open(os.path.join(logs, inner, f"rank_{rank}.stdout.log"), encoding="ascii") as file:
                        self.assertEqual(file.read(), f"attempt {attempt} of {rank}\n")

    # fault: 42
    def test_a_collective_works_in_the_attempt_after_a_kill(self):
        if not HELLO:
            self.skipTest("built without libtorch")
        script = f'test $RESTART_COUNT = 0 && test $RANK = 1 && kill -9 $$; exec {HELLO}'
        code, output, error = self.run_tree(script, "--max-restarts", "1", ranks=3)
        self.assertEqual(code, 0, error)
        self.assertEqual(len(re.findall(r"rank \d of 3", output)), 3, output)
        self.assertRegex(error, r"rank 1 \(pid \d+\) was killed by SIGKILL")

    def test_each_attempt_has_its_flight_recordings(self):
        if not HELLO:
            self.skipTest("built without libtorch")
        with tempfile.TemporaryDirectory() as folder:
            code, _, error = self.run_tree(f"{HELLO}; test $RESTART_COUNT = 1", "--max-restarts=1", "--flight", folder)
            self.assertEqual(code, 0, error)
            self.assertEqual(sorted(os.listdir(folder)), ["attempt_1", "rank_0.flight", "rank_1.flight"])
            self.assertEqual(sorted(os.listdir(os.path.join(folder, "attempt_1"))), ["rank_0.flight", "rank_1.flight"])

    def trace(self, state, *options):
        command = [LOCKSTEP, "trace", "--json", "--last", "1", *options]
        done = subprocess.run(command, env={**os.environ, "XDG_STATE_HOME": state}, capture_output=True, text=True,
                              timeout=60)
        return done.returncode, [rank["ended"] for rank in json.loads(done.stdout or '{"ranks": []}')["ranks"]], \
            done.stderr

    def test_recordings_of_each_failure_stay_and_the_first_is_traced_unless_another_is_named(self):
        if not HELLO:
            self.skipTest("built without libtorch")
        ended = [[f"exited with code {code}"] for code in (3, 4, 5)]
        with tempfile.TemporaryDirectory() as state:
            code, _, error = self.run_tree(f"{HELLO}; exit $((3 + RESTART_COUNT))", "--max-restarts=2", ranks=1,
                                           environment={"XDG_STATE_HOME": state})
            self.assertEqual(code, 5, error)
            folders = re.findall(r"to see where each rank was: lockstep trace --flight (\S+)", error)
            job = folders[0]
            self.assertEqual(folders, [job, f"{job}/attempt_1", f"{job}/attempt_2"])
            self.assertEqual([self.trace(state, "--flight", folder)[:2] for folder in folders],
                             [(0, how) for how in ended])
            code, how, said = self.trace(state)  # of the newest job
            self.assertEqual((code, how), (0, ended[0]), said)
            self.assertIn(f"lockstep: showing the recordings in {job}\n", said)
            self.assertIn("this is attempt 0; later attempts also left recordings: 1, 2; show the last one with "
                          f"lockstep trace --flight {job}/attempt_2\n", said)
            shutil.rmtree(job)
            code, _, said = self.trace(state)
            self.assertEqual(code, 1)
            self.assertIn(f"no job of this user left flight recordings in '{state}/lockstep/flight'", said)

    def test_a_thousand_restarts_in_a_row(self):
        restarts = os.environ.get("LOCKSTEP_TEST_RESTARTS", "1000")
        code, _, error = self.run_tree(f"test $RESTART_COUNT = {restarts}", "--max-restarts", restarts, ranks=1,
                                       timeout=100)
        self.assertEqual(code, 0, error[-2000:])
        self.assertIn(f"restart {restarts} of {restarts}", error)

    # fault: 50
    def test_a_signal_at_any_moment_of_restarts_stops_the_launcher(self):
        seed = int(os.environ.get("LOCKSTEP_TEST_SEED", "7"))
        moments = random.Random(seed)
        for turn in range(int(os.environ.get("LOCKSTEP_TEST_TURNS", "25"))):
            number = moments.choice((signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
            command = [LOCKSTEP, "run", "--nproc-per-node=2", "--max-restarts", "1000000", "sh", "-c", "exit 3"]
            with Tree(command, stdout=subprocess.DEVNULL) as tree:
                tree.process.stderr.readline()
                time.sleep(moments.uniform(0, 0.06))  # the moment is what is tested
                os.kill(tree.pid, number)
                code, _, error = tree.finish(20)
                self.assertIn(code, (3, 75, -number), f"seed {seed}, turn {turn}: {error[-500:]}")
                self.assertEqual(tree.survivors(), [], f"seed {seed}, turn {turn}")


class ReportTest(LauncherTest):
    def stranger_file(self, path):
        """As somebody would leave it who wants to change a report, or read what is secret in it."""
        with open(path, "w", encoding="ascii"):
            os.chmod(path, 0o666)
        if os.geteuid() == 0:
            os.chown(path, 65534, 65534)

    def check_report(self, path, mode=None):
        status = os.lstat(path)
        self.assertTrue(stat.S_ISREG(status.st_mode))
        self.assertEqual(status.st_uid, os.geteuid())
        if mode is not None:
            self.assertEqual(stat.S_IMODE(status.st_mode), mode)
        with open(path, encoding="utf-8") as file:
            self.assertEqual(json.load(file)["exit_code"], 0)

    # fault: 1
    def test_the_report_names_the_cause_of_each_attempt(self):
        script = 'test $RANK = 0 || { echo "no such model" >&2; kill -9 $$; }; sleep 100'
        code, report, error = self.report_of(script, "--max-restarts", "1", "--rdzv-id", "train")
        self.assertEqual((code, report["exit_code"], report["run_id"], report["stopped_by"]), (137, 137, "train", None))
        self.assertEqual(len(report["attempts"]), 2)
        for attempt in report["attempts"]:
            cause = attempt["cause"]
            self.assertEqual((cause["rank"], cause["signal"], cause["exit_code"]), (1, "SIGKILL", None), error)
            self.assertEqual(cause["last_lines"], ["no such model"])
            self.assertEqual([rank["told_to_stop"] for rank in attempt["ranks"]], [True, False])

    # fault: 50
    def test_a_rank_that_the_launcher_killed_was_killed_by_nobody_else(self):
        with tempfile.TemporaryDirectory() as folder:
            script = (f"trap '' TERM; test $RANK = 0 || {{ while [ ! -e {folder}/0 ]; do sleep 0.01; done; exit 3; }}; "
                      f": > {folder}/0; while :; do sleep 0.1; done")
            _, report, error = self.report_of(script, "--shutdown-timeout", "0.2")
        killed, cause = report["attempts"][0]["ranks"]
        self.assertEqual((killed["killed"], killed["failure"], killed["out_of_memory"]),
                         (True, "was killed by SIGKILL (by the launcher)", False), error)
        self.assertEqual((cause["failure"], cause["host"]), ("exited with code 3", os.uname().nodename))

    def test_the_report_of_a_job_that_ends_well_has_no_cause(self):
        code, report, _ = self.report_of("true")
        self.assertEqual((code, report["exit_code"], report["attempts"][0]["cause"]), (0, 0, None))

    def test_a_restart_that_cannot_be_made_leaves_the_cause_and_the_report(self):
        with tempfile.TemporaryDirectory() as folder:
            logs, program = os.path.join(folder, "logs"), os.path.join(folder, "program")
            os.mkdir(logs)
            with open(os.path.join(logs, "attempt_1"), "w", encoding="ascii"):
                pass
            for options, script, text in ((["--log-dir", logs], "", "cannot make the log directory"),
                                          ([], f"rm {program}; ", f"cannot execute '{program}': No such file")):
                with open(program, "w", encoding="ascii") as file:
                    file.write(f"#!/bin/sh\n{script}echo why >&2; exit 5\n")
                os.chmod(program, 0o755)
                path = os.path.join(folder, "report.json")
                command = [LOCKSTEP, "run", "--max-restarts", "2", "--report", path, *options, program]
                with Tree(command) as tree:
                    code, _, error = tree.finish()
                    self.assertEqual(tree.survivors(), [], "left behind")
                self.assertEqual(code, 5, error)
                self.assertRegex(error, f"restart 1 of 2\nlockstep: rank 0 could not be started: {text}")
                with open(path, encoding="utf-8") as file:
                    report = json.load(file)
                self.assertEqual((report["exit_code"], len(report["attempts"])), (5, 2))
                self.assertEqual(report["attempts"][0]["cause"]["last_lines"], ["why"])

    @unittest.skipIf("LOCKSTEP_TEST_SANITIZED" in os.environ, "a sanitizer takes more memory")
    def test_without_a_thread_for_the_store_the_launcher_says_so(self):
        def no_threads():
            resource.setrlimit(resource.RLIMIT_STACK, (1 << 32, 1 << 32))  # what a thread would get
            resource.setrlimit(resource.RLIMIT_AS, (1 << 31, 1 << 31))
        code, _, error = self.run_tree("true", preexec_fn=no_threads)
        self.assertEqual(code, 3, error)
        self.assertRegex(error, "lockstep: .*Resource temporarily unavailable .is the limit on processes reached")

    def test_a_report_that_cannot_be_written_does_not_change_the_exit_code(self):
        with tempfile.TemporaryDirectory() as folder:
            inner = os.path.join(folder, "inner")
            os.mkdir(inner)
            code, _, error = self.run_tree(f"rmdir {inner}; exit 3", "--report", inner + "/report.json", ranks=1)
            self.assertEqual(code, 3)
            self.assertIn(f"warning: writing the report '{inner}/report.json': the directory {inner} does not", error)
        code, _, error = self.run_tree("true", "--report", "/dev/full")
        self.assertEqual(code, 0)
        self.assertIn("warning: writing the report '/dev/full'", error)

    def test_a_report_that_can_never_be_written_is_told_before_anything_starts(self):
        for path, folder in (("/nowhere/report.json", "/nowhere"), ("/dev/null/report.json", "/dev/null")):
            code, output, error = self.run_tree("echo began", "--report", path)
            self.assertEqual((code, output), (2, ""), error)
            self.assertIn(f"writing the report '{path}': the directory {folder} does not exist", error)

    def test_a_report_to_standard_output_is_behind_what_is_there(self):
        with tempfile.TemporaryDirectory() as folder:
            link = os.path.join(folder, "stdout")  # as /dev/stdout is, which root must not lose by this test
            os.symlink("/proc/self/fd/1", link)
            for path in (link, "/dev/fd/1", "/proc/self/fd/1"):
                with tempfile.TemporaryFile("w+") as file:
                    file.write("before\n")
                    file.flush()
                    code, _, error = self.run_tree("echo out", "--report", path, ranks=1, stdout=file)
                    file.seek(0)
                    output = file.read()
                self.assertEqual((code, output[:11]), (0, "before\nout\n"), error)
                self.assertEqual(json.loads(output[11:])["exit_code"], 0)
                code, output, error = self.run_tree("true", "--report", path)
                self.assertEqual((code, json.loads(output)["exit_code"]), (0, 0), error)
            self.assertEqual(os.readlink(link), "/proc/self/fd/1")

    def test_a_long_report_goes_through_a_pipe(self):
        script = "i=0; while [ $i -lt 11 ]; do printf '%02000d\\n' $i >&2; i=$((i+1)); done; exit 3"
        code, output, error = self.run_tree(script, "--report", "/dev/stdout", "--max-restarts", "9", ranks=1)
        self.assertEqual((code, json.loads(output)["exit_code"]), (3, 3), error[-500:])
        self.assertGreater(len(output), 1 << 17)

    def test_a_report_goes_where_a_link_leads(self):
        with tempfile.TemporaryDirectory() as folder:
            link, there = os.path.join(folder, "link.json"), os.path.join(folder, "there.json")
            os.symlink("there.json", link)
            for _ in range(2):  # the file is not there, and it is
                self.run_tree("true", "--report", link)
                self.assertEqual(os.readlink(link), "there.json")
                with open(there, encoding="utf-8") as file:
                    self.assertEqual(json.load(file)["exit_code"], 0)
                self.assertEqual(sorted(os.listdir(folder)), ["link.json", "there.json"])

    def test_nothing_is_left_of_a_report_that_cannot_be_written(self):
        def no_large_files():
            resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "report.json")
            with open(path, "w", encoding="ascii") as file:
                file.write("of another job")
            code, _, error = self.run_tree("exit 3", "--report", path, preexec_fn=no_large_files)
            self.assertEqual((code, os.listdir(folder)), (3, ["report.json"]), error)
            self.assertRegex(error, f"warning: saving {path}: writing .*: File too large")
            with open(path, encoding="ascii") as file:
                self.assertEqual(file.read(), "of another job")

    # fault: S9
    def test_what_others_put_beside_a_report_changes_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            path, beside = os.path.join(folder, "report.json"), os.path.join(folder, "report.json.new")
            for put in (lambda: os.mkfifo(beside), lambda: self.stranger_file(beside),
                        lambda: os.symlink(os.path.join(folder, "elsewhere"), beside)):
                put()
                before = os.lstat(beside)
                code, _, error = self.run_tree("true", "--report", path, ranks=1, timeout=20)
                self.assertEqual(code, 0, error)
                self.check_report(path)
                self.assertEqual(os.lstat(beside), before)
                self.assertEqual(sorted(os.listdir(folder)), ["report.json", "report.json.new"])
                os.unlink(beside)
                os.unlink(path)

    # fault: S9
    def test_a_report_takes_neither_mode_nor_owner_of_the_file_that_was_there(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "report.json")
            self.stranger_file(path)
            code, _, error = self.run_tree("true", "--report", path, ranks=1, umask=0o027)
            self.assertEqual(code, 0, error)
            self.check_report(path, 0o640)

    # fault: S9
    def test_a_report_goes_through_no_link_and_no_fifo_of_another_user(self):
        if os.geteuid() != 0:
            self.skipTest("only root can make another user's files")
        with tempfile.TemporaryDirectory() as folder:
            precious, fifo, link = (os.path.join(folder, name) for name in ("precious", "fifo", "link"))
            with open(precious, "w", encoding="ascii") as file:
                file.write("ten years of work")
            os.symlink(precious, link)
            os.mkfifo(fifo)
            for path, what in ((link, "a link"), (fifo, "a FIFO")):
                os.chown(path, 65534, 65534, follow_symlinks=False)
                reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
                try:
                    code, _, error = self.run_tree("exit 3", "--report", path, ranks=1, timeout=20)
                    self.assertEqual(os.read(reader, 1), b"")
                finally:
                    os.close(reader)
                self.assertEqual(code, 3, error)
                self.assertRegex(error, f"warning: writing the report '{path}': {path} is {what}.* of user 65534")
            with open(precious, encoding="ascii") as file:
                self.assertEqual(file.read(), "ten years of work")

    def test_a_fifo_is_written_to_if_somebody_reads_it_and_else_an_error_at_once(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "fifo")
            os.mkfifo(path)
            code, _, error = self.run_tree("true", "--report", path, ranks=1, timeout=8)
            self.assertEqual(code, 0, error)
            self.assertIn(f"warning: writing the report '{path}': no process reads it", error)
            reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            try:
                self.run_tree("true", "--report", path, ranks=1)
                self.assertEqual(json.loads(os.read(reader, 1 << 16))["exit_code"], 0)
            finally:
                os.close(reader)

    # fault: S9
    def test_log_files_go_through_nothing_that_others_have_put_there(self):
        with tempfile.TemporaryDirectory() as folder:
            log, precious = os.path.join(folder, "rank_0.stdout.log"), os.path.join(folder, "precious")
            with open(precious, "w", encoding="ascii") as file:
                file.write("ten years of work")
            for put in (lambda: os.symlink(precious, log), lambda: self.stranger_file(log)):
                put()
                code, _, error = self.run_tree("echo said", "--log-dir", folder, ranks=1)
                self.assertEqual(code, 0, error)
                self.assertTrue(stat.S_ISREG(os.lstat(log).st_mode))
                self.assertEqual(os.stat(log).st_uid, os.geteuid())
                with open(log, encoding="ascii") as file:
                    self.assertEqual(file.read(), "said\n")
                os.unlink(log)
            with open(precious, encoding="ascii") as file:
                self.assertEqual(file.read(), "ten years of work")
            os.mkfifo(log)
            code, _, error = self.run_tree("echo said", "--log-dir", folder, ranks=1, timeout=20)
            self.assertEqual(code, 2, error)
            self.assertIn(f"lockstep: cannot write '{log}': this is a FIFO, which is not replaced; name a file", error)

    # fault: S9
    def test_the_error_for_a_launcher_around_this_one_goes_into_a_file_of_its_own(self):
        with tempfile.TemporaryDirectory() as folder:
            path, precious = os.path.join(folder, "error.json"), os.path.join(folder, "precious")
            with open(precious, "w", encoding="ascii") as file:
                file.write("ten years of work")
            os.symlink(precious, path)
            script = "echo 'RuntimeError: no such model' >&2; exit 3"
            environment = {"TORCHELASTIC_ERROR_FILE": path}
            code, _, error = self.run_tree(script, ranks=1, environment=environment)
            self.assertEqual(code, 3, error)
            with open(path, encoding="utf-8") as file:
                self.assertIn("code 3", json.load(file)["message"]["extraInfo"]["py_callstack"])
            with open(precious, encoding="ascii") as file:
                self.assertEqual(file.read(), "ten years of work")
            os.unlink(path)
            os.mkfifo(path)
            code, _, error = self.run_tree(script, ranks=1, environment=environment, timeout=20)
            self.assertEqual(code, 3, error)
            self.assertRegex(error, "TORCHELASTIC_ERROR_FILE names a file that cannot be written: .* a FIFO")

    def test_what_a_rank_writes_into_its_error_file_is_its_error(self):
        script = ('test $RANK = 0 && sleep 100; echo other words >&2; '
                  """printf '{"message": {"message": "ValueError: bad step"}}' > $TORCHELASTIC_ERROR_FILE; exit 1""")
        _, report, error = self.report_of(script)
        self.assertEqual(report["attempts"][0]["cause"]["error"], "ValueError: bad step")
        self.assertIn("its error: ValueError: bad step", error)

    def test_an_error_that_was_handled_is_not_the_cause(self):
        handled = "printf 'Traceback (most recent call last):\\n  File \"a.py\"\\nKeyError: 1\\n' >&2; "
        for script, error in ((handled + "kill -9 $$", None), (handled + "exit 5", "KeyError: 1"),
                              (handled + "i=0; while [ $i -lt 200 ]; do echo $i >&2; i=$((i+1)); done; exit 5", None)):
            _, report, said = self.report_of(script, ranks=1)
            self.assertEqual(report["attempts"][0]["cause"]["error"], error, said)
            self.assertEqual("its error: KeyError" in said, error is not None, said)

    def test_the_error_is_passed_on_to_a_launcher_around_this_one(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "error.json")
            code, _, _ = self.run_tree("exit 7", ranks=1, environment={"TORCHELASTIC_ERROR_FILE": path})
            self.assertEqual(code, 7)
            with open(path, encoding="utf-8") as file:
                message = json.load(file)["message"]
            self.assertRegex(message["message"], r"rank 0 \(pid \d+\) exited with code 7")
            self.assertEqual(message["errorCode"], 7)

    def test_a_launcher_around_this_one_learns_the_error(self):
        inner = f"{LOCKSTEP} run --nproc-per-node 1 sh -c 'exit 7'"
        _, report, _ = self.report_of(f"exec {inner}", ranks=1)
        self.assertRegex(report["attempts"][0]["cause"]["error"], r"rank 0 \(pid \d+\) exited with code 7")


def is_removed(cgroup):
    try:
        os.rmdir(cgroup)
    except OSError:  # a process of it has not quite ended
        return False
    return True


@contextlib.contextmanager
def small_cgroup(test):
    """A cgroup with 40 MB of memory, of either version; where none can be made, the test is skipped."""
    for parent, limits in (("/sys/fs/cgroup/memory", ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")),
                           ("/sys/fs/cgroup", ("memory.max", "memory.swap.max"))):
        folder = os.path.join(parent, f"lockstep-test-{os.getpid()}")
        try:
            os.mkdir(folder)
        except OSError:
            continue
        try:
            for name, value in zip(limits, ("40000000", "0" if limits[1] == "memory.swap.max" else "40000000")):
                if os.path.exists(os.path.join(folder, name)) or name == limits[0]:
                    with open(os.path.join(folder, name), "w", encoding="ascii") as file:
                        file.write(value)
            yield folder
            return
        except PermissionError:
            continue
        finally:
            wait_for(lambda: is_removed(folder))
    test.skipTest("no memory cgroup can be made here")


class OutOfMemoryTest(LauncherTest):
    # fault: 8
    def test_a_rank_in_a_cgroup_of_its_own_that_needs_too_much_memory(self):
        with small_cgroup(self) as cgroup:
            script = (f"echo $$ > {cgroup}/cgroup.procs; "
                      f"exec {sys.executable} -c 'x = b\"x\" * (200 << 20)'")
            code, report, error = self.report_of(f"test $RESTART_COUNT = 0 || kill -9 $$; {script}",
                                                 "--max-restarts", "1", ranks=1)
        self.assertEqual(code, 137)
        first, second = (attempt["cause"] for attempt in report["attempts"])
        self.assertRegex(first["failure"], r"was killed by SIGKILL \((possibly for lack of memory|memory ran out): "
                                           r"the kernel has killed \d+ process.* for lack of it since the ranks were "
                                           r"started; it had used 0\.\d+ GiB at most\)", error)
        self.assertIn(first["out_of_memory"], (None, True))  # the machine has counted it, or the launcher's cgroup
        self.assertGreater(first["peak_bytes"], 1 << 20)
        # What killed the first attempt is not blamed for the end of the second one.
        self.assertEqual(second["failure"], "was killed by SIGKILL (sent by a process; the kernel has killed no "
                         "process for lack of memory since the ranks were started)")
        self.assertEqual(second["out_of_memory"], False)

    def test_a_rank_that_ends_otherwise_has_memory(self):
        _, report, _ = self.report_of("exit 3", ranks=1)
        self.assertEqual(report["attempts"][0]["cause"]["out_of_memory"], False)


class StopTest(LauncherTest):
    LOOP = "while :; do sleep 0.05; done"

    def stop(self, script, *options, ranks=2, signals=(signal.SIGTERM,)):
        with Tree([LOCKSTEP, "run", "--nproc-per-node", str(ranks), *options, "sh", "-c", script]) as tree:
            tree.read_lines(ranks)
            for number in signals:
                os.kill(tree.pid, number)
            started = time.monotonic()
            code, output, error = tree.finish()
            self.assertEqual(tree.survivors(), [])
            return code, output, error, time.monotonic() - started

    # fault: 50
    def test_a_stop_is_no_failure_and_is_not_restarted(self):
        for saved, expected in ((0, 75), (75, 75), (3, 3)):
            script = f"trap 'exit {saved}' TERM; echo ready; {self.LOOP}"
            code, output, error, _ = self.stop(script, "--max-restarts", "3")
            self.assertEqual((code, output, "restart" in error), (expected, "", False), error)

    def test_only_the_ranks_are_told_to_stop_and_not_what_they_have_started(self):
        # The child would end at the signal, and the rank reads from it after that.
        script = ("mkfifo $0/$RANK; sh -c 'read line; echo child' < $0/$RANK & exec 3> $0/$RANK; "
                  f"trap 'echo go >&3; wait; exit 0' TERM; echo ready; {self.LOOP}")
        with tempfile.TemporaryDirectory() as folder:
            code, output, error, _ = self.stop(script.replace("$0", folder))
        self.assertEqual((code, sorted(output.splitlines())), (75, ["[0] child", "[1] child"]), error)

    # fault: 50
    def test_who_does_not_stop_in_time_is_killed(self):
        code, _, error, seconds = self.stop(f"trap '' TERM; echo ready; {self.LOOP}", "--stop-grace", "0.3")
        self.assertEqual(code, 75)
        self.assertEqual(error.count("did not stop in time and was killed"), 2, error)
        self.assertLess(0.29, seconds)

    def test_the_same_signal_twice_at_once_is_one_request(self):
        script = f"trap 'echo asked; sleep 0.3; exit 0' TERM; echo ready; {self.LOOP}"
        code, output, error, _ = self.stop(script, signals=(signal.SIGTERM, signal.SIGTERM))
        self.assertEqual((code, sorted(output.splitlines())), (75, ["[0] asked", "[1] asked"]), error)
        self.assertNotIn("killed", error)

    def test_the_user_chooses_which_signals_are_requests_to_stop(self):
        script = f"trap 'echo asked; exit 0' USR1; echo ready; {self.LOOP}"
        code, output, error, _ = self.stop(script, "--signals-to-handle", "SIGUSR1,SIGTERM", ranks=1,
                                           signals=(signal.SIGUSR1,))
        self.assertEqual((code, output), (75, "asked\n"), error)


if __name__ == "__main__":
    LOCKSTEP = sys.argv[1]
    HELLO = sys.argv[2] if len(sys.argv) > 2 else ""
    unittest.main(argv=sys.argv[:1])
