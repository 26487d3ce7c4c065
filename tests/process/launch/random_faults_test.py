"""Faults at random moments of jobs under `lockstep run`: random_faults_test.py <lockstep> <kills_worker> [Case ...]

LOCKSTEP_TEST_KILLS says how often each fault strikes (default 2), LOCKSTEP_TEST_SEED at which moments,
LOCKSTEP_TEST_SLACK how many seconds a busy machine may add. Each time the culprit has to be named and no process, file
or memory may be left. Prints how long that took."""

import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from agents import Job
from processes import Tree, percentile, rank_process, wait_for
from shared_memory import own_shared_memory, shared_memory
from switch import Switch

LOCKSTEP = ""
WORKER = ""
KILLS = int(os.environ.get("LOCKSTEP_TEST_KILLS", "2"))
SEED = int(os.environ.get("LOCKSTEP_TEST_SEED", "0")) or random.randrange(1 << 30)
SLACK = float(os.environ.get("LOCKSTEP_TEST_SLACK", "3"))
FOREVER = "1000000"
HERE = 0.25  # seconds in which a death on this machine is noticed
ACROSS = 3.0


class FaultsTest(unittest.TestCase):
    limit = HERE

    def setUp(self):
        self.random = random.Random(f"{SEED} {self.id()}")
        self.taken = []
        self.memory = shared_memory()

    def strike(self, fault):
        """The fault, as often as wanted; each returns what was said for messages, and when it was noticed."""
        for turn in range(KILLS):
            with self.subTest(seed=SEED, turn=turn):
                fault()
                self.assertEqual(shared_memory(), self.memory)
        print(f"{self.id().split('.', 1)[1]}: {len(self.taken)} of {KILLS}, p50 {percentile(self.taken, 0.5):.3f} s, "
              f"p99 {percentile(self.taken, 0.99):.3f} s", flush=True)

    def noticed(self, since, text, at=None):
        self.taken.append((at or time.monotonic()) - since)
        self.assertLess(self.taken[-1], self.limit + SLACK, text)

    def pause(self, most):
        time.sleep(self.random.uniform(0, most))


