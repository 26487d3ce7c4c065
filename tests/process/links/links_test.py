"""A TCP mesh between real processes: links_test.py <links_rank> Loopback|Hosts"""

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from bad_cable import BadCable

RANK = ""
# Seconds, for a busy machine; who is told nothing waits for longer.
SLACK = float(os.environ.get("LOCKSTEP_TEST_SLACK", "5"))


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Namespaces:
    """Two network namespaces that are joined by one cable."""

    def __init__(self):
        tag = secrets.token_hex(3)
        self.names = [f"lks{tag}a", f"lks{tag}b"]
        self.addresses = ["10.213.7.1", "10.213.7.2"]

    def __enter__(self):
        try:
            for name in self.names:
                ip("netns", "add", name)
            first, second = self.names
            ip("-n", first, "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", second)
            for name, address in zip(self.names, self.addresses):
                ip("-n", name, "address", "add", f"{address}/24", "dev", "cable")
                ip("-n", name, "link", "set", "lo", "up")
                ip("-n", name, "link", "set", "cable", "up")
        except subprocess.CalledProcessError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)

    def narrow(self, rate):
        for name in self.names:
            subprocess.run(["ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "cable", "root", "tbf",
                            "rate", rate, "burst", "16kb", "latency", "400ms"], check=True, capture_output=True)

    def cut(self):
        ip("-n", self.names[0], "link", "set", "cable", "down")

    def blackhole(self, what):
        """what: "add", and the first host reaches the other no more, or "delete"."""
        ip("-n", self.names[0], "route", what, "blackhole", self.addresses[1])


