"""Launchers that look for each other in networks that are not ready yet, and at endpoints that cannot be:
meeting_test.py <lockstep> [hello]. Needs to make network namespaces."""

import os
import subprocess
import sys
import unittest

from agents import Job
from switch import Switch, ip

LOCKSTEP = ""
HELLO = ""


class MeetingTest(unittest.TestCase):
    def setUp(self):
        self.switch = Switch("abcd")
        self.switch.__enter__()
        self.addCleanup(self.switch.__exit__)

    def job(self, *options, endpoint=None):
        job = Job(LOCKSTEP, *options, endpoint=endpoint or f"{self.switch.addresses['a']}:29400",
                  wrap=self.switch.command)
        self.addCleanup(job.__exit__)
        return job

    def ip(self, host, *arguments):
        ip("-n", self.switch.hosts[host], *arguments)

    # fault: 16
    def test_routes_that_come_late(self):
        routes = {"b": ("blackhole", "Invalid argument"), "c": ("prohibit", "Permission denied"),
                  "d": ("unreachable", "No route to host")}
        for host, (route, _) in routes.items():
            self.ip(host, "route", "add", route, self.switch.addresses["a"])
        job = self.job("--nnodes", "4")
        agents = {host: job.start(host, "true", ranks=1) for host in "abcd"}
        for host, (route, reason) in routes.items():
            self.assertTrue(agents[host].says(f"waiting for the first host at {job.endpoint}", 20), job.texts())
            self.assertIn(reason, agents[host].error)
            self.ip(host, "route", "del", route, self.switch.addresses["a"])
        self.assertEqual(job.codes(), [0] * 4, job.texts())

    def test_addresses_that_come_late(self):
        addresses = [(host, "address", "add", f"{self.switch.addresses[host]}/24", "dev", "cable") for host in "ab"]
        for host in "ab":
            self.ip(host, "address", "flush", "dev", "cable")
        job = self.job("--nnodes", "2")
        agents = [job.start(host, "true", ranks=1) for host in "ab"]
        for agent in agents:
            self.assertTrue(agent.says(f"waiting for the first host at {job.endpoint}", 20), job.texts())
            self.assertIn("Network is unreachable", agent.error)
        for address in addresses:
            self.ip(*address)
        self.assertEqual(job.codes(), [0, 0], job.texts())

    def test_endpoints_that_cannot_be_are_refused_at_once(self):
        broadcast = self.switch.addresses["a"].rpartition(".")[0] + ".255"
        for endpoint, words in (
                ("0.0.0.0:29400", "no host has the address 0.0.0.0, which means all addresses of a host"),
                ("0.0.0.0", "no host has the address 0.0.0.0, which means all addresses of a host"),
                ("[::]:29400", "no host has the address ::, which means all addresses of a host"),
                ("255.255.255.255:29400", "which is the broadcast address"),
                (f"{broadcast}:29400", f"{broadcast}, which is the broadcast address of the interface cable"),
                ("224.0.0.1:29400", "which is a multicast address"),
                ("[ff02::1]:29400", "which is a multicast address"),
                ("[fe80::1]:29400", "needs the name of an interface of this host: [fe80::1%eth0]:29400"),
                ("h1:0", "port 0 means any free port"),
                ("h1:65536", "not a port number from 0 to 65535"),
                (":29400", "the host is empty")):
            with self.subTest(endpoint):
                job = self.job("--nnodes", "2", endpoint=endpoint)
                agent = job.start("a", "true", ranks=1)
                self.assertEqual(agent.code(5), 2, job.texts())
                self.assertIn(words, agent.error)

    # As torchrun's page on several jobs of one host has it.
    def test_a_job_of_one_host_may_have_port_0(self):
        job = self.job("--nnodes", "1", endpoint="localhost:0")
        job.start("a", "true", ranks=1)
        self.assertEqual(job.codes(), [0], job.texts())

    def test_link_local_addresses_have_each_hosts_own_interface(self):
        # The hosts' interfaces have different names.
        self.ip("b", "link", "set", "cable", "down")
        self.ip("b", "link", "set", "cable", "name", "wire")
        self.ip("b", "link", "set", "wire", "up")
        interfaces = {"a": "cable", "b": "wire"}
        for number, host in enumerate("ab"):
            self.ip(host, "address", "add", f"fe80::{number + 10:x}/64", "dev", interfaces[host], "nodad")
        job = self.job("--nnodes", "2")
        program = [HELLO] if HELLO else ["sh", "-c", "echo $LOCKSTEP_STORE $MASTER_ADDR"]
        for host in "ab":
            job.endpoint = f"[fe80::a%{interfaces[host]}]:29400"
            job.start(host, program, ranks=1)
        self.assertEqual(job.codes(), [0, 0], job.texts())
        if HELLO:
            self.assertIn("sees the sum", job.agents[0].output, job.texts())
        else:
            self.assertIn("fe80::a%wire", job.agents[0].output, job.texts())

    def test_a_host_without_127_0_0_1(self):
        self.ip("a", "-4", "address", "flush", "dev", "lo")
        script = "echo $LOCKSTEP_STORE $MASTER_ADDR"
        job = self.job("--nnodes", "1:2", "--rdzv-conf", "last_call_timeout=0", endpoint="localhost:29400")
        agent = job.start("a", script, ranks=1)
        self.assertEqual(job.codes(), [0], job.texts())
        self.assertRegex(agent.output, r"\[::1\]:\d+ ::1")
        program = [HELLO] if HELLO else ["sh", "-c", script]
        done = subprocess.run([*self.switch.command("a"), LOCKSTEP, "run", *program], capture_output=True, text=True,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("sees the sum" if HELLO else " ::1", done.stdout)

    def test_a_loopback_interface_that_is_down_is_named(self):
        self.ip("a", "link", "set", "lo", "down")
        done = subprocess.run([*self.switch.command("a"), LOCKSTEP, "run", "true"], capture_output=True, text=True,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("the loopback interface of this host is down", done.stderr)
        self.assertIn("ip link set lo up", done.stderr)


if __name__ == "__main__":
    LOCKSTEP = sys.argv[1]
    HELLO = sys.argv[2] if len(sys.argv) > 2 and os.path.exists(sys.argv[2]) else ""
    try:
        with Switch("ab"):
            pass
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"skipped: no network namespaces can be made here ({error})")
        sys.exit(77)
    unittest.main(argv=[name for name in sys.argv if not os.path.exists(name) or name == sys.argv[0]], verbosity=2)
