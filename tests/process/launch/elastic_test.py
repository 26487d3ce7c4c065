"""Jobs whose the number of hosts may change: elastic_test.py <lockstep>"""

import collections
import os
import re
import signal
import sys
import textwrap
import unittest

from agents import Job
from processes import wait_for

LOCKSTEP = ""

# Counts steps; rank 0 keeps a snapshot, from which the next attempt goes on. Asked to stop, all save and end.
TRAINING = textwrap.dedent("""
    snapshot=$1; last=$2
    stop=0; trap stop=1 TERM
    step=$(cat $snapshot 2> /dev/null || echo 0)
    echo "rank $RANK of $WORLD_SIZE from step $step"
    while [ $step -lt $last ] && [ $stop = 0 ]; do
      step=$((step + 1)); sleep 0.05
      if [ $RANK = 0 ]; then echo $step > $snapshot.new; mv $snapshot.new $snapshot; fi
      [ -e $snapshot.end ] && last=$step
    done
    echo "rank $RANK at step $step"
""")


class ElasticTest(unittest.TestCase):
    def job(self, *options, **more):
        job = Job(LOCKSTEP, *options, **more)
        self.addCleanup(job.__exit__)
        self.snapshot = os.path.join(job.folder.name, "snapshot")
        return job

    def training(self, last=1_000_000):
        return ["sh", "-c", TRAINING, "training", self.snapshot, str(last)]

    def end_training(self):
        with open(self.snapshot + ".end", "w", encoding="ascii"):
            pass

    def starts(self, agent):
        """World size -> ranks, and the steps from which they began, in the order of the attempts."""
        attempts = collections.OrderedDict()
        for rank, size, step in re.findall(r"rank (\d+) of (\d+) from step (\d+)", agent.output):
            attempts.setdefault((int(size), int(step)), set()).add(int(rank))
        return attempts

    def assert_attempt(self, job, size):
        """The last attempt has all of its ranks."""
        first = job.agents[0]
        self.assertTrue(first.says(f"of {size} from step", stream="out"), job.texts())

    # fault: 6
    # feature: J-10
    def test_a_host_leaves_and_another_comes_and_training_goes_on(self):
        job = self.job("--nnodes", "1:4", "--rdzv-conf", "last_call_timeout=1")
        a = job.start("a", self.training(), "--node-rank", "0")
        for name in "bc":
            job.start(name, self.training())
        # Where hosts are slow to come, two ranks have begun before.
        self.assertTrue(a.says("rank 5 of 6 from step", stream="out"), job.texts())
        def of_four():  # they may have been four on the way to six
            return len(re.findall("rank 3 of 4 from step", a.output))

        before = of_four()
        job.agents[1].process.kill()
        self.assertTrue(a.says("is lost"), job.texts())
        self.assertTrue(wait_for(lambda: of_four() > before, 30), job.texts())
        job.start("d", self.training())
        self.assertTrue(a.says("begins again with 6 ranks on 3 hosts"), job.texts())
        self.end_training()
        self.assertEqual([agent.code() for agent in job.agents], [0, -9, 0, 0], job.texts())
        steps = [step for _, step in self.starts(a)]
        self.assertEqual(steps, sorted(steps), job.texts())
        self.assertEqual(job.left(), [], job.texts())

    def test_times_of_the_rendezvous_have_fractions(self):
        job = self.job("--nnodes", "1:2", "--rdzv-conf", "last_call_timeout=0.25,join_timeout=60.5,loss_interval=0.5")
        a = job.start("a", "echo of $WORLD_SIZE", ranks=1)
        self.assertEqual((job.codes(), a.output), ([0], "[0] of 1\n"), job.texts())
        for key in ("join_timeout", "last_call_timeout", "loss_interval"):
            job = self.job("--nnodes", "1:2", "--rdzv-conf", f"{key}=2592001")
            a = job.start("a", "true", ranks=1)
            self.assertEqual((job.codes(), a.error), (
                [2], f"lockstep: --rdzv-conf {key} is '2592001'; it can be 0 to 2592000 seconds\n"), job.texts())

    def test_the_last_call_waits_for_more_hosts_and_then_begins(self):
        job = self.job("--nnodes", "2:4", "--rdzv-conf", "last_call_timeout=2")
        a = job.start("a", "echo of $WORLD_SIZE", "--node-rank", "0", ranks=1)
        for name in "bc":
            job.start(name, "echo of $WORLD_SIZE", ranks=1)
        self.assertEqual(job.codes(), [0, 0, 0], job.texts())
        self.assertEqual(a.output.count("of 3"), 3, job.texts())

    def test_as_many_as_possible_begin_at_once(self):
        job = self.job("--nnodes", "1:2", "--rdzv-conf", "last_call_timeout=600")
        job.start("a", "true", "--node-rank", "0")
        job.start("b", "true")
        self.assertEqual(job.codes(), [0, 0], job.texts())

    def test_a_spare_host_takes_the_place_of_a_lost_one(self):
        job = self.job("--nnodes", "2")
        a = job.start("a", self.training(), "--node-rank", "0")
        b = job.start("b", self.training())
        self.assertTrue(a.says("rank 3 of 4 from step", stream="out"), job.texts())
        c = job.start("c", self.training())
        self.assertTrue(a.says("host c waits until another host leaves"), job.texts())
        b.process.kill()
        self.assertTrue(a.says("begins again with 4 ranks on 2 hosts: a: ranks 0 to 1; c: ranks 2 to 3"), job.texts())
        self.end_training()
        self.assertEqual([a.code(), c.code()], [0, 0], job.texts())

    def test_a_host_that_is_started_again_is_waited_for(self):
        job = self.job("--nnodes", "2", "--max-restarts", "1")
        a = job.start("a", self.training(), "--node-rank", "0")
        b = job.start("b", self.training())
        self.assertTrue(a.says("rank 3 of 4 from step", stream="out"), job.texts())
        b.process.kill()
        self.assertTrue(a.says("is lost"), job.texts())
        again = job.start("b2", self.training())
        self.assertTrue(a.says("begins again with 4 ranks on 2 hosts: a: ranks 0 to 1; b2: ranks 2 to 3"), job.texts())
        self.end_training()
        self.assertEqual([a.code(), again.code()], [0, 0], job.texts())

    def test_hosts_keep_their_numbers(self):
        job = self.job("--nnodes", "3", "--max-restarts", "3")
        script = "echo $RESTART_COUNT: $RANK on $LOCKSTEP_NODE; test $RESTART_COUNT = 3"
        a = job.start("a", script, "--node-rank", "0", ranks=1)
        for name in "bc":
            job.start(name, script, ranks=1)
        self.assertEqual(job.codes(), [0, 0, 0], job.texts())
        places = collections.defaultdict(set)
        for rank, host in re.findall(r"\d: (\d) on (\w)", a.output):
            places[rank].add(host)
        self.assertEqual([len(hosts) for hosts in places.values()], [1, 1, 1], job.texts())

    # fault: 7
    def test_losing_hosts_one_after_the_other(self):
        job = self.job("--nnodes", "1:4", "--rdzv-conf", "last_call_timeout=600")
        a = job.start("a", self.training(), "--node-rank", "0", ranks=1)
        for name in "bcd":
            job.start(name, self.training(), ranks=1)
        for left in (4, 3, 2, 1):
            self.assert_attempt(job, left)
            if left > 1:
                job.agents[left - 1].process.send_signal(signal.SIGKILL)
        self.end_training()
        self.assertEqual(a.code(), 0, job.texts())
        self.assertEqual(job.left(), [], job.texts())


if __name__ == "__main__":
    LOCKSTEP = sys.argv[1]
    unittest.main(argv=sys.argv[:1] + sys.argv[2:], verbosity=2)
