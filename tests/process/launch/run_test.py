"""`lockstep run` with real processes: run_test.py <lockstep> <rendezvous_worker>"""

import base64
import collections
import ctypes
import errno
import os
import platform
import re
import resource
import shlex
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

from processes import Tree, process_state, wait_for

LOCKSTEP = ""
WORKER = ""


def shell(script, ranks, *options):
    return [LOCKSTEP, "run", "--nproc-per-node", str(ranks), *options, "sh", "-c", script]


class RunTest(unittest.TestCase):
    def run_tree(self, command, **options):
        with Tree(command, **options) as tree:
            result = tree.finish()
            self.assertEqual(tree.survivors(), [], "left behind")
            return result



class EnvironmentTest(RunTest):
    def environments(self, *options, ranks=2, **more):
        code, output, error = self.run_tree(shell("env", ranks, "--prefix", *options), **more)
        self.assertEqual(code, 0, error)
        found = collections.defaultdict(dict)
        for rank, name, value in re.findall(r"^\[(\d+)\] (\w+)=(.*)$", output, re.M):
            found[int(rank)][name] = value
        return found, error

    # feature: J-03
    def test_every_rank_knows_its_place(self):
        found, error = self.environments()
        cores = len(os.sched_getaffinity(0))
        for rank in range(2):
            expected = {"RANK": str(rank), "LOCAL_RANK": str(rank), "ROLE_RANK": str(rank), "WORLD_SIZE": "2",
                        "RESTART_COUNT": "0", "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0",
                        "LOCAL_WORLD_SIZE": "2", "ROLE_WORLD_SIZE": "2", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1",
                        "ROLE_NAME": "default", "MASTER_ADDR": "127.0.0.1", "LOCKSTEP_GENERATION": "0"}
            self.assertEqual({name: found[rank].get(name) for name in expected}, expected)
            self.assertRegex(found[rank]["LOCKSTEP_JOB_ID"], "^[0-9a-f]{16}$")
            self.assertRegex(found[rank]["LOCKSTEP_STORE"], r"^127\.0\.0\.1:\d+$")
            self.assertNotIn(found[rank]["MASTER_PORT"], (found[rank]["LOCKSTEP_STORE"].split(":")[1], "0"))
            self.assertGreaterEqual(int(found[rank]["OMP_NUM_THREADS"]), 1)
            self.assertLessEqual(int(found[rank]["OMP_NUM_THREADS"]), max(1, cores // 2))
        self.assertEqual(found[0]["LOCKSTEP_JOB_ID"], found[1]["LOCKSTEP_JOB_ID"])
        self.assertRegex(error, r"^lockstep: 2 ranks on this machine, \d+ threads? each \(\d+ cores?\)\n$")

    def test_copies_of_the_launcher_that_cannot_meet_are_refused(self):
        for variables, words in (({}, "does not say which host is the first"),
                                 ({"MPI_LOCALNRANKS": "2"}, "has started 2 copies of `lockstep run` on 1 host,")):
            environment = {"PMI_RANK": "0", "PMI_SIZE": "2", **variables}
            code, _, error = self.run_tree(shell("true", 1), environment=environment)
            self.assertEqual(code, 2, error)
            self.assertIn(words, error)
            code, _, error = self.run_tree(shell("true", 1), environment={**environment, "LOCKSTEP_LAUNCHER": "none"})
            self.assertEqual(code, 0, error)
            code, _, error = self.run_tree(shell("true", 1, "--standalone"), environment=environment)
            self.assertEqual(code, 0, error)

    def test_bound_ranks_have_cores_of_their_own(self):
        allowed = os.sched_getaffinity(0)
        script = "import os; print(sorted(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS'])"
        command = [LOCKSTEP, "run", "--nproc-per-node", "2", "--prefix", "--bind"]
        code, output, error = self.run_tree([*command, "core", sys.executable, "-c", script])
        self.assertEqual(code, 0, error)
        found = dict(re.findall(r"^\[(\d)\] \[([\d, ]+)\] \d+$", output, re.M))
        sets = [set(map(int, found[rank].split(", "))) for rank in "01"]
        self.assertTrue(all(cpus and cpus <= allowed for cpus in sets), output)
        if len(allowed) > 1:
            self.assertRegex(error, r"rank 0: CPUs [\d,-]+; rank 1: CPUs [\d,-]+\n")
        code, _, error = self.run_tree([*command, "cores", "true"])
        self.assertEqual(code, 2, error)
        self.assertIn("ranks cannot be bound to 'cores'; use core, socket, numa or none", error)

    def test_the_user_decides(self):
        found, error = self.environments("--env", "A=b=c", "--env", "OMP_NUM_THREADS=5", "--master-addr", "h",
                                         "--master_port", "4711")
        names = ("A", "OMP_NUM_THREADS", "MASTER_ADDR", "MASTER_PORT")
        self.assertEqual([found[1][name] for name in names], ["b=c", "5", "h", "4711"])
        self.assertIn("5 threads each, set by OMP_NUM_THREADS", error)
        found, _ = self.environments(ranks=1, environment={"OMP_NUM_THREADS": "3", "RANK": "9"})
        self.assertEqual((found[0]["OMP_NUM_THREADS"], found[0]["RANK"]), ("3", "0"))

    def test_a_job_in_a_restarted_rank_has_no_reason_of_its_own_yet(self):
        found, _ = self.environments(ranks=1, environment={"LOCKSTEP_RESTART_REASON": "of the job around it"})
        self.assertEqual(found[0]["LOCKSTEP_RESTART_REASON"], "")

    def test_a_rank_is_given_no_gpu_that_the_launcher_does_not_see(self):
        for visible, ranks, given in (("4,5", 2, ["[0] 0 4", "[1] 0 5"]), ("", 2, ["[0] 0 ", "[1] 0 "]),
                                      ("-1", 2, ["[0] 0 -1", "[1] 0 -1"])):
            code, output, error = self.run_tree(shell("echo $LOCAL_RANK $CUDA_VISIBLE_DEVICES", ranks,
                                                      "--virtual-local-rank"),
                                                environment={"CUDA_VISIBLE_DEVICES": visible})
            self.assertEqual((code, sorted(line.rstrip() for line in output.splitlines())),
                             (0, [line.rstrip() for line in given]), error)
        code, output, error = self.run_tree(shell("echo started", 3, "--virtual-local-rank"),
                                            environment={"CUDA_VISIBLE_DEVICES": "4,5"})
        self.assertEqual((code, output), (2, ""), error)
        self.assertIn("3 ranks need one GPU each (--virtual-local-rank), but CUDA_VISIBLE_DEVICES is '4,5', "
                      "which has 2", error)

    def test_the_store_listens_and_the_token_is_readable(self):
        script = "echo $LOCKSTEP_STORE; wc -c < /dev/fd/$LOCKSTEP_TOKEN_FD; cat"
        with Tree(shell(script, 1), stdin=subprocess.PIPE) as tree:
            store, token_bytes = tree.read_lines(2)
            host, port = store.split(":")
            socket.create_connection((host, int(port)), timeout=5).close()
            self.assertGreaterEqual(int(token_bytes), 32)
            self.assertEqual(tree.finish()[0], 0)

    def test_no_other_descriptor_is_inherited(self):
        # The token and the rank's own flight recording; the listing itself adds the next free number.
        _, output, _ = self.run_tree(shell("exec ls -l /proc/self/fd", 1))
        targets = re.findall(r"(\d+) -> (\S+)", output)
        expected = ("memfd:lockstep-token", "memfd:lockstep-flight", "/proc/")
        extra = [(fd, to) for fd, to in targets if int(fd) > 2 and not any(part in to for part in expected)]
        self.assertEqual(extra, [], output)
        self.assertEqual(output.count("memfd:lockstep-flight"), 1, output)

    def test_standard_input_goes_to_rank_0(self):
        with Tree(shell("cat; echo end", 2), stdin=subprocess.PIPE) as tree:
            tree.process.stdin.write(b"hello\n")
            self.assertEqual(sorted(tree.finish()[1].splitlines()), ["[0] end", "[0] hello", "[1] end"])


class ManyRanksTest(RunTest):
    # feature: B-01, L-06
    def test_64_ranks_form_a_world(self):
        code, output, error = self.run_tree([LOCKSTEP, "run", "--nproc-per-node", "64", "--prefix", WORKER, "join"])
        self.assertEqual(code, 0, error)
        joined = re.findall(r"^\[(\d+)\] joined as rank (\d+) of 64, local rank (\d+) of 64$", output, re.M)
        self.assertEqual(sorted(joined), sorted(3 * (str(rank),) for rank in range(64)))

    def test_1024_ranks_start_and_end(self):
        ranks = 128 if os.environ.get("LOCKSTEP_TEST_SANITIZED") else 1024
        code, output, error = self.run_tree([LOCKSTEP, "run", "--nproc-per-node", str(ranks), "/bin/true"])
        self.assertEqual((code, output), (0, ""), error)
        self.assertIn(f"{ranks} ranks on this machine", error)
        code, _, error = self.run_tree([LOCKSTEP, "run", "--nproc-per-node", "1025", "/bin/true"])
        self.assertEqual(code, 2, error)


class FailureTest(RunTest):
    def test_exit_codes(self):
        for script, expected in (("true", 0), ("exit 3", 3), ("kill -SEGV $$", 139), ("kill -KILL $$", 137)):
            self.assertEqual(self.run_tree(shell(script, 2))[0], expected, script)

    def test_the_first_failure_ends_the_others_and_is_named(self):
        script = "[ $RANK = 2 ] || exec sleep 1000; seq -f 'line %g' 12 >&2; printf end >&2; exit 3"
        started = time.monotonic()
        code, _, error = self.run_tree(shell(script, 4))
        self.assertEqual(code, 3)
        self.assertLess(time.monotonic() - started, 4)
        self.assertRegex(error, r"lockstep: rank 2 \(pid \d+\) exited with code 3, \d\.\d\d s after it started; "
                                r"ranks 0, 1, 3 were stopped because of it\n"
                                r"lockstep: the last lines of rank 2 on standard error:\n"
                                r"lockstep:   \| line 4\n(lockstep:   \| line \d+\n){8}lockstep:   \| end\n$")

    def test_a_rank_that_is_killed(self):
        with Tree(shell("echo $$; exec sleep 1000", 2)) as tree:
            pids = dict(line.split() for line in tree.read_lines(2))
            os.kill(int(pids["[1]"]), signal.SIGKILL)
            code, _, error = tree.finish()
            self.assertEqual(code, 137)
            self.assertIn(f"rank 1 (pid {pids['[1]']}) was killed by SIGKILL", error)
            self.assertIn("rank 0 was stopped because of it", error)
            self.assertEqual(tree.survivors(), [])

    # fault: 50
    def test_a_rank_that_ignores_sigterm_is_killed_after_the_timeout(self):
        script = "trap '' TERM; echo ready; if [ $RANK = 0 ]; then read go; exit 4; fi; while :; do sleep 1000; done"
        with Tree(shell(script, 2, "--shutdown-timeout", "0.4"), stdin=subprocess.PIPE) as tree:
            tree.read_lines(2)
            started = time.monotonic()
            code, _, error = tree.finish()
            self.assertEqual(code, 4)
            self.assertTrue(0.39 <= time.monotonic() - started < 4)
            self.assertRegex(error, r"rank 1 \(pid \d+\) did not stop in time and was killed")
            self.assertEqual(tree.survivors(), [])

    def test_programs_that_cannot_be_executed(self):
        with tempfile.TemporaryDirectory() as folder:
            script = os.path.join(folder, "train.sh")
            with open(script, "w", encoding="ascii") as file:
                file.write("true\n")
            damaged = os.path.join(folder, "damaged")
            with open(damaged, "wb") as file:
                file.write(b"\0not a program")
            os.chmod(damaged, 0o755)
            no_first_line = os.path.join(folder, "run.sh")
            with open(no_first_line, "w", encoding="ascii") as file:
                file.write("echo hello\n")
            os.chmod(no_first_line, 0o755)
            object_file, foreign = os.path.join(folder, "main.o"), os.path.join(folder, "foreign")
            with open(LOCKSTEP, "rb") as file:
                header = file.read(64)
            for path, kind, machine in ((object_file, b"\1\0", header[18:20]), (foreign, header[16:18], b"\xf3\0")):
                with open(path, "wb") as file:
                    file.write(header[:16] + kind + machine + header[20:])
                os.chmod(path, 0o755)
            for program, code, text in (
                    (object_file, 126, "Exec format error; it is damaged, or was not linked to a program"),
                    (foreign, 126, "Exec format error; it was built for another kind of processor"),
                    ("no-such-program", 127, "program 'no-such-program' was not found in PATH"),
                    ("./no-such-program", 127, "cannot execute './no-such-program': No such file"),
                    (folder, 126, "Is a directory"),
                    (script, 126, f"cannot execute '{script}': Permission denied"),
                    (damaged, 126, f"cannot execute '{damaged}': Exec format error; it is not a program"),
                    (no_first_line, 126, "as a script it needs a first line that names its interpreter, such as "
                                         f"#!/bin/sh, or run it with: sh {no_first_line}")):
                result = self.run_tree([LOCKSTEP, "run", "--nproc-per-node", "2", program])
                self.assertEqual((result[0], result[1]), (code, ""), result)
                self.assertIn(text, result[2])


    def test_an_exception_is_quoted_without_its_stack_frames(self):
        script = """[ $RANK = 1 ] || exec sleep 1000
            printf 'terminate called after throwing an instance of %s\\n  what():  no batch 17\\n' "'c10::Error'" >&2
            echo 'Exception raised from f at g.cpp:1 (most recent call first):' >&2
            i=0; while [ $i -lt 30 ]; do echo "frame #$i: f + 0x1 (0x2 in libtorch.so)" >&2; i=$((i+1)); done
            kill -ABRT $$"""
        code, _, error = self.run_tree(shell(script, 2))
        self.assertEqual(code, 128 + signal.SIGABRT)
        self.assertRegex(error, r"lockstep: rank 1 \(pid \d+\) was killed by SIGABRT")
        summary = error[error.index("lockstep: rank 1"):]
        self.assertIn("lockstep: its error: no batch 17\n", summary)
        self.assertNotIn("frame #", summary)

    def test_a_signal_comes_before_an_exit_that_was_seen_first(self):
        with tempfile.TemporaryDirectory() as folder:
            script = (f"if [ $RANK = 0 ]; then : > {folder}/a; exit 1; fi;"
                      f"while [ ! -e {folder}/a ]; do :; done; kill -SEGV $$")
            code, _, error = self.run_tree(shell(script, 2))
        self.assertEqual(code, 128 + signal.SIGSEGV)
        self.assertRegex(error, r"lockstep: rank 1 \(pid \d+\) was killed by SIGSEGV")


class SignalTest(RunTest):
    def stop(self, number, script="trap 'echo got; exit 0' {0}; echo ready; while :; do sleep 0.05; done"):
        name = signal.Signals(number).name[3:]
        with Tree(shell(script.format(name), 2)) as tree:
            tree.read_lines(2)
            os.kill(tree.pid, number)
            code, output, error = tree.finish()
            self.assertEqual(tree.survivors(), [])
        self.assertEqual(code, 75)  # before its end, though all ranks have ended well
        self.assertEqual(sorted(output.splitlines()), ["[0] got", "[1] got"])
        self.assertIn(f"lockstep: SIG{name}: stopping the job (repeat to kill)", error)
        self.assertIn(f"lockstep: stopped by SIG{name}\n", error)

    # fault: 50
    def test_signals_reach_all_ranks(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            self.stop(number)

    # fault: 50
    def test_what_a_terminal_s_keys_ask_reaches_a_program_that_a_shell_runs(self):
        program = ("import signal, subprocess, sys; helper = subprocess.Popen(['cat'], stdin=subprocess.PIPE)\n"
                   "def save(*_):\n"
                   "    helper.communicate()\n"
                   "    print('saved', helper.returncode, flush=True); sys.exit(0)\n"
                   "for number in (2, 3): signal.signal(number, save)\n"
                   "print('ready', flush=True)\n"
                   "while True: signal.pause()\n")
        for shells in (["sh"], ["bash"], ["sh", "bash"]):
            with tempfile.TemporaryDirectory() as folder:
                command = [sys.executable, "-c", program]
                for number, name in enumerate(shells):
                    path = os.path.join(folder, str(number))
                    with open(path, "w", encoding="ascii") as file:
                        file.write(f"#!/usr/bin/env {name}\n{shlex.join(command)}\necho after\n")
                    os.chmod(path, 0o700)
                    command = [path]
                # Of two shells the inner one dies of SIGQUIT, and the outer one ends before the program.
                for number in (signal.SIGINT, signal.SIGQUIT)[: 3 - len(shells)]:
                    with Tree([LOCKSTEP, "run", "-n", "1", *command]) as tree:
                        self.assertEqual(tree.read_lines(1), ["ready"])
                        os.kill(tree.pid, number)
                        code, output, error = tree.finish()
                    self.assertEqual(code, 75, error)
                    self.assertIn("saved 0\n", output)  # and its helper got no signal
                    self.assertNotIn("was killed", error)

    # fault: 50
    def test_a_second_sigint_kills_at_once(self):
        with Tree(shell("trap 'echo no' INT; echo ready; while :; do sleep 0.05; done", 2)) as tree:
            tree.read_lines(2)
            os.kill(tree.pid, signal.SIGINT)
            self.assertEqual(sorted(tree.read_lines(2)), ["[0] no", "[1] no"])
            started = time.monotonic()
            os.kill(tree.pid, signal.SIGINT)
            code, _, error = tree.finish()
            self.assertEqual(code, 75)
            self.assertLess(time.monotonic() - started, 3)
            self.assertEqual(error.count("was killed"), 2, error)
            self.assertEqual(tree.survivors(), [])

    def test_ctrl_z_suspends_the_ranks_too(self):
        with Tree(shell("echo $$; read line; echo $line", 1), stdin=subprocess.PIPE) as tree:
            rank = int(tree.read_lines(1)[0])
            os.kill(tree.pid, signal.SIGTSTP)
            for pid in (rank, tree.pid):
                self.assertTrue(wait_for(lambda pid=pid: process_state(pid)[0] == "T"), process_state(pid))
            tree.process.stdin.write(b"go on\n")
            os.kill(tree.pid, signal.SIGCONT)
            self.assertEqual(tree.finish()[:2], (0, "go on\n"))

    def test_what_was_ignored_stays_ignored(self):
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            with Tree(shell("echo ready; cat", 1), stdin=subprocess.PIPE) as tree:
                tree.read_lines(1)
                os.kill(tree.pid, signal.SIGHUP)
                tree.process.stdin.write(b"still here\n")
                self.assertEqual(tree.finish()[:2], (0, "still here\n"))
        finally:
            signal.signal(signal.SIGHUP, before)


class OrphanTest(RunTest):
    # A child in the rank's group, one in a group of its own, one in a session of its own.
    CHILDREN = "sleep 1000 & timeout 1000 sleep 1000 & setsid sleep 1000 & "

    # fault: 9
    def test_kill_9_of_the_launcher_leaves_nothing(self):
        with Tree(shell(self.CHILDREN + "echo ready; wait", 3)) as tree:
            tree.read_lines(3)
            # Each rank with its three children and timeout's child; the guard.
            self.assertTrue(wait_for(lambda: len(tree.survivors()) == 3 * 5 + 1), tree.survivors())
            tree.process.kill()
            self.assertEqual(tree.wait_until_gone(1), [])

    def test_children_of_ranks_end_with_the_job(self):
        for script in (self.CHILDREN, self.CHILDREN + "exit 1", self.CHILDREN + "kill -KILL $$"):
            self.run_tree(shell(script, 2))

    def test_a_daemon_that_sheds_the_job_id_stays(self):
        with Tree(shell("env -u LOCKSTEP_JOB_ID setsid sh -c 'echo ready; exec sleep 1000' & cat", 1),
                  stdin=subprocess.PIPE) as tree:
            tree.read_lines(1)
            tree.process.stdin.close()
            tree.process.wait(timeout=10)
            self.assertTrue(wait_for(lambda: len(tree.survivors()) == 1))  # not while it becomes sleep

    # fault: 9
    def test_killing_the_process_group_of_the_launcher_leaves_nothing(self):
        with Tree(shell(self.CHILDREN + "echo ready; wait", 2), start_new_session=True) as tree:
            tree.read_lines(2)
            os.killpg(tree.pid, signal.SIGKILL)
            self.assertEqual(tree.wait_until_gone(1), [])


    # fault: 9
    def test_a_job_inside_a_rank_ends_with_it(self):
        inner = f"exec {LOCKSTEP} run --nproc-per-node 2 sh -c '{self.CHILDREN} echo ready; wait'"
        for kill in (lambda tree: tree.process.kill(), lambda tree: os.kill(tree.pid, signal.SIGTERM)):
            with Tree(shell(inner, 1)) as tree:
                tree.read_lines(2)
                # Two ranks with five processes each, two guards, the inner launcher.
                self.assertTrue(wait_for(lambda: len(tree.survivors()) == 2 * 5 + 3), tree.survivors())
                kill(tree)
                tree.process.wait(timeout=10)
                self.assertEqual(tree.wait_until_gone(2), [])

    def test_what_a_good_job_leaves_behind_is_ended_and_told(self):
        with tempfile.TemporaryDirectory() as folder:
            # It stays the program that it is: one that becomes another has no environment for a moment.
            script = f"setsid sh -c ': > {folder}/a; kill -STOP $$' & while [ ! -e {folder}/a ]; do :; done"
            _, _, error = self.run_tree(shell(script, 1))
        self.assertIn("1 process that the ranks had left behind was ended", error)
        self.assertNotIn("left behind", self.run_tree(shell("true", 1))[2])


def limited(soft, hard):
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class DescriptorTest(RunTest):
    # fault: 52
    def test_the_soft_limit_is_raised_to_the_hard_one_for_the_launcher_and_its_ranks(self):
        code, output, error = self.run_tree(shell("ulimit -Sn", 40), preexec_fn=limited(128, 1024))
        self.assertEqual(code, 0, error)
        self.assertEqual({line.split()[1] for line in output.splitlines()}, {"1024"})

    # fault: 52
    def test_a_hard_limit_that_is_too_low_is_told_with_the_remedy(self):
        code, _, error = self.run_tree(shell("true", 40), preexec_fn=limited(128, 128))
        self.assertEqual(code, 2)
        self.assertRegex(error, r"40 ranks need the launcher to open \d+ files and connections, and its hard limit is "
                                r"128; raise that limit \(in the shell: ulimit -Hn \d+;")


def without_memory_files():
    """A sandbox that forbids memfd_create, as a seccomp profile does."""
    libc = ctypes.CDLL(None, use_errno=True)
    instructions = [
        (0x20, 0, 0, 0),  # the number of the system call
        (0x15, 0, 1, 319 if platform.machine() == "x86_64" else 279),
        (0x06, 0, 0, 0x00050000 | errno.EPERM),
        (0x06, 0, 0, 0x7FFF0000),
    ]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in instructions))
    header = struct.pack("HxxxxxxP", len(instructions), ctypes.addressof(program))
    if libc.prctl(38, 1, 0, 0, 0) != 0 or libc.prctl(22, 2, header, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no filter of system calls")


class FileLimitTest(RunTest):
    @unittest.skipIf("LOCKSTEP_TEST_SANITIZED" in os.environ, "under the thread sanitizer the signal ends the launcher")
    # fault: 23
    def test_without_room_for_any_file_the_launcher_says_so_and_does_not_die_of_a_signal(self):
        nothing = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # noqa: E731
        code, _, error = self.run_tree(shell("true", 2), preexec_fn=nothing)
        self.assertEqual(code, 3)
        self.assertIn("files of this process are limited to 0 bytes: raise the limit (ulimit -f unlimited)", error)
        with tempfile.TemporaryFile() as file:
            code = subprocess.run(shell("true", 2), stdout=file, stderr=file, preexec_fn=nothing).returncode
            self.assertEqual(code, 3)  # though the message has no room either

    # fault: 21
    def test_where_memory_files_are_forbidden_the_error_says_what_to_allow(self):
        code, _, error = self.run_tree(shell("true", 2), preexec_fn=without_memory_files)
        self.assertEqual(code, 3)
        self.assertRegex(error, r"making a memory file for the job token failed: Operation not permitted; the system "
                                r"call memfd_create is forbidden here: allow it in the sandbox or container")


class SecretTest(RunTest):
    # fault: S1
    def test_the_token_is_in_no_argument_environment_or_output(self):
        # The token itself is in the descriptor that the rank inherits.
        script = "head -c 32 /dev/fd/$LOCKSTEP_TOKEN_FD | od -An -v -tx1 | tr -d ' \\n'; echo; cat"
        with Tree(shell(script, 2, "--no-prefix"), stdin=subprocess.PIPE,
                  environment={"LOCKSTEP_LOG": "debug"}) as tree:
            text, again = tree.read_lines(2)
            self.assertEqual(text, again)
            token = bytes.fromhex(text)
            self.assertEqual(len(token), 32)
            forms = (token, text.encode(), text.upper().encode(), base64.b64encode(token))
            for pid in tree.survivors() + [tree.pid]:
                for name in ("cmdline", "environ"):
                    content = self.content_of(pid, name)
                    self.assertFalse([form for form in forms if form in content], (pid, name))
            with socket.create_connection(self.store_of(tree), timeout=5) as stranger:
                stranger.sendall(b"\xd5LSTEP\r\n" + (2).to_bytes(2, "little") + b"\x01\0" + bytes(32))
                answer = stranger.recv(1000)
                self.assertEqual(len(answer), 44)
            _, output, error = tree.finish()  # closes its standard input
            for content in (answer, output.encode(), error.encode()):
                self.assertFalse([form for form in forms if form in content])

    @staticmethod
    def content_of(pid, name):
        """Nothing if the process has ended meanwhile."""
        try:
            with open(f"/proc/{pid}/{name}", "rb") as file:
                return file.read()
        except (FileNotFoundError, ProcessLookupError):
            return b""

    def store_of(self, tree):
        for pid in tree.survivors():
            for entry in self.content_of(pid, "environ").split(b"\0"):
                if entry.startswith(b"LOCKSTEP_STORE="):
                    host, port = entry.split(b"=")[1].decode().split(":")
                    return host, int(port)
        raise AssertionError("no rank has an address of the store")


class UsageTest(RunTest):
    def test_usage_errors(self):
        for arguments, text in (
                ([], "a command is required"),
                (["runn"], "unknown command 'runn'; did you mean run?"),
                (["--bogus"], "unknown option '--bogus'"),
                (["run"], "a program to run is required"),
                (["run", "--bogus", "true"], "unknown option '--bogus'\n"),
                (["run", "-n", "two", "true"], "'two' is not a number from 1 to 1024, 'auto', 'cpu' or"),
                (["run", "-np2", "true"], "'p2' is not a number from 1 to 1024, 'auto', 'cpu' or"),
                (["run", "-c", "2", "true"], "unknown option '-c'; did you mean --nproc-per-node?"),
                (["run", "--nproc", "2", "true"], "unknown option '--nproc'; did you mean --nproc-per-node?"),
                (["run", "--nproc_per_nod=2", "true"], "did you mean --nproc-per-node?"),
                (["run", "--num-processes=2", "true"], "did you mean --nproc-per-node?"),
                (["run", "--max-restart", "1", "true"], "did you mean --max-restarts?"),
                (["run", "--hostfile", "x", "true"], "did you mean --hosts?"),
                (["run", "--nproc-per-node", "0", "true"], "'0' is not a number from 1 to 1024, 'auto', 'cpu' or"),
                (["run", "--nproc-per-node", "two", "true"], "'two' is not a number"),
                (["run", "--nnodes", "2", "true"], "several hosts need --rdzv-endpoint HOST:PORT"),
                (["run", "--nnodes", "3:2", "true"], "'3:2' is not a number of hosts from 1 to 65536, or MIN:MAX"),
                (["run", "--stop-grace", "nan", "true"], "--stop-grace: 'nan' is not a number of seconds"),
                (["stop", "--timeout", "nan", "a"], "--timeout: 'nan' is not a number of seconds, 0 to 31536000"),
                (["top", "--interval", "nan"], "--interval: 'nan' is not a number of seconds, 0.1 to 3600"),
                (["run", "--metrics-textfile", "/tmp/job.txt", "true"],
                 "--metrics-textfile: '/tmp/job.txt' does not end with .prom: node_exporter reads only such"),
                (["run", "--max-restarts", "-1", "true"], "--max-restarts"),
                (["run", "--env", "A", "true"], "'A' is not KEY=VALUE"),
                (["run", "--prefix", "--no-prefix", "true"], "it cannot be used with --no-prefix")):
            code, output, error = self.run_tree([LOCKSTEP, *arguments])
            self.assertEqual((code, output), (2, ""), arguments)
            self.assertIn(text, error)
            self.assertIn("--help", error)

    def test_a_silence_that_is_too_short_is_told_as_it_was_written(self):
        for options, environment, name in (
                (["--rdzv-conf", "host_timeout=1"], {}, "--rdzv-conf host_timeout"),
                ([], {"LOCKSTEP_HOST_TIMEOUT": "1"}, "LOCKSTEP_HOST_TIMEOUT")):
            code, output, error = self.run_tree([LOCKSTEP, "run", *options, "true"], environment=environment)
            self.assertEqual((code, output), (2, ""))
            self.assertEqual(error, f"lockstep: {name} is '1'; it can be 2 to 600 seconds\n")

    def test_the_number_of_ranks_as_mpirun_and_srun_have_it(self):
        for arguments in (["-n", "2"], ["-n2"], ["-np", "2"]):
            script = ["sh", "-c", "echo of $WORLD_SIZE $*", "sh", "-np", "-n3"]
            code, output, error = self.run_tree([LOCKSTEP, "run", *arguments, *script])
            self.assertEqual(code, 0, error)
            self.assertEqual(sorted(output.splitlines()), ["[0] of 2 -np -n3", "[1] of 2 -np -n3"], arguments)

    def test_help_and_version(self):
        for arguments in (["--help"], ["run", "--help"]):
            code, output, _ = self.run_tree([LOCKSTEP, *arguments])
            self.assertEqual((code, len(re.findall("^  lockstep run --n", output, re.M))), (0, 5))
        self.assertRegex(self.run_tree([LOCKSTEP, "--version"])[1], r"^lockstep \d+\.\d+\.\d+\n$")

    def test_where_the_program_begins(self):
        run = [LOCKSTEP, "run", "--nproc_per_node=1", "--standalone", "--nnodes", "1"]
        for arguments in (["echo", "--nproc-per-node", "x"], ["--", "echo", "--nproc-per-node", "x"]):
            self.assertEqual(self.run_tree(run + arguments)[:2], (0, "--nproc-per-node x\n"))
        self.assertEqual(self.run_tree(run + ["echo", "--", "run"])[1], "-- run\n")

    # feature: D-09
    def test_auto_counts_the_cores(self):
        _, output, error = self.run_tree([LOCKSTEP, "run", "--nproc-per-node", "cpu", "--prefix", "echo"])
        self.assertEqual(len(output.splitlines()), int(re.search(r"\((\d+) cores?\)", error).group(1)))

    # feature: D-09
    def test_without_a_gpu_auto_counts_the_cores_too(self):
        _, output, error = self.run_tree([LOCKSTEP, "run", "--nproc-per-node", "auto", "--prefix", "echo"],
                                         environment={"CUDA_VISIBLE_DEVICES": ""})
        ranks = len(output.splitlines())
        self.assertTrue(1 <= ranks <= len(os.sched_getaffinity(0)), output)
        self.assertRegex(error, rf"^lockstep: {ranks} ranks? on this machine")

    def test_starting_takes_milliseconds(self):
        times = []
        for _ in range(5):
            started = time.monotonic()
            self.assertEqual(self.run_tree([LOCKSTEP, "run", "--nproc-per-node", "2", "/bin/true"])[0], 0)
            times.append(time.monotonic() - started)
        print(f"lockstep run --nproc-per-node 2 /bin/true: {min(times) * 1000:.1f} ms", file=sys.stderr)
        self.assertLess(min(times), 1)


if __name__ == "__main__":
    WORKER = sys.argv.pop(2)
    LOCKSTEP = sys.argv.pop(1)
    unittest.main()
