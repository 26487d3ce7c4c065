"""Limits of ranks by cgroups v2: limits_test.py <lockstep>. Most need one with the controllers memory and
cpu that may be divided; without, they are skipped."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest

from agents import free_port
from processes import Tree, wait_for

LOCKSTEP = ""
SKIPPED = 77
HOG = f"exec {sys.executable} -c 'x = b\"x\" * (200 << 20)'"
SPIN = f"exec {sys.executable} -c 'import time\nwhile time.process_time() < 0.6: pass'"


def mounted():
    """Where version 2 is mounted; None if it is not."""
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            if after.startswith("cgroup2 "):
                return before.split()[4]
    return None


class RefusedTest(unittest.TestCase):
    def refusal(self, *command):
        done = subprocess.run([*command, LOCKSTEP, "run", "--memory-per-rank", "100M", "echo", "began"],
                              capture_output=True, text=True, timeout=30, check=False)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertIn("systemd-run --user --scope -p Delegate=yes", done.stderr)
        return done.stderr

    def test_no_rank_starts_where_no_cgroup_of_version_2_is_mounted(self):
        if os.geteuid() != 0:
            self.skipTest("it needs root")
        hide = "umount -a -t cgroup2; exec \"$@\""
        self.assertIn("no v2 cgroup hierarchy is mounted here", self.refusal("unshare", "-m", "sh", "-c", hide, "sh"))

    def test_no_rank_starts_where_the_group_has_no_controllers(self):
        root = mounted()
        if root is None or os.geteuid() != 0:
            self.skipTest("it needs root and cgroups v2")
        with open(os.path.join(root, "cgroup.subtree_control"), encoding="ascii") as file:
            if "memory" in file.read():
                self.skipTest("all groups have the controller memory")
        group = os.path.join(root, f"lockstep_test_{os.getpid()}")
        os.mkdir(group)
        self.addCleanup(lambda: wait_for(lambda: not os.path.exists(group) or os.rmdir(group) is None))
        self.assertRegex(self.refusal("sh", "-c", f'echo 0 > {group}/cgroup.procs; exec "$@"', "sh"),
                         f"{group} has no controller 'memory'")


class LimitsTest(unittest.TestCase):
    def setUp(self):
        root = mounted()
        if root is None:
            self.skipTest("no cgroup v2 is mounted")
        self.group = os.path.join(root, f"lockstep_test_{os.getpid()}")
        try:
            with open(os.path.join(root, "cgroup.subtree_control"), "w", encoding="ascii") as file:
                file.write("+memory +cpu")
            os.mkdir(self.group)
        except OSError as error:
            self.skipTest(f"{root} cannot be divided: {error}")
        self.addCleanup(lambda: wait_for(self.is_removed))
        self.enter = ["sh", "-c", f'echo 0 > {self.group}/cgroup.procs; exec "$@"', "sh"]

    def is_removed(self):
        try:
            os.rmdir(self.group)
        except OSError:  # a process has not quite ended
            return False
        return True

    def parts(self):
        return [name for name in os.listdir(self.group) if os.path.isdir(os.path.join(self.group, name))]

    def run_with(self, *arguments):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "report.json")
            with Tree([*self.enter, LOCKSTEP, "run", "--report", path, *arguments]) as tree:
                code, output, error = tree.finish(60)
                self.assertEqual(tree.survivors(), [])
            self.assertEqual(self.parts(), [], "groups are left behind")
            with open(path, encoding="utf-8") as file:
                return code, output, error, json.load(file)

    # fault: 8
    def test_a_rank_that_reaches_its_limit_is_named_with_it(self):
        script = f"test $RANK = 1 || exec sleep 60; test $RESTART_COUNT = 0 || exit 0; {HOG}"
        code, _, error, report = self.run_with("--nproc-per-node", "2", "--memory-per-rank", "60MiB", "--max-restarts",
                                               "1", "sh", "-c", script.replace("exec sleep 60", "{ test $RESTART_COUNT "
                                                                               "= 1 && exit 0; exec sleep 60; }"))
        self.assertEqual(code, 0, error)
        self.assertRegex(error, r"rank 1 \(pid \d+\) was killed by SIGKILL \(it reached its limit of 60 MiB, "
                                r"--memory-per-rank; it had used 0\.0\d+ GiB at most\)")
        cause = report["attempts"][0]["cause"]
        self.assertEqual((cause["rank"], cause["out_of_memory"], cause["limits"]["memory_reached"]), (1, True, True))
        self.assertEqual(cause["limits"]["memory_bytes"], 60 << 20)
        self.assertEqual([end["limits"]["memory_reached"] for end in report["attempts"][1]["ranks"]], [False, False])

    def test_all_that_a_rank_has_started_counts_and_ends_with_it(self):
        code, _, error, _ = self.run_with("--nproc-per-node", "1", "--memory-per-rank", "60M", "sh", "-c",
                                          f"({HOG}); echo alive")
        self.assertEqual(code, 137, error)
        self.assertIn("it reached its limit of 60 MiB", error)

    def test_a_kill_by_somebody_else_is_not_taken_for_the_limit(self):
        code, _, error, report = self.run_with("--memory-per-rank", "60M", "sh", "-c", "kill -9 $$")
        self.assertEqual(code, 137, error)
        self.assertIn("sent by a process; the kernel has killed no process of its cgroup", error)
        self.assertIs(report["attempts"][0]["cause"]["out_of_memory"], False)

    def test_cpus_are_limited_and_a_rank_that_stands_still_for_it_is_told(self):
        code, _, error, report = self.run_with("--cpus-per-rank", "0.2", "sh", "-c", SPIN)
        self.assertEqual(code, 0, error)
        limits = report["attempts"][0]["ranks"][0]["limits"]
        self.assertEqual((limits["cpus"], limits["memory_bytes"]), (0.2, None))
        self.assertGreater(limits["throttled_periods"], 10)
        self.assertGreater(report["attempts"][0]["ranks"][0]["seconds"], 2)
        self.assertRegex(error, r"rank 0 reached the limit of 0\.2 CPUs \(--cpus-per-rank\): rank 0 in \d+ % of the ")

    def test_threads_follow_the_limit(self):
        _, output, _, _ = self.run_with("--cpus-per-rank", "0.5", "sh", "-c", "echo $OMP_NUM_THREADS")
        self.assertEqual(output, "1\n")

    def test_agents_of_several_hosts_hold_their_ranks_to_limits(self):
        code, _, error, report = self.run_with(
            "--nnodes", "1", "--rdzv-endpoint", f"127.0.0.1:{free_port()}",
            "--memory-per-rank", "60M", "sh", "-c", HOG)
        self.assertEqual(code, 137, error)
        self.assertTrue(report["attempts"][0]["cause"]["limits"]["memory_reached"], error)

    def test_a_group_with_other_processes_is_refused(self):
        self.enter = ["sh", "-c", f'echo 0 > {self.group}/cgroup.procs; "$@"; exit $?', "sh"]
        done = subprocess.run([*self.enter, LOCKSTEP, "run", "--cpus-per-rank", "1", "echo", "began"],
                              capture_output=True, text=True, timeout=30, check=False)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertRegex(done.stderr, rf"{self.group} also holds 1 other process \(\d+\)")

    def test_what_a_killed_launcher_has_left_is_removed_by_the_next(self):
        root = os.path.dirname(self.group)  # which may have processes itself
        ours = re.compile(r"lockstep-\d+$")
        with Tree([LOCKSTEP, "run", "--memory-per-rank", "60M", "sh", "-c", "echo $$; exec sleep 60"]) as tree:
            rank = int(tree.read_lines(1)[0])
            with open(f"/proc/{rank}/cgroup", encoding="ascii") as file:
                self.assertRegex(file.read(), rf"0::/lockstep-{tree.pid}/rank_0\.0\n")
            os.kill(tree.pid, signal.SIGKILL)
            tree.finish()
            wait_for(lambda: not os.path.exists(f"/proc/{rank}"))
            wait_for(lambda: tree.survivors() == [])
        self.assertTrue([name for name in os.listdir(root) if ours.match(name)])
        with Tree([LOCKSTEP, "run", "--memory-per-rank", "60M", "true"]) as tree:
            self.assertEqual(tree.finish()[0], 0)
        self.assertEqual([name for name in os.listdir(root) if ours.match(name)], [])


if __name__ == "__main__":
    LOCKSTEP = sys.argv[1]
    program = unittest.main(argv=sys.argv[:1], exit=False)
    if not program.result.wasSuccessful():
        sys.exit(1)
    sys.exit(SKIPPED if program.result.skipped else 0)
