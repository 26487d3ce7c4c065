#!/usr/bin/env python3
"""How well Lockstep fills a long link: far.py <bench_links> [--gigabits 1] [--round-trip 0.3] [--connections 1 ...]

Makes two hosts, which are network namespaces, and a link between them that delays packets and limits the bits
per second: this program, which reads the packets of one host and writes them to the other. Rank 0 of `bench_links
far` sends on one host to rank 1 on the other. Prints for each number of connections the rate of the last third of the
time, and the same of plain sockets, which is the limit. The congestion control is this machine's, or --congestion.
Needs root."""

import argparse
import fcntl
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from pathlib import Path

TUNSETIFF = 0x400454CA
IFF_TUN_NO_PI = 0x0001 | 0x1000
MTU = 65000
QUEUE_BYTES = 64 << 20
PLAIN_PORT = 7777


def make_host(name, number):
    """A network namespace with a tunnel, whose other end is the descriptor."""
    subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)
    subprocess.run(["ip", "netns", "add", name], check=True)
    tunnel = os.open("/dev/net/tun", os.O_RDWR)
    device = f"far{number}"
    fcntl.ioctl(tunnel, TUNSETIFF, struct.pack("16sH", device.encode(), IFF_TUN_NO_PI))
    for command in (
        ["ip", "link", "set", device, "netns", name],
        ["ip", "-n", name, "link", "set", "lo", "up"],
        ["ip", "-n", name, "addr", "add", f"10.93.0.{number}/24", "dev", device],
        ["ip", "-n", name, "link", "set", device, "mtu", str(MTU), "up"],
    ):
        subprocess.run(command, check=True)
    return tunnel


class Way:
    """Packets from one tunnel to another: each leaves when those before it have, and arrives after the delay."""

    def __init__(self, source, target, delay, bits_per_second):
        self.source, self.target = source, target
        self.delay, self.bytes_per_second = delay, bits_per_second / 8
        self.packets = deque()
        self.arrived = threading.Semaphore(0)
        for function in (self.read, self.write):
            threading.Thread(target=function, daemon=True).start()

    def read(self):
        free_at = 0.0
        while True:
            packet = os.read(self.source, MTU + 100)
            now = time.monotonic()
            if (free_at - now) * self.bytes_per_second > QUEUE_BYTES:
                continue  # the router's queue is full
            free_at = max(free_at, now) + len(packet) / self.bytes_per_second
            self.packets.append((free_at + self.delay, packet))
            self.arrived.release()

    def write(self):
        while True:
            self.arrived.acquire()
            due, packet = self.packets.popleft()
            time.sleep(max(0.0, due - time.monotonic()))
            os.write(self.target, packet)


def send_plainly(address, connections):
    def send(connection):
        while True:
            connection.sendall(bytes(1 << 18))

    for _ in range(connections):
        threading.Thread(target=send, args=(socket.create_connection((address, PLAIN_PORT)),)).start()


def receive_plainly(address, connections, seconds):
    counts = [0] * connections

    def receive(connection, number):
        space = bytearray(1 << 18)
        while count := connection.recv_into(space):
            counts[number] += count

    listener = socket.create_server((address, PLAIN_PORT), backlog=connections)
    print("listening", flush=True)
    for number in range(connections):
        threading.Thread(target=receive, args=(listener.accept()[0], number), daemon=True).start()
    before = 0
    for second in range(1, seconds + 1):
        time.sleep(1)
        now = sum(counts)
        print(f"{second} s: {(now - before) / 1e6:.1f} MB/s")
        before = now
    sys.stdout.flush()
    os._exit(0)


def measure_plain(connections, seconds):
    """As measure(), by plain sockets: this program on both hosts."""

    def start(number, *words):
        command = ["ip", "netns", "exec", f"far{number}", sys.executable, __file__, "--plain-end", "10.93.0.2"]
        return subprocess.Popen([*command, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    receiver = start(2, str(connections), str(seconds))
    receiver.stdout.readline()
    sender = start(1, str(connections))
    lines = receiver.communicate()[0].splitlines()
    sender.kill()
    sender.wait()
    return last_third(f"{connections} plain connections", lines)


def last_third(what, lines):
    rates = [float(line.split(": ")[1].split()[0]) for line in lines]
    print(f"{what}, MB/s in each second:", *(f"{rate:.0f}" for rate in rates))
    last = rates[len(rates) * 2 // 3 :]
    return sum(last) / len(last)


def measure(program, connections, seconds):
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        ranks = [
            subprocess.Popen(
                ["ip", "netns", "exec", f"far{rank + 1}", program, "far", str(rank), store, f"10.93.0.{rank + 1}"]
                + [str(connections), str(seconds)],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL if rank == 0 else None,
                text=True,
            )
            for rank in range(2)
        ]
        lines = ranks[1].communicate()[0].splitlines()
        ranks[0].communicate()
    return last_third(f"{connections} connections", lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--gigabits", type=float, default=1)
    parser.add_argument("--round-trip", type=float, default=0.3)
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--congestion", help="cubic or bbr")
    options = parser.parse_args()
    near, far = make_host("far1", 1), make_host("far2", 2)
    try:
        for number in (1, 2) if options.congestion else ():
            route = ["10.93.0.0/24", "dev", f"far{number}", "congctl", options.congestion]
            subprocess.run(["ip", "-n", f"far{number}", "route", "replace", *route], check=True)
        for ends in ((near, far), (far, near)):
            Way(*ends, options.round_trip / 2, options.gigabits * 1e9)
        for connections in options.connections:
            rate = measure(options.program, connections, options.seconds)
            plain = measure_plain(connections, options.seconds)
            share = rate * 8e6 / (options.gigabits * 1e9)
            text = f"{rate:.1f} MB/s, {100 * share:.0f} % of the link"
            print(f"{connections} connections: {text}; plain sockets: {plain:.1f} MB/s")
    finally:
        for name in ("far1", "far2"):
            subprocess.run(["ip", "netns", "del", name], check=False)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--plain-end"]:
        address, connections, *seconds = sys.argv[2:]
        if seconds:
            receive_plainly(address, int(connections), int(seconds[0]))
        else:
            send_plainly(address, int(connections))
    else:
        main()
