"""Four hosts, which are network namespaces on one switch: network_test.py <lockstep> [hello]. Needs to make them."""

import os
import re
import subprocess
import sys
import time
import unittest

from agents import Job
from switch import Switch

LOCKSTEP = ""
HELLO = ""
HOSTS = "abcd"
FOREVER = 'echo "rank $RANK of $WORLD_SIZE pid $$"; exec sleep 1000'


class NetworkTest(unittest.TestCase):
    def setUp(self):
        self.switch = Switch(HOSTS)
        self.switch.__enter__()
        self.addCleanup(self.switch.__exit__)

    def job(self, *options):
        job = Job(LOCKSTEP, *options, endpoint=f"{self.switch.addresses['a']}:29400",
                  wrap=lambda host: self.switch.command(host[0]))
        self.addCleanup(job.__exit__)
        return job

    def start(self, job, program, ranks, hosts=HOSTS):
        return [job.start(host, program, ranks=ranks) for host in hosts]

    def wait_for_ranks(self, job, size):
        for rank in range(size):
            self.assertTrue(job.agents[0].says(f"rank {rank} of {size} pid", stream="out"), job.texts())

    def test_four_hosts_of_four_ranks_reduce(self):
        if not HELLO:
            self.skipTest("without torch")
        job = self.job("--nnodes", "4")
        first, *_ = self.start(job, [HELLO], 4)
        self.assertEqual(job.codes(), [0] * 4, job.texts())
        ranks = re.findall(r"^\[(\d+)\] .* sees the sum 136", first.output, re.M)
        self.assertEqual(sorted(int(rank) for rank in ranks), list(range(16)), job.texts())

    # fault: 16
    def test_a_cut_cable_ends_the_job_on_both_sides(self):
        job = self.job("--nnodes", "4")
        first, *others = self.start(job, FOREVER, 1)
        self.wait_for_ranks(job, 4)
        begin = time.monotonic()
        self.switch.cut("c")
        self.assertTrue(first.says("is lost: nothing has arrived from its agent for 2.5 s"), job.texts())
        self.assertLess(time.monotonic() - begin, 5)
        self.assertRegex(first.error, r"host c \(rank \d\) is lost")
        self.assertEqual(job.codes(), [3] * 4, job.texts())
        self.assertIn("the first host", others[1].error)
        self.assertEqual(job.left(), [], job.texts())

    # fault: 16
    def test_a_host_that_sends_and_does_not_receive_is_lost(self):
        job = self.job("--nnodes", "3:4", "--rdzv-conf", "last_call_timeout=600")
        first, *_ = self.start(job, FOREVER, 1)
        self.wait_for_ranks(job, 4)
        begin = time.monotonic()
        self.switch.deafen("c")
        self.assertTrue(first.says("begins again with 3 ranks on 3 hosts"), job.texts())
        self.assertLess(time.monotonic() - begin, 8)
        self.assertRegex(first.error, r"host c \(rank \d\) is lost: its host has acknowledged no data for 2.5")
        self.assertNotIn("though its host does", first.error)
        self.wait_for_ranks(job, 3)

    # fault: 17
    def test_the_side_without_the_first_host_stops_itself_and_the_other_goes_on(self):
        job = self.job("--nnodes", "2:4", "--rdzv-conf", "last_call_timeout=600")
        first, *_ = self.start(job, FOREVER, 1)
        self.wait_for_ranks(job, 4)
        # c and d do not see each other either, which changes nothing: neither sees the first host.
        self.switch.cut("c")
        self.switch.cut("d")
        begin = time.monotonic()
        for host in (2, 3):
            self.assertEqual(job.agents[host].code(10), 3, job.texts())
            self.assertEqual(job.agents[host].wait_until_gone(1), [], job.texts())
        self.assertLess(time.monotonic() - begin, 5)
        self.assertTrue(first.says("begins again with 2 ranks on 2 hosts"), job.texts())
        self.wait_for_ranks(job, 2)
        # The network is whole again, and the hosts are started again.
        for host in "cd":
            self.switch.mend(host)
            job.start(host + "2", FOREVER, ranks=1)
        self.assertTrue(first.says("begins again with 4 ranks on 4 hosts"), job.texts())

    # feature: B-04
    def test_a_name_that_is_loopback_on_its_own_host(self):
        # As Debian's /etc/hosts has it: on the host a its name is 127.0.1.1, elsewhere its address.
        job = self.job("--nnodes", "2")
        job.endpoint = "lockstep-host-a:29400"
        for host, address in (("a", "127.0.1.1"), ("b", self.switch.addresses["a"])):
            path = os.path.join(job.folder.name, f"hosts_{host}")
            with open(path, "w", encoding="ascii") as file:
                file.write(f"127.0.0.1 localhost\n{address} lockstep-host-a\n")
        job.wrap = lambda host: [*self.switch.command(host[0]), "unshare", "-m", "sh", "-c",
                                 f'mount --bind {job.folder.name}/hosts_{host[0]} /etc/hosts && exec "$@"', "sh"]
        first = job.start("a", "echo $LOCKSTEP_STORE", ranks=1)
        job.start("b", "echo $LOCKSTEP_STORE", ranks=1)
        self.assertEqual(job.codes(), [0, 0], job.texts())
        self.assertEqual(first.output.count(self.switch.addresses["a"] + ":"), 2, job.texts())

    # feature: B-04
    def test_an_endpoint_that_others_do_not_reach_is_named(self):
        job = self.job("--nnodes", "2", "--rdzv-conf", "join_timeout=8")
        job.endpoint = "127.0.0.1:29400"
        first = job.start("a", "true", ranks=1)
        self.assertTrue(first.says("other hosts cannot reach it", 10), job.texts())
        self.assertEqual(first.code(20), 3, job.texts())


if __name__ == "__main__":
    LOCKSTEP = sys.argv[1]
    HELLO = sys.argv[2] if len(sys.argv) > 2 and os.path.exists(sys.argv[2]) else ""
    try:
        with Switch(HOSTS):
            pass
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"skipped: no network namespaces can be made here ({error})")
        sys.exit(77)
    unittest.main(argv=[name for name in sys.argv if not os.path.exists(name) or name == sys.argv[0]], verbosity=2)
