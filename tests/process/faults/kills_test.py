"""kill -9 of a random rank at a random time, from its first instruction to its last, in a job without a launcher:
kills_test.py <kills_worker> hand|hosts|workers [kills] [seed]

Every survivor has to name the dead rank, with its host and pid if it had begun to join, and nothing may be left behind.
LOCKSTEP_TEST_KILLS is the number of kills if none is given. Prints how long the survivors took."""

import os
import random
import re
import secrets
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time

for folder in ("group", "launch", "links"):
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", folder))
from jobs import free_port  # noqa: E402
from links_test import Namespaces  # noqa: E402
from processes import Tree, percentile, wait_for  # noqa: E402
from shared_memory import own_shared_memory, shared_memory  # noqa: E402

RANKS = 4
STEPS = 400
JOIN_SECONDS = float(os.environ.get("LOCKSTEP_TEST_JOIN", "10"))
# What a busy machine may add to the 0.25 s and 3 s that a death may take to be noticed.
SLACK = float(os.environ.get("LOCKSTEP_TEST_SLACK", "2"))
SKIPPED = 77


class Run:
    """One job, of which one rank may be killed."""

    def __init__(self, worker, way, namespaces):
        self.folder = tempfile.mkdtemp()
        token = os.path.join(self.folder, "token")
        with open(os.open(token, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="ascii") as file:
            file.write(secrets.token_hex(32) + "\n")
        port = free_port()
        common = {
            "HOME": self.folder, "TMPDIR": self.folder, "LOCKSTEP_TOKEN_FILE": token, "OMP_NUM_THREADS": "1",
            "WORLD_SIZE": str(RANKS), "MASTER_ADDR": namespaces.addresses[0] if namespaces else "127.0.0.1",
            "MASTER_PORT": str(port), "TEST_JOIN_MS": str(int(JOIN_SECONDS * 1000)), "LOCKSTEP_LOG": "off"}
        self.start = time.monotonic()
        self.ranks = []
        for rank in range(RANKS):
            host = ["ip", "netns", "exec", namespaces.names[rank * 2 // RANKS]] if namespaces else []
            self.ranks.append(Tree([*host, worker, str(STEPS), "2" if way == "workers" else "0"],
                                   {**common, "RANK": str(rank)}, stderr=subprocess.STDOUT))
        self.lines = [[] for _ in self.ranks]  # (when, text)

    def read_until(self, end, condition=lambda: False):
        """Reads what all ranks print, until all have ended, it is late or so; returns whether all have ended."""
        selector = selectors.DefaultSelector()
        rest = {}
        for number, rank in enumerate(self.ranks):
            if not rank.process.stdout.closed:
                selector.register(rank.process.stdout, selectors.EVENT_READ, number)
                rest[number] = getattr(rank, "unread", b"")
        while selector.get_map() and (left := end - time.monotonic()) > 0 and not condition():
            for key, _ in selector.select(left):
                got = os.read(key.fd, 65536)
                number = key.data
                if not got:
                    selector.unregister(key.fileobj)
                    key.fileobj.close()
                    continue
                *whole, rest[number] = (rest[number] + got).split(b"\n")
                now = time.monotonic()
                self.lines[number] += [(now, line.decode(errors="replace")) for line in whole]
        for number, text in rest.items():
            self.ranks[number].unread = text
        return not selector.get_map()

    def said(self, rank, word):
        return any(line.startswith(word) for _, line in self.lines[rank])

    def when(self, rank, word):
        """When it said so; None if it has not."""
        return next((when for when, line in self.lines[rank] if line == word), None)

    def end(self):
        """What is left of the job."""
        left = []
        for rank in self.ranks:
            wait_for(lambda rank=rank: rank.process.poll() is not None, 5)
            if rank.process.poll() is None:
                left.append(f"process {rank.pid}")
                rank.process.kill()
            rank.process.wait()
            if not rank.process.stdout.closed:
                rank.process.stdout.close()
            survivors = rank.wait_until_gone(5)
            for pid in survivors:
                left.append(f"process {pid} of process {rank.pid}")
                os.kill(pid, signal.SIGKILL)
        left += [os.path.join(self.folder, name) for name in os.listdir(self.folder) if name != "token"]
        shutil.rmtree(self.folder)
        return left


def pid_of(rank):
    """The process of the worker, which `ip netns exec` becomes."""
    return rank.pid


def check_survivor(run, rank, victim, killed):
    """(seconds until it named the victim or None, what is wrong or None)"""
    if not run.lines[rank]:
        return None, "said nothing"
    when, last = run.lines[rank][-1]
    if last == "done":
        # Whoever has taken part in everything owes nobody anything; so has the victim then, said or not.
        return None, None
    if not last.startswith("error "):
        return None, f"ended with: {last}"
    if re.search(rf"rank {victim} \(host [^)]*, pid {pid_of(run.ranks[victim])}\)", last):
        return when - killed, None
    # Whoever comes to the store when its host has named the dead rank and left can name no other than the host.
    host_said = run.lines[0][-1][1] if run.lines[0] else ""
    host_left = re.search(r"rank 0, which hosts the job's store|rank 0 \(host [^)]*\), which hosts it, has ended", last)
    if host_left and re.search(rf"rank {victim} \(host ", host_said) and not run.said(rank, "joined"):
        return None, None
    # It died before anybody could know more of it than that it did not come.
    named = re.search(rf"ranks? [^:]*\b{victim}\b[^:]* did not (?:come|join)|"
                      rf"rank {victim}, which hosts the job's store", last)
    return None, None if named and not run.said(victim, "joined") else f"did not name it: {last}"


def main():
    worker, way = sys.argv[1:3]
    kills = int(sys.argv[3]) if len(sys.argv) > 3 else int(os.environ.get("LOCKSTEP_TEST_KILLS", "7"))
    moment = random.Random(int(sys.argv[4]) if len(sys.argv) > 4 else 5)
    namespaces = None
    if way == "hosts":
        try:
            namespaces = Namespaces().__enter__()
        except (OSError, subprocess.CalledProcessError):
            print("needs root and ip(8)")
            sys.exit(SKIPPED)
    before = shared_memory()
    wrong, times, unborn, late = [], [], 0, 0
    try:
        whole = Run(worker, way, namespaces)
        whole.read_until(whole.start + 60)
        # A third of the kills each: while the program starts, while it joins, and after that to its end.
        phases = [(None, "joining"), ("joining", "joined"), ("joined", "done")]
        lengths = []
        for word, next_word in phases:
            begins = [whole.when(rank, word) if word else whole.start for rank in range(RANKS)]
            ends = [whole.when(rank, next_word) for rank in range(RANKS)]
            lengths.append(max((end or whole.start) - (begin or whole.start) for begin, end in zip(begins, ends)))
        wrong += [f"without a kill: {lines}" for lines in whole.lines if lines[-1][1] != "done"] + whole.end()
        print(f"{way}: starting, joining and working last {', '.join(f'{each:.2f} s' for each in lengths)}", flush=True)
        limit = (3 if namespaces else 0.25) + SLACK
        told = 0
        for turn in range(kills):
            run = Run(worker, way, namespaces)
            victim = moment.randrange(RANKS)
            phase = turn % len(phases)
            word = phases[phase][0]
            run.read_until(run.start + 30, lambda: word is None or run.when(victim, word) is not None)
            run.read_until(time.monotonic() + moment.random() * lengths[phase])
            alive = run.ranks[victim].process.poll() is None
            killed = time.monotonic()
            run.ranks[victim].process.kill()
            ended = run.read_until(killed + JOIN_SECONDS + 10)
            for rank in range(RANKS):
                if rank == victim or not alive:
                    continue
                seconds, problem = check_survivor(run, rank, victim, killed)
                if seconds is not None:
                    times.append(seconds)
                    late += seconds > limit
                elif problem is None and run.lines[rank][-1][1] != "done":
                    unborn += 1
                if problem:
                    wrong.append(f"turn {turn}, rank {victim} killed after {killed - run.start:.2f} s: "
                                 f"rank {rank} {problem}")
            left = run.end() + ([] if ended else ["a survivor did not end"])
            wrong += [f"turn {turn}: left behind: {what}" for what in left]
            for line in wrong[told:]:
                print("  " + line, flush=True)
            told = len(wrong)
    finally:
        if namespaces:
            namespaces.__exit__()
    if shared_memory() != before:
        wrong.append(f"left in /dev/shm: {shared_memory()}")
        print("  " + wrong[-1], flush=True)
    print(f"{way}: {kills} kills; survivors that named the dead rank with its pid: {len(times)}, "
          f"p50 {percentile(times, 0.5):.3f} s, p99 {percentile(times, 0.99):.3f} s, "
          f"slowest {max(times, default=0):.3f} s; with one that had not begun, or without a store: {unborn}; "
          f"wrong: {len(wrong)}; later than {limit:.2f} s: {late}")
    sys.exit(1 if wrong or late else 0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    own_shared_memory()
    main()
