"""Two network namespaces joined by a cable that loses packets, holds some back so that later ones overtake them, and
brings some twice. What becomes of a packet depends on the seed and on its number alone."""

import fcntl
import heapq
import os
import random
import secrets
import select
import struct
import subprocess
import threading
import time

_TUNSETIFF = 0x400454CA
_IFF_TUN_NO_PI = 0x1001
_MTU = 1500
LOST, LATE, TWICE = 0.03, 0.1, 0.01
LATE_BY_SECONDS = 0.02


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class BadCable:
    def __init__(self, seed):
        tag = secrets.token_hex(3)
        self.seed = seed
        self.names = [f"lks{tag}a", f"lks{tag}b"]
        self.addresses = ["10.213.7.1", "10.213.7.2"]
        self.lost = self.overtaken = self.twice = 0
        self._ends = []
        self._over, self._end = os.pipe()
        self._thread = threading.Thread(target=self._carry)

    def __enter__(self):
        try:
            for name, address in zip(self.names, self.addresses):
                ip("netns", "add", name)
                end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
                self._ends.append(end)
                fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN_NO_PI))
                ip("link", "set", name, "netns", name)  # its descriptor stays here
                ip("-n", name, "address", "add", f"{address}/24", "dev", name)
                ip("-n", name, "link", "set", "lo", "up")
                ip("-n", name, "link", "set", name, "up")
        except (OSError, subprocess.CalledProcessError):
            self._clean_up()
            raise
        self._thread.start()
        return self

    def __exit__(self, *_):
        os.write(self._end, b".")
        self._thread.join()
        self._clean_up()

    def _clean_up(self):
        for fd in (*self._ends, self._over, self._end):
            os.close(fd)
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)

    def _carry(self):
        sent, last = [0, 0], [0, 0]  # packets that came in, and the latest that went out, by direction
        under_way = []  # (when it is due, its number, direction, packet)
        while True:
            wait = max(0, under_way[0][0] - time.monotonic()) if under_way else None
            ready = select.select([*self._ends, self._over], [], [], wait)[0]
            if self._over in ready:
                return
            for direction in (0, 1):
                if self._ends[direction] in ready:
                    packet = os.read(self._ends[direction], _MTU)
                    if packet[0] >> 4 == 4:
                        sent[direction] += 1
                        self._decide(under_way, sent[direction], direction, packet)
            while under_way and under_way[0][0] <= time.monotonic():
                _, number, direction, packet = heapq.heappop(under_way)
                self.overtaken += number < last[direction]
                last[direction] = max(last[direction], number)
                try:
                    os.write(self._ends[1 - direction], packet)
                except OSError:  # its queue is full, or its namespace goes
                    self.lost += 1

    def _decide(self, under_way, number, direction, packet):
        dice = random.Random(f"{self.seed} {direction} {number}")
        if dice.random() < LOST:
            self.lost += 1
            return
        late = dice.random() * LATE_BY_SECONDS if dice.random() < LATE else 0
        heapq.heappush(under_way, (time.monotonic() + late, number, direction, packet))
        if dice.random() < TWICE:
            self.twice += 1
            heapq.heappush(under_way, (time.monotonic() + LATE_BY_SECONDS, number, direction, packet))