class OneMachine(FaultsTest):
    ranks = 3

    def start(self, script, *options, before=(), **environment):
        """A job of a shell script, "$@" in which is the worker; the launcher's texts go to files."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        command = [*before, LOCKSTEP, "run", "--nproc-per-node", str(self.ranks), *options, "sh", "-c", script, "sh",
                   WORKER, FOREVER]
        self.paths = [os.path.join(folder.name, name) for name in ("out", "err")]
        with open(self.paths[0], "wb") as out, open(self.paths[1], "wb") as err:
            tree = Tree(command, {"OMP_NUM_THREADS": "1", **environment}, stdout=out, stderr=err)
        self.addCleanup(tree.__exit__)
        return tree

    def text(self, which=1):
        with open(self.paths[which], encoding="utf-8", errors="replace") as file:
            return file.read()

    def pid_of(self, tree, rank):
        pid = wait_for(lambda: rank_process(tree.pid, rank), 20)
        self.assertTrue(pid, self.text())
        return pid

    def wait_until(self, word):
        self.assertTrue(wait_for(lambda: self.text(0).count(word) == self.ranks, 30), self.text(0) + self.text())

    def kill_one(self, tree, most=1.5):
        victim = self.random.randrange(self.ranks)
        pid = self.pid_of(tree, victim)
        self.pause(most)
        killed = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        return victim, pid, killed

    def assert_named(self, tree, victim, pid, killed):
        code = tree.process.wait(60)
        now = time.monotonic()
        text = self.text()
        named = re.findall(r"^lockstep: rank (\d+) \(pid (\d+)\) was killed by SIGKILL .* after it started", text, re.M)
        self.assertEqual((named, code), ([(str(victim), str(pid))], 128 + signal.SIGKILL), text)
        self.noticed(killed, text, now)
        self.assertEqual(tree.wait_until_gone(2), [], text)

    # fault: 1, 2, 3
    def test_a_rank_is_killed(self):
        def fault():
            tree = self.start('exec "$@"')
            self.assert_named(tree, *self.kill_one(tree))
        self.strike(fault)

    # fault: 9
    def test_a_rank_whose_programs_run_on_is_killed(self):
        script = ('setsid sleep 1000 & (setsid sh -c "sleep 1000 & exec sleep 1000" &) ; '
                  'nohup sleep 1000 > /dev/null & (trap "" HUP TERM INT; sleep 1000 &); exec "$@"')

        def fault():
            tree = self.start(script)
            self.assert_named(tree, *self.kill_one(tree))
        self.strike(fault)

    def test_the_others_ignore_sigterm(self):
        def fault():
            tree = self.start('trap "" TERM; echo deaf; while :; do sleep 0.05; done', "--shutdown-timeout", "1")
            self.wait_until("deaf")
            victim, pid, killed = self.kill_one(tree, 0.5)
            self.assert_named(tree, victim, pid, killed + 1)
            self.assertEqual(self.text().count("did not stop in time and was killed"), self.ranks - 1, self.text())
        self.strike(fault)

    # fault: 10, 12
    def test_a_rank_is_stopped(self):
        self.limit = ACROSS

        def fault():
            tree = self.start('exec "$@"', TEST_CALL_MS="3000")
            self.wait_until("joined")
            victim = self.random.randrange(self.ranks)
            pid = self.pid_of(tree, victim)
            self.pause(0.5)
            stopped = time.monotonic()
            os.kill(pid, signal.SIGSTOP)
            # In a collective the others say so soon; in a split they wait for its deadline.
            named = rf"rank {victim} \(host [^)]*, pid {pid}\) is stopped"
            wait_for(lambda: re.search(named, self.text()) or tree.process.poll() is not None, 10)
            if re.search(named, self.text()):
                self.noticed(stopped, self.text())
            self.assertNotEqual(tree.process.wait(30), 0, self.text())
            text = self.text()
            causes = re.findall(r"^lockstep: (rank \d+ \(pid \d+\) .* after it started.*)$", text, re.M)
            self.assertEqual(len(causes), 1, text)
            self.assertIn(f"lockstep: rank {victim} (pid {pid}) was suspended at that time, by SIGSTOP or the like",
                          text)
            self.assertEqual(tree.wait_until_gone(2), [], text)
        self.strike(fault)

    def test_the_disk_of_the_logs_is_full(self):
        def fault():
            with tempfile.TemporaryDirectory() as logs:
                before = ["unshare", "-m", "sh", "-c",
                          f'mount -t tmpfs -o size=64k tmpfs {logs} && exec "$@"', "sh"]
                if subprocess.run([*before, "true"], capture_output=True, check=False).returncode != 0:
                    self.skipTest("no file system can be mounted here")
                tree = self.start('head -c 200000 /dev/zero | tr "\\0" "x"; echo; exec "$@"', "--log-dir", logs,
                                  before=before)
                self.wait_until("joined")
                victim, pid, killed = self.kill_one(tree, 0.3)
                self.assert_named(tree, victim, pid, killed)
                self.assertIn("No space left on device", self.text())
        self.strike(fault)


class Hosts(FaultsTest):
    """Two agents on this machine."""

    def start(self):
        job = Job(LOCKSTEP, "--nnodes", "2")
        self.addCleanup(job.__exit__)
        agents = [job.start(name, [WORKER, FOREVER], "--node-rank", str(rank)) for rank, name in enumerate("ab")]
        self.assertTrue(agents[0].says("4 ranks on 2 hosts", 30), job.texts())
        return job, *agents

    def assert_ended(self, job, codes):
        self.assertEqual(job.codes(), codes, job.texts())
        self.assertEqual(job.left(2), [], job.texts())

    # fault: 1, 2, 3
    def test_a_rank_is_killed(self):
        def fault():
            job, a, b = self.start()
            victim = self.random.randrange(4)
            agent = (a, b)[victim // 2]
            pid = wait_for(lambda: rank_process(agent.pid, victim), 20)
            self.assertTrue(pid, job.texts())
            self.pause(2.5)
            killed = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            self.assert_ended(job, [137, 137])
            self.noticed(killed, job.texts())
            for text in (a.error, b.error):
                named = re.findall(r"rank (\d+) \(host (\w+), pid (\d+)\) was killed by SIGKILL", text)
                self.assertEqual(named, [(str(victim), agent.name, str(pid))], job.texts())
        self.strike(fault)

    # fault: 9
    def test_an_agent_is_killed(self):
        def fault():
            job, a, b = self.start()
            self.pause(2.5)
            killed = time.monotonic()
            b.process.kill()
            self.assert_ended(job, [3, -9])
            self.noticed(killed, job.texts())
            self.assertEqual(re.findall(r"host (\w+) \(ranks 2 to 3\) is lost", a.error), ["b"], job.texts())
        self.strike(fault)

    # fault: 13
    def test_the_first_agent_with_the_store_is_killed(self):
        def fault():
            job, a, b = self.start()
            self.pause(2.5)
            killed = time.monotonic()
            a.process.kill()
            self.assert_ended(job, [-9, 3])
            self.noticed(killed, job.texts())
            self.assertRegex(b.error, "the first host.* is lost")
        self.strike(fault)

    # fault: 10
    def test_an_agent_is_stopped(self):
        self.limit = ACROSS

        def fault():
            job, a, b = self.start()
            self.pause(2.5)
            stopped = time.monotonic()
            b.process.send_signal(signal.SIGSTOP)
            self.assertTrue(a.says("the agent of host b does not answer, although its host does"), job.texts())
            self.noticed(stopped, job.texts())
            b.process.send_signal(signal.SIGCONT)
            self.assertTrue(a.says("the agent of host b answers again"), job.texts())
            a.process.send_signal(signal.SIGINT)
            self.assert_ended(job, [75, 75])
        self.strike(fault)


class Cables(FaultsTest):
    limit = ACROSS

    def setUp(self):
        super().setUp()
        try:
            with Switch("ab"):
                pass
        except (OSError, subprocess.CalledProcessError) as error:
            self.skipTest(f"no network namespaces can be made here ({error})")

    def start(self, switch, *options, **variables):
        """A job of three hosts."""
        variables = [f"{name}={value}" for name, value in variables.items()]
        job = Job(LOCKSTEP, *options, endpoint=f"{switch.addresses['a']}:29400",
                  wrap=lambda host: [*switch.command(host), "env", *variables])
        self.addCleanup(job.__exit__)
        for host in "abc":
            job.start(host, [WORKER, FOREVER], ranks=1)
        self.assertTrue(job.agents[0].says("3 ranks on 3 hosts", 30), job.texts())
        return job

    # fault: 16
    def test_a_cable_is_cut(self):
        def fault():
            with Switch("abc") as switch:
                job = self.start(switch, "--nnodes", "3")
                self.pause(2.5)
                host = self.random.choice("bc")
                cut = time.monotonic()
                switch.cut(host)
                first = job.agents[0]
                self.assertTrue(first.says("is lost: nothing has arrived from its agent for 2.5 s"), job.texts())
                self.noticed(cut, job.texts())
                self.assertEqual(job.codes(), [3, 3, 3], job.texts())
                self.assertEqual(re.findall(r"host (\w+) \(rank \d\) is lost", first.error), [host], job.texts())
                self.assertEqual(job.left(2), [], job.texts())
        self.strike(fault)

    def expect_apart_and_together(self, job, switch):
        """b and c do not reach each other: one of them goes, and comes back once they do."""
        first = job.agents[0]
        ranks = {host: int(rank) for host, rank in re.findall(r"\b([abc]): rank (\d)", first.error)}
        leaver, stays = sorted("bc", key=lambda host: ranks[host], reverse=True)
        self.assertTrue(first.says(f"and host {stays} cannot reach each other"), job.texts())
        noticed = time.monotonic()
        self.assertEqual(re.findall(r"host (\w) \(rank \d\) is lost", first.error), [leaver], job.texts())
        self.assertTrue(first.says("begins again with 2 ranks on 2 hosts"), job.texts())
        switch.unite("b", "c")
        self.assertTrue(first.says(f"host {leaver} reaches all other hosts again"), job.texts())
        self.assertTrue(first.says("begins again with 3 ranks on 3 hosts"), job.texts())
        first.process.send_signal(signal.SIGINT)
        self.assertEqual(job.codes(), [75] * 3, job.texts())
        self.assertEqual(job.left(2), [], job.texts())
        return noticed

    # fault: 17
    def test_two_hosts_do_not_reach_each_other(self):
        def fault():
            with Switch("abc") as switch:
                job = self.start(switch, "--nnodes", "2:3", "--rdzv-conf", "last_call_timeout=1")
                for rank in range(3):
                    self.assertTrue(job.agents[0].says(f"[{rank}] joined", stream="out"), job.texts())
                self.pause(2.5)
                apart = time.monotonic()
                switch.separate("b", "c")
                self.noticed(apart, job.texts(), self.expect_apart_and_together(job, switch))
        self.strike(fault)

    # fault: 17
    def test_two_hosts_have_never_reached_each_other(self):
        with Switch("abc") as switch:
            switch.separate("b", "c")
            job = self.start(switch, "--nnodes", "2:3", "--rdzv-conf", "last_call_timeout=1", TEST_JOIN_MS="6000")
            self.expect_apart_and_together(job, switch)


if __name__ == "__main__":
    LOCKSTEP, WORKER = sys.argv.pop(1), sys.argv.pop(1)
    own_shared_memory()
    unittest.main(verbosity=2)