class Ranks:
    """The ranks of one job, and what they print."""

    def __init__(self, places, rounds, *more, **variables):
        """places: for each rank its address and the command before its program."""
        self.folder = tempfile.mkdtemp()
        token = os.path.join(self.folder, "token")
        with open(os.open(token, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
            file.write(secrets.token_hex(32) + "\n")
        environment = {**os.environ, "LOCKSTEP_TOKEN_FILE": token, **variables}
        environment.pop("LOCKSTEP_TOKEN_FD", None)
        store = os.path.join(self.folder, "store")
        self.ranks = [
            subprocess.Popen([*before, RANK, str(rank), str(len(places)), address, store, str(rounds), *map(str, more)],
                             stdout=subprocess.PIPE, text=True, env=environment)
            for rank, (address, before) in enumerate(places)
        ]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for rank in self.ranks:
            rank.kill()
            rank.wait()
            rank.stdout.close()
        shutil.rmtree(self.folder)

    def lines(self):
        """The next line of every rank."""
        return [rank.stdout.readline().strip() for rank in self.ranks]

    def wait_until_running(self):
        return self.lines() == ["connected"] * len(self.ranks) and self.lines() == ["running"] * len(self.ranks)


def on_loopback(count):
    return [("127.0.0.1", [])] * count


def in_namespaces(namespaces, count):
    """Half of the ranks here, half there."""
    half = count // 2
    return [(namespaces.addresses[rank // half], ["ip", "netns", "exec", namespaces.names[rank // half]])
            for rank in range(count)]


class Hosts(unittest.TestCase):
    """Network namespaces stand for hosts."""

    # feature: A-13
    def test_ranks_on_two_hosts_compute_the_sum(self):
        with Namespaces() as namespaces, Ranks(in_namespaces(namespaces, 4), 10) as ranks:
            self.assertTrue(ranks.wait_until_running())
            self.assertEqual(ranks.lines(), ["done"] * 4)

    # fault: 16
    def test_a_cut_cable_is_noticed_on_both_sides_and_the_ranks_beyond_it_are_named(self):
        with Namespaces() as namespaces, Ranks(in_namespaces(namespaces, 4), 0) as ranks:
            self.assertTrue(ranks.wait_until_running())
            start = time.monotonic()
            namespaces.cut()
            lines = ranks.lines()
            self.assertLess(time.monotonic() - start, 3.5 + SLACK)
        # The first to notice leaves the group, which is what its neighbour may see first.
        self.assertTrue(any("its host has not answered" in line for line in lines[:2]), lines)
        self.assertTrue(any("its host has not answered" in line for line in lines[2:]), lines)
        for rank, line in enumerate(lines):
            self.assertRegex(line, r"^failed peer_lost all_reduce\(sum\) #\d+ of \d+ float32 failed on rank "
                                   rf"{rank} .*: rank \d \(host .*, pid \d+\) ")
            if "has not answered" in line:
                self.assertRegex(line, r": rank [23] " if rank < 2 else r": rank [01] ")

    # fault: 18
    def test_an_outage_that_is_shorter_than_the_host_timeout_is_waited_out(self):
        with Namespaces() as namespaces, Ranks(in_namespaces(namespaces, 4), 40, LOCKSTEP_HOST_TIMEOUT="8") as ranks:
            self.assertTrue(ranks.wait_until_running())
            namespaces.blackhole("add")
            time.sleep(4)
            namespaces.blackhole("delete")
            self.assertEqual(ranks.lines(), ["done"] * 4)

    # fault: 16
    def test_an_outage_that_is_longer_than_the_host_timeout_names_the_ranks_beyond_it(self):
        with Namespaces() as namespaces, Ranks(in_namespaces(namespaces, 4), 0) as ranks:
            self.assertTrue(ranks.wait_until_running())
            namespaces.blackhole("add")
            lines = ranks.lines()
        # Who notices first leaves, which is what the others may see before their own time is up.
        silent = "its host has not answered for 3 s (LOCKSTEP_HOST_TIMEOUT)"
        self.assertTrue(any(silent in line for line in lines), lines)
        for here, there in ((lines[:2], "[23]"), (lines[2:], "[01]")):
            beyond = rf"rank {there} (\(host .*, pid \d+\) was lost|considers this rank lost)"
            self.assertTrue(all(line.startswith("failed peer_lost ") for line in here), lines)
            self.assertTrue(any(re.search(beyond, line) for line in here), lines)

    # fault: 18
    def test_silence_within_a_host_decides_nothing(self):
        with Namespaces() as namespaces:
            host = namespaces.names[0]
            with Ranks([("127.0.0.1", ["ip", "netns", "exec", host])] * 4, 40) as ranks:
                self.assertTrue(ranks.wait_until_running())
                # Nothing arrives, as when the kernel has too much to do.
                ip("-n", host, "link", "set", "lo", "down")
                time.sleep(4)
                ip("-n", host, "link", "set", "lo", "up")
                self.assertEqual(ranks.lines(), ["done"] * 4)

    # fault: 19
    @unittest.skipIf(shutil.which("tc") is None, "it needs the program tc (Debian: iproute2)")
    def test_a_narrow_network_is_slow_and_nothing_else(self):
        with Namespaces() as namespaces:
            namespaces.narrow("1mbit")
            # A call moves 0.4 MB each way, which takes longer than a host may be silent.
            with Ranks(in_namespaces(namespaces, 2), 2, 100_000) as ranks:
                start = time.monotonic()
                self.assertTrue(ranks.wait_until_running())
                self.assertEqual(ranks.lines(), ["done"] * 2)
                self.assertGreater(time.monotonic() - start, 3)

    # fault: 18
    @unittest.skipUnless(os.path.exists("/dev/net/tun"), "it needs /dev/net/tun")
    def test_packets_that_are_lost_late_twice_and_out_of_order_change_nothing(self):
        with BadCable(seed=7) as cable, Ranks(in_namespaces(cable, 2), 20, 20_000) as ranks:
            self.assertTrue(ranks.wait_until_running())
            self.assertEqual(ranks.lines(), ["done"] * 2)
        self.assertGreater(min(cable.lost, cable.overtaken, cable.twice), 5, vars(cable))


class Loopback(unittest.TestCase):
    def test_a_killed_rank_is_named_at_once(self):
        for count, slack in ((3, SLACK), (9, SLACK + 2)):  # so many that what is small goes in a tree
            with self.subTest(ranks=count), Ranks(on_loopback(count), 0, 20_000) as ranks:
                self.assertTrue(ranks.wait_until_running())
                start = time.monotonic()
                ranks.ranks[1].kill()
                lines = ranks.lines()
                self.assertLess(time.monotonic() - start, slack)
                for rank in range(count):
                    lost = rf"^failed peer_lost .*: rank 1 \(host .*, pid {ranks.ranks[1].pid}\) was lost"
                    if rank != 1:
                        self.assertRegex(lines[rank], lost)

    # feature: K-03
    def test_a_rank_that_pauses_for_long_is_not_lost(self):
        with Ranks(on_loopback(3), 40) as ranks:
            self.assertTrue(ranks.wait_until_running())
            ranks.ranks[1].send_signal(signal.SIGSTOP)
            time.sleep(4)  # longer than a host may be silent
            ranks.ranks[1].send_signal(signal.SIGCONT)
            self.assertEqual(ranks.lines(), ["done"] * 3)


def why_not():
    if os.geteuid() != 0:
        return "it needs root to make network namespaces"
    if shutil.which("ip") is None:
        return "it needs the program ip (Debian: iproute2)"
    try:
        with Namespaces():
            return ""
    except subprocess.CalledProcessError as error:
        return f"network namespaces cannot be made here: {error.stderr.decode().strip()}"


if __name__ == "__main__":
    RANK = sys.argv.pop(1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that namespaces are cleaned up
    reason = why_not() if "Hosts" in sys.argv else ""
    if reason:
        print(f"skipped: {reason}")
        sys.exit(77)
    unittest.main(verbosity=2)
