"""Hosts that are asked to leave a job of MIN:MAX hosts, and jobs that are stopped: leaving_test.py <lockstep>"""

import os
import re
import signal
import sys
import tempfile
import time
import unittest

from agents import Job
from processes import PausedReader, wait_for

LOCKSTEP = ""
LEFT, STOPPED = 5, 75

# Asked to stop, all ranks save and end.
SAVING = """
    trap 'echo "rank $RANK of $WORLD_SIZE saves"; exit 0' TERM INT
    echo "rank $RANK of $WORLD_SIZE"
    while :; do sleep 0.02; done
"""


class LeavingTest(unittest.TestCase):
    def running(self, *options, nodes="1:4", names="abc", program=SAVING):
        job = Job(LOCKSTEP, "--nnodes", nodes, "--rdzv-conf", "last_call_timeout=1", *options)
        self.addCleanup(job.__exit__)
        for name in names:
            job.start(name, program, ranks=1)
        self.wait_for_world(job, len(names))
        return job

    def agent(self, job, name):
        return next(agent for agent in job.agents if agent.name == name)

    def wait_for_world(self, job, size):
        def is_there():
            ranks = {rank for agent in job.agents for rank in re.findall(rf"rank (\d+) of {size}\n", agent.output)}
            return len(ranks) == size
        self.assertTrue(wait_for(is_there, 30), job.texts())

    def stop(self, job, *names):
        self.agent(job, names[0]).process.send_signal(signal.SIGINT)
        self.assertEqual([self.agent(job, name).code() for name in names], [STOPPED] * len(names), job.texts())
        self.assertEqual(job.left(), [], job.texts())

    # fault: 50
    def test_the_others_go_on_without_a_host_that_leaves(self):
        job = self.running()
        a, _, c = job.agents
        begin = time.monotonic()
        c.process.send_signal(signal.SIGTERM)
        self.assertTrue(a.says("begins again with 2 ranks on 2 hosts"), job.texts())
        self.assertEqual(c.code(), LEFT, job.texts())
        self.assertIn("this host has left the job, which continues", c.error)
        self.assertEqual(a.output.count("of 3 saves"), 3, job.texts())
        self.assertLess(time.monotonic() - begin, 10)  # not after a timeout
        self.wait_for_world(job, 2)
        self.stop(job, "a", "b")

    # fault: 50
    def test_without_the_first_host_the_others_meet_anew(self):
        job = self.running()
        a, b, c = job.agents
        a.process.send_signal(signal.SIGTERM)
        self.assertEqual(a.code(), LEFT, job.texts())
        self.assertEqual(a.output.count("of 3 saves"), 3, job.texts())
        self.wait_for_world(job, 2)
        self.assertIn("the first host a has left: meeting again", b.error + c.error)
        self.assertTrue(a.error.endswith("lockstep: this host has left the job, which continues\n"), a.error)
        self.assertNotIn("stopped by", a.error)
        a2 = job.start("a2", SAVING, ranks=1)
        self.assertTrue(a2.says("3 ranks on 3 hosts"), job.texts())
        self.stop(job, "b", "c", "a2")

    # fault: 50
    def test_without_the_first_host_the_job_is_the_same_one(self):
        counting = SAVING.replace("of $WORLD_SIZE\"\n", "of $WORLD_SIZE\"\n echo \"$LOCKSTEP_JOB_ID $RESTART_COUNT "
                                  "$LOCKSTEP_GENERATION\"\n", 1)
        job = self.running("--rdzv-conf", "last_call_timeout=60", "--max-restarts", "1", nodes="1:3", program=counting)
        a, b, c = job.agents
        begin = time.monotonic()
        a.process.send_signal(signal.SIGTERM)
        self.assertEqual(a.code(), LEFT, job.texts())
        self.wait_for_world(job, 2)  # all who were told to meet are there: nobody else is waited for
        self.assertLess(time.monotonic() - begin, 15)
        told = [set(re.findall(r"\b([0-9a-f]{16} \d \d)$", text, re.M)) for text in (a.output, b.output + c.output)]
        self.assertEqual([len(each) for each in told], [1, 1], job.texts())
        (before,), (after,) = told
        self.assertEqual(before.split()[0], after.split()[0])
        self.assertEqual([before.split()[1:], after.split()[1:]], [["0", "0"], ["0", "1"]])
        self.stop(job, "b", "c")

    def test_a_host_that_is_asked_while_the_first_one_leaves_leaves_too(self):
        for delay in (0.02, 0.05, 0.1):
            job = self.running()
            a, b, c = job.agents
            a.process.send_signal(signal.SIGTERM)
            time.sleep(delay)  # within the moments in which the others are told to meet anew
            b.process.send_signal(signal.SIGTERM)
            self.assertEqual([a.code(), b.code()], [LEFT, LEFT], job.texts())
            self.wait_for_world(job, 1)
            self.stop(job, "c")

    def test_a_job_that_is_stopped_while_the_first_host_leaves_stops(self):
        for delay in (0.02, 0.05, 0.1, 0.2):
            job = self.running()
            a, b, c = job.agents
            a.process.send_signal(signal.SIGTERM)
            time.sleep(delay)
            b.process.send_signal(signal.SIGINT)
            self.assertEqual([b.code(), c.code()], [STOPPED, STOPPED], job.texts())
            self.assertIn(a.code(), [LEFT, STOPPED], job.texts())
            self.assertEqual(job.left(), [], job.texts())

    def test_two_hosts_that_are_asked_to_stop_one_after_the_other_save(self):
        slow = SAVING.replace("echo \"rank $RANK of $WORLD_SIZE saves\"",
                              "sleep 2; echo \"rank $RANK of $WORLD_SIZE saves\"")
        job = self.running(nodes="3", program=slow)
        a, b, _ = job.agents
        b.process.send_signal(signal.SIGTERM)
        self.assertTrue(a.says("stopping the job"), job.texts())
        time.sleep(1.2)  # later than the same request can come again
        a.process.send_signal(signal.SIGTERM)
        self.assertEqual(job.codes(), [STOPPED] * 3, job.texts())
        self.assertEqual(a.output.count("of 3 saves"), 3, job.texts())

    def test_a_host_leaves_a_job_whose_first_agent_is_frozen(self):
        job = self.running("--stop-grace", "2")
        a, b, _ = job.agents
        a.process.send_signal(signal.SIGSTOP)
        self.addCleanup(a.process.send_signal, signal.SIGCONT)
        b.process.send_signal(signal.SIGTERM)
        self.assertEqual(b.code(20), LEFT, job.texts())
        self.assertIn("the agent of the first host does not answer, although its host does", b.error)
        a.process.send_signal(signal.SIGCONT)
        self.assertTrue(a.says("begins again with 2 ranks on 2 hosts"), job.texts())
        self.stop(job, "a", "c")

    def test_when_all_are_asked_to_leave_the_job_stops(self):
        job = self.running()
        for agent in job.agents:
            agent.process.send_signal(signal.SIGTERM)
        self.assertEqual(job.codes(), [STOPPED] * 3, job.texts())
        self.assertEqual(job.agents[0].output.count("of 3 saves"), 3, job.texts())
        self.assertEqual(job.left(), [], job.texts())

    # fault: 50
    def test_a_save_that_fails_while_a_host_leaves_is_a_failure(self):
        failing = """
            trap '[ FAILS ] && { echo "no space left" >&2; exit 3; }; exit 0' TERM INT
            echo "rank $RANK of $WORLD_SIZE"
            while :; do sleep 0.02; done
        """
        for fails in ("$RANK = 2", "1 = 1"):  # a collective save fails on all
            job = self.running(program=failing.replace("FAILS", fails))
            job.agents[2].process.send_signal(signal.SIGTERM)
            self.assertEqual(job.codes(), [3] * 3, job.texts())
            self.assertRegex(job.agents[0].error, r"rank \d \(host [abc], pid \d+\) exited with code 3")
            self.assertNotIn("begins again", job.agents[0].error)

    def test_an_interrupt_at_any_host_is_for_the_job(self):
        for at in range(2):
            job = self.running(names="ab")
            job.agents[at].process.send_signal(signal.SIGINT)
            self.assertEqual(job.codes(), [STOPPED] * 2, job.texts())

    def test_with_fewer_than_the_least_the_job_waits_for_another(self):
        job = self.running(nodes="2:3", names="ab")
        a, b = job.agents
        b.process.send_signal(signal.SIGTERM)
        self.assertEqual(b.code(), LEFT, job.texts())
        self.assertTrue(a.says("waiting for 1 more host"), job.texts())
        a_ranks = a.output.count("rank 0 of 2\n")
        job.start("c", SAVING, ranks=1)
        self.assertTrue(wait_for(lambda: a.output.count("rank 0 of 2\n") > a_ranks, 30), job.texts())
        self.stop(job, "a", "c")

    def test_a_host_that_waits_for_a_place_leaves_at_once(self):
        job = self.running(nodes="1:2", names="ab")
        a = job.agents[0]
        begun = a.error.count("begins again")  # on a busy machine b may come after the last call
        c = job.start("c", SAVING, ranks=1)
        self.assertTrue(a.says("host c waits until another host leaves"), job.texts())
        c.process.send_signal(signal.SIGTERM)
        self.assertEqual(c.code(), LEFT, job.texts())
        self.assertEqual(a.error.count("begins again"), begun, job.texts())
        self.stop(job, "a", "b")

    def test_asked_twice_a_host_s_ranks_are_killed(self):
        deaf = """trap '' TERM INT; echo "rank $RANK of $WORLD_SIZE"; echo "pid $$ of $LOCKSTEP_NODE"
                  while :; do sleep 0.02; done"""
        job = self.running("--stop-grace", "60", program=deaf)
        a, _, c = job.agents
        c.process.send_signal(signal.SIGTERM)
        self.assertTrue(a.says("host c leaves the job"), job.texts())
        time.sleep(1.1)  # sooner it is the same request
        c.process.send_signal(signal.SIGTERM)
        pids = {name: pid for pid, name in re.findall(r"pid (\d+) of (\w)", a.output)}
        self.assertTrue(wait_for(lambda: not os.path.exists(f"/proc/{pids['c']}"), 10), job.texts())
        self.assertTrue(os.path.exists(f"/proc/{pids['b']}"), job.texts())
        a.process.send_signal(signal.SIGINT)
        time.sleep(1.1)
        a.process.send_signal(signal.SIGINT)
        self.assertEqual(set(job.codes(20)), {STOPPED}, job.texts())

    def test_an_agent_whose_messages_nobody_reads_leaves_like_others(self):
        for first in (False, True):
            options = ("--nnodes", "1:4", "--rdzv-conf", "last_call_timeout=1")
            with PausedReader() as paused, Job(LOCKSTEP, *options) as job:
                deaf = job.start("a", SAVING, ranks=1, stderr=paused.writer) if first else None
                b = job.start("b", SAVING, ranks=1)
                deaf = deaf or job.start("c", SAVING, ranks=1, stderr=paused.writer)
                self.wait_for_world(job, 2)
                begin = time.monotonic()
                deaf.process.send_signal(signal.SIGTERM)
                self.assertEqual(deaf.code(20), LEFT, job.texts())
                self.assertLess(time.monotonic() - begin, 10)  # not after a timeout
                self.wait_for_world(job, 1)
                b.process.send_signal(signal.SIGINT)
                self.assertEqual(b.code(20), STOPPED, job.texts())
                self.assertEqual(job.left(), [], job.texts())

    def test_the_only_host_leaves_though_nobody_reads_what_its_ranks_have_said(self):
        script = "trap 'echo saves >&2; exit 0' TERM; echo ready; while :; do sleep 0.02; done"
        with PausedReader() as paused, Job(LOCKSTEP, "--nnodes", "1:4", "--rdzv-conf", "last_call_timeout=1") as job:
            a = job.start("a", script, ranks=1, stderr=paused.writer)
            self.assertTrue(a.says("ready", stream="out"), job.texts())
            a.process.send_signal(signal.SIGTERM)
            self.assertEqual(a.code(10), STOPPED, job.texts())
            self.assertEqual(job.left(), [], job.texts())

    def test_an_interrupt_after_a_request_to_leave_is_the_first_one_for_the_job(self):
        slow = """trap 'trap "" TERM INT; echo "rank $RANK saves"; while test ! -e GO; do sleep 0.02; done
                        echo "rank $RANK saved"; exit 0' TERM INT
                  echo "rank $RANK of $WORLD_SIZE"; while :; do sleep 0.02; done"""
        for at, insists in ((0, False), (2, False), (0, True), (2, True)):
            with tempfile.TemporaryDirectory() as folder:
                go = os.path.join(folder, "go")
                job = self.running("--stop-grace", "60", program=slow.replace("GO", go))
                a, agent = job.agents[0], job.agents[at]
                agent.process.send_signal(signal.SIGTERM)
                self.assertTrue(wait_for(lambda: a.output.count(" saves\n") == 3), job.texts())
                agent.process.send_signal(signal.SIGINT)
                self.assertTrue(a.says("stopping the job (repeat to kill)"), job.texts())
                if insists:
                    agent.process.send_signal(signal.SIGINT)
                else:
                    with open(go, "wb"):
                        pass
                self.assertEqual(set(job.codes(20)), {STOPPED}, job.texts())
                self.assertEqual(a.output.count(" saved\n"), 0 if insists else 3, job.texts())
                self.assertEqual(job.left(), [], job.texts())

    def test_the_exit_code_of_a_stop_can_be_chosen(self):
        job = self.running("--stop-exit-code", "42", names="ab")
        job.agents[0].process.send_signal(signal.SIGINT)
        self.assertEqual(job.codes(), [42, 42], job.texts())

    # fault: 6
    def test_a_host_that_is_lost_again_and_again_costs_restarts(self):
        job = self.running("--max-restarts", "1", names="ab")
        a = job.agents[0]
        for begins in range(1, 4):
            job.agents[-1].process.kill()
            if begins == 3:
                break
            self.assertTrue(wait_for(lambda: a.error.count("is lost") == begins, 30), job.texts())
            job.start("b", SAVING, ranks=1)
            self.assertTrue(wait_for(lambda: a.error.count("ranks on 2 hosts") == begins + 1, 30), job.texts())
        self.assertEqual(a.code(), 3, job.texts())
        self.assertIn("host b was lost again within 600 s (--rdzv-conf loss_interval=)", a.error)
        self.assertEqual(job.left(), [], job.texts())


if __name__ == "__main__":
    LOCKSTEP = sys.argv[1]
    unittest.main(argv=sys.argv[:1] + sys.argv[2:], verbosity=2)
