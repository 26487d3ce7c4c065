"""Ranks of a job that a test starts by hand, and what they print."""

import contextlib
import os
import random
import secrets
import socket
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "launch"))
from processes import Tree  # noqa: E402


def free_port(count=1):
    """The first of `count` ports in a row that are free now, below those that the system gives to whoever asks."""
    while True:
        first = random.randrange(10_000, 32_000)
        with contextlib.ExitStack() as listeners:
            try:
                for port in range(first, first + count):
                    listeners.enter_context(socket.socket()).bind(("127.0.0.1", port))
                return first
            except OSError:
                continue


class Failure:
    """A line "error <kind> <when> <seconds in the call> <text>" of a worker."""

    def __init__(self, line):
        _, self.kind, when, waited, self.text = line.split(" ", 4)
        self.when, self.waited = float(when), float(waited)

    def __repr__(self):
        return f"{self.kind} after {self.waited:.3f} s: {self.text}"


class Job:
    """Ranks of group_worker without a launcher. Their files have a folder of their own, which is gone afterwards."""

    def __init__(self, worker, arguments, size, environment=None, of_rank=None, **options):
        """of_rank: rank -> more environment, and under "before" what stands in front of the worker's command"""
        self.folder = tempfile.TemporaryDirectory()
        self.environment = {
            "HOME": self.folder.name, "TMPDIR": self.folder.name, "XDG_RUNTIME_DIR": self.folder.name,
            "LOCKSTEP_TOKEN_FILE": self.token(), "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), **(environment or {})}
        self.ranks = []
        for rank in range(size):
            own = of_rank(rank) if of_rank else {}
            before = own.pop("before", [])
            self.ranks.append(Tree([*before, worker, *map(str, arguments)],
                                   {**self.environment, "RANK": str(rank), **own}, stderr=None, **options))

    def token(self):
        path = os.path.join(self.folder.name, "token")
        with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="ascii") as file:
            file.write(secrets.token_hex(32) + "\n")
        return path

    def line(self, rank):
        """The next line of a rank, without its number."""
        return self.ranks[rank].read_lines(1)[0].removeprefix(f"{rank} ")

    def wait_until_running(self):
        for rank in range(len(self.ranks)):
            line = self.line(rank)
            assert line.startswith("running "), f"rank {rank}: {line}"

    def kill(self, rank):
        """The time at which the rank was killed."""
        now = time.monotonic()
        self.ranks[rank].process.kill()
        return now

    def failure(self, rank):
        line = self.line(rank)
        assert line.startswith("error "), f"rank {rank}: {line}"
        return Failure(line)

    def exit_codes(self, timeout=20):
        return [rank.process.wait(timeout) for rank in self.ranks]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for rank in self.ranks:
            rank.__exit__()
        self.folder.cleanup()
