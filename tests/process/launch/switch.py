"""Hosts on one machine, which are network namespaces on one switch: with Switch("abc"). It needs root to make them."""

import secrets
import subprocess


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Switch:
    """A namespace with a bridge, to which each host has a cable."""

    def __init__(self, hosts):
        tag = secrets.token_hex(2)
        self.bridge = f"lke{tag}s"
        self.hosts = {host: f"lke{tag}{index}" for index, host in enumerate(hosts)}
        self.addresses = {host: f"10.213.9.{index + 1}" for index, host in enumerate(hosts)}

    def __enter__(self):
        try:
            ip("netns", "add", self.bridge)
            ip("-n", self.bridge, "link", "add", "switch", "type", "bridge")
            ip("-n", self.bridge, "link", "set", "switch", "up")
            for host, name in self.hosts.items():
                ip("netns", "add", name)
                ip("-n", name, "link", "add", "cable", "type", "veth", "peer", "name", f"to_{host}", "netns",
                   self.bridge)
                self.move(host, self.addresses[host])
                ip("-n", name, "link", "set", "lo", "up")
                ip("-n", name, "link", "set", "cable", "up")
                ip("-n", self.bridge, "link", "set", f"to_{host}", "master", "switch")
                ip("-n", self.bridge, "link", "set", f"to_{host}", "up")
        except (OSError, subprocess.CalledProcessError):
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in [self.bridge, *self.hosts.values()]:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)

    def command(self, host):
        return ["ip", "netns", "exec", self.hosts[host]]

    def move(self, host, address):
        """Gives the host another address."""
        ip("-n", self.hosts[host], "address", "flush", "dev", "cable", "scope", "global")
        ip("-n", self.hosts[host], "address", "add", f"{address}/24", "dev", "cable")
        self.addresses[host] = address

    def cut(self, host):
        ip("-n", self.bridge, "link", "set", f"to_{host}", "down")

    def mend(self, host):
        ip("-n", self.bridge, "link", "set", f"to_{host}", "up")

    def separate(self, one, other):
        """They reach each other no more, though they reach all others."""
        self.routes("add", one, other)

    def unite(self, one, other):
        self.routes("delete", one, other)

    def deafen(self, host):
        """What others send does not reach the host any more; what it sends reaches them."""
        for name, namespace in self.hosts.items():
            if name != host:
                ip("-n", namespace, "route", "add", "blackhole", f"{self.addresses[host]}/32")

    def routes(self, what, one, other):
        for here, there in ((one, other), (other, one)):
            ip("-n", self.hosts[here], "route", what, "blackhole", f"{self.addresses[there]}/32")
