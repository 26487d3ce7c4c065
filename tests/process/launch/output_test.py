"""What ranks print, under `lockstep run`: output_test.py <lockstep> <launch_lines>"""

import collections
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

from processes import Tree, wait_for
from run_test import RunTest

LOCKSTEP = ""
LINES = ""


def shell(script, ranks, *options):
    return [LOCKSTEP, "run", "--nproc-per-node", str(ranks), *options, "sh", "-c", script]


class OutputTest(RunTest):
    def assert_lines_whole(self, output, ranks, count):
        following = collections.Counter()
        for line in output.splitlines():
            match = re.fullmatch(r"\[(\d)\] rank (\d) line (\d+) (x*)\.", line)
            self.assertTrue(match, line)
            rank, again, number, filler = match.groups()
            self.assertEqual((rank, int(number), len(filler)), (again, following[rank], int(number) * 7 % 120))
            following[rank] += 1
        self.assertEqual(following, {str(rank): count for rank in range(ranks)})

    def test_lines_of_four_ranks_stay_whole_and_in_order(self):
        code, output, _ = self.run_tree([LOCKSTEP, "run", "--nproc-per-node", "4", LINES, "10000"])
        self.assertEqual(code, 0)
        self.assert_lines_whole(output, 4, 10000)

    def test_both_streams_into_one_pipe(self):
        command = shell(f"{LINES} 2000; {LINES} 2000 >&2", 2)
        _, output, _ = self.run_tree(command, stderr=subprocess.STDOUT)
        lines = output.splitlines()[1:]
        self.assertEqual(len(lines), 2 * 2 * 2000)
        self.assertEqual([line for line in lines if not re.fullmatch(r"\[\d\] rank \d line \d+ x*\.", line)], [])

    def test_a_last_line_without_newline_is_completed(self):
        _, output, error = self.run_tree(shell("printf out$RANK; printf err$RANK >&2", 2))
        self.assertEqual(sorted(output.splitlines()), ["[0] out0", "[1] out1"])
        self.assertEqual(sorted(error.splitlines()[1:]), ["[0] err0", "[1] err1"])
        self.assertTrue(output.endswith("\n"))

    def test_a_very_long_line_loses_nothing(self):
        script = "i=0; while [ $i -lt 30000 ]; do printf '%09d,' $i; i=$((i+1)); done; echo"
        _, output, _ = self.run_tree(shell(script, 2))
        for rank in range(2):
            text = "".join(line[4:] for line in output.splitlines() if line.startswith(f"[{rank}] "))
            self.assertEqual(text, "".join(f"{i:09d}," for i in range(30000)))

    def test_one_rank_without_prefix_is_passed_on_byte_for_byte(self):
        _, output, _ = self.run_tree(shell(r"printf 'a\r\000b\n\nend'", 1))
        self.assertEqual(output, "a\r\0b\n\nend")
        _, output, _ = self.run_tree(shell("echo a", 1, "--prefix"))
        self.assertEqual(output, "[0] a\n")
        _, output, _ = self.run_tree(shell("echo a", 2, "--no-prefix"))
        self.assertEqual(output, "a\na\n")

    def test_log_files_hold_the_exact_bytes(self):
        with tempfile.TemporaryDirectory() as folder:
            directory = os.path.join(folder, "a", "b")
            script = r"printf 'out\r$RANK'; printf 'err\n' >&2"
            code, output, _ = self.run_tree(shell(script, 2, "--log-dir", directory))
            self.assertEqual((code, sorted(output.split("\n"))), (0, ["", "[0] out\r$RANK", "[1] out\r$RANK"]))
            self.assertEqual(sorted(os.listdir(directory)),
                             [f"rank_{rank}.{name}.log" for rank in range(2) for name in ("stderr", "stdout")])
            for name, expected in (("stdout", b"out\r$RANK"), ("stderr", b"err\n")):
                with open(f"{directory}/rank_1.{name}.log", "rb") as file:
                    self.assertEqual(file.read(), expected)
        code, _, error = self.run_tree(shell("true", 2, "--log-dir", "/proc/nowhere"))
        self.assertEqual(code, 2)
        self.assertIn("cannot make the log directory '/proc/nowhere'", error)

    @unittest.skipIf(os.geteuid() != 0, "only root makes links of another user")
    def test_log_folders_are_not_links_of_other_users(self):
        with tempfile.TemporaryDirectory() as folder:
            target, link, logs = (os.path.join(folder, name) for name in ("target", "link", "logs"))
            os.mkdir(target)
            os.mkdir(logs)
            os.symlink(target, link)
            code, _, error = self.run_tree(shell("true", 1, "--log-dir", link))
            self.assertEqual((code, len(os.listdir(target))), (0, 2), error)  # of this user
            for name in os.listdir(target):
                os.unlink(os.path.join(target, name))
            os.lchown(link, 65534, 65534)
            for name in (link, link + "/"):
                code, _, error = self.run_tree(shell("true", 1, "--log-dir", name))
                self.assertEqual((code, os.listdir(target)), (2, []), error)
                self.assertIn(f"{link} is a link of user 65534", error)
            attempt = os.path.join(logs, "attempt_1")
            os.symlink(target, attempt)
            os.lchown(attempt, 65534, 65534)
            code, _, error = self.run_tree(shell("exit 3", 1, "--log-dir", logs, "--max-restarts", "1"))
            self.assertEqual((code, os.listdir(target)), (3, []), error)
            self.assertRegex(error, f"rank 0 could not be started: .*{attempt} is a link of user 65534")

    def test_a_reader_that_goes_away_does_not_end_the_job(self):
        script = "read go; i=0; while [ $i -lt 1000 ]; do echo $i || exit 9; i=$((i+1)); done; echo done >&2"
        with Tree(shell(script, 1), stdin=subprocess.PIPE) as tree:
            tree.process.stdout.close()
            tree.process.stdin.write(b"go\n")
            tree.process.stdin.close()
            error = tree.process.stderr.read().decode()
            self.assertEqual(tree.process.wait(timeout=10), 0, error)
            self.assertIn("standard output can no longer be written: Broken pipe; the job continues without it", error)
            self.assertIn("done\n", error)
            self.assertRegex(error, r"warning: 1000 lines of standard output were lost\n$")
            self.assertEqual(tree.survivors(), [])

    def test_a_full_disk_does_not_end_the_job(self):
        with open("/dev/full", "wb") as full:
            code, _, error = self.run_tree(shell("seq 100; seq 100; echo done >&2", 2), stdout=full)
        self.assertEqual(code, 0)
        self.assertIn("standard output cannot be written: No space left on device; the job continues", error)
        self.assertEqual(error.count("done"), 2)
        self.assertRegex(error, r"warning: 400 lines of standard output were lost\n$")

    def test_a_reader_that_pauses_holds_nobody_up_for_long_and_reads_what_it_missed(self):
        script = f"{LINES} 40000; : > $FOLDER/$RANK"  # far more than all buffers hold
        with tempfile.TemporaryDirectory() as folder:
            with Tree(shell(script, 2), environment={"FOLDER": folder}) as tree:
                self.assertTrue(wait_for(lambda: len(os.listdir(folder)) == 2, 20), "the ranks are held up")
                code, output, error = tree.finish()
        self.assertEqual(code, 0)
        notes = re.findall(r"^lockstep: (\d+) lines? w\w+ dropped here: the reader", output, re.M)
        lost = sum(map(int, notes))
        lines = [line for line in output.splitlines() if not line.startswith("lockstep: ")]
        self.assertEqual([line for line in lines if not re.fullmatch(r"\[\d\] rank \d line \d+ x*\.", line)], [])
        self.assertGreater(lost, 0)
        self.assertEqual(len(lines) + lost, 2 * 40000)
        self.assertIn(f"warning: {lost} lines of standard output were lost\n", error)

    @staticmethod
    def read_to_end(stranger):
        try:
            while stranger.recv(100):
                pass
        except ConnectionResetError:  # it was closed with bytes unread
            pass

    def test_a_stranger_and_a_paused_reader_do_not_stop_the_store(self):
        # The store's own thread complains of strangers on the launcher's standard error.
        script = "echo $LOCKSTEP_STORE; exec yes a line of a rank that says a lot >&2"
        with Tree(shell(script, 2)) as tree:
            host, port = tree.read_lines(1)[0].removeprefix("[0] ").removeprefix("[1] ").split(":")
            hello = b"\xd5LSTEP\r\n" + (2).to_bytes(2, "little") + b"\x01\0" + bytes(32)
            for _ in range(3):
                with socket.create_connection((host, int(port)), timeout=10) as stranger:
                    stranger.sendall(b"GET / HTTP/1.0\r\n\r\n")
                    self.read_to_end(stranger)
                with socket.create_connection((host, int(port)), timeout=10) as client:
                    client.sendall(hello)
                    self.assertEqual(len(client.recv(100)), 44)
                time.sleep(0.4)  # at most one line a second is logged

    def test_a_reader_that_pauses_does_not_block_the_launcher(self):
        with Tree(shell("exec yes", 2, "--shutdown-timeout", "1")) as tree:
            tree.read_lines(1)
            time.sleep(0.2)  # long enough to fill every buffer on the way
            started = time.monotonic()
            os.kill(tree.pid, signal.SIGTERM)
            self.assertTrue(wait_for(lambda: len(tree.survivors()) <= 1, 3))  # the guard stays with the launcher
            self.assertLess(time.monotonic() - started, 3)

    def on_terminal(self, script, **environment):
        main, terminal = pty.openpty()
        environment = {"TERM": "xterm", **environment}
        with Tree(shell(script, 2), environment=environment, stdout=terminal, stderr=terminal) as tree:
            os.close(terminal)
            output = b""
            try:
                while chunk := os.read(main, 65536):
                    output += chunk
            except OSError:  # the terminal's last user has gone
                pass
            os.close(main)
            self.assertEqual(tree.process.wait(timeout=10), 0)
        return output.decode()

    def test_a_progress_bar_shows_on_a_terminal(self):
        # Rank 1 prints between two updates of rank 0's bar; they wait for one another through a file.
        with tempfile.TemporaryDirectory() as folder:
            wait = f"wait_for() {{ while [ ! -e {folder}/$1 ]; do sleep 0.01; done; }};"
            script = wait + f"""
                if [ $RANK = 0 ]; then
                  printf '\\r10%%'; sleep 0.2; : > {folder}/a; wait_for b; sleep 0.2; printf '\\r20%%'; sleep 0.2; echo
                else
                  wait_for a; printf '\\r1%%'; printf '\\rline\\n'; : > {folder}/b
                fi"""
            output = self.on_terminal(script, NO_COLOR="1")
        self.assertIn("[0] 10%\r\x1b[K[1] line\r\n[0] 10%\r\x1b[K[0] 20%", output)
        self.assertTrue(output.endswith("\r\x1b[K[0] 20%\r\n"), output)
        self.assertNotIn("1%\r", output.replace("[0] 10%", "").replace("[0] 20%", ""))

    def test_colour_only_on_a_terminal_that_wants_it(self):
        self.assertRegex(self.on_terminal("echo a"), "\x1b\\[\\d+m\\[0\\]\x1b\\[m a\r\n")
        self.assertIn("\n[0] a\r\n", self.on_terminal("[ $RANK = 1 ] || echo a", NO_COLOR="1"))


if __name__ == "__main__":
    LINES = sys.argv.pop(2)
    LOCKSTEP = sys.argv.pop(1)
    unittest.main()
