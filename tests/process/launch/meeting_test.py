"""Launchers that look for each other in networks that are not ready yet, and at endpoints that cannot be:
meeting_test.py <lockstep>. Needs to make network namespaces."""

import subprocess
import sys
import unittest

from agents import Job
from network_test import Switch, ip

LOCKSTEP = ""


class MeetingTest(unittest.TestCase):
    def setUp(self):
        self.switch = Switch()
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


if __name__ == "__main__":
    LOCKSTEP = sys.argv[1]
    try:
        with Switch():
            pass
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"skipped: no network namespaces can be made here ({error})")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1] + sys.argv[2:], verbosity=2)
