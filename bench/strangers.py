"""What strangers at the store's port cost a training: strangers.py <lockstep> <program with arguments ...>

Runs the program under the launcher in turns without and beside strangers: --silent connections that say nothing and
are made anew when the store closes them, and --attempts a second with garbage or a wrong token. Its throughput is one
over the time it takes; with --metrics also what it says itself, as samples_per_second in the last line of that file,
which contains neither starting nor joining. Strangers and launcher share the last core, and the ranks have the others,
since strangers on another host cost this one no processor time; what the launcher itself uses is told. In a third turn
they besiege another job, which waits on the last core: what the training loses then it loses to the machine that it
shares with them, and not to its own store. How long the store's operations take meanwhile is measured by unit_store
with LOCKSTEP_TEST_STRANGERS=100000.
Writes one JSON object to standard output."""

import argparse
import json
import os
import re
import secrets
import socket
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

HEADER = Path(__file__).parent.parent / "lockstep/comm/net/handshake.h"
VERSION = int(re.search(r"kProtocolVersion = (\d+);", HEADER.read_text(encoding="utf-8"))[1])
HELLO = b"\xd5LSTEP\r\n" + VERSION.to_bytes(2, "little") + b"\x01\x00"


def processor_seconds(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Strangers:
    def __init__(self, port, silent, attempts_a_second):
        self.address = ("127.0.0.1", port)
        self.over = threading.Event()
        self.silent_made = self.attempts = 0
        self.threads = [threading.Thread(target=self.hold, args=(silent,)),
                        threading.Thread(target=self.guess, args=(attempts_a_second,))]
        for thread in self.threads:
            thread.start()

    def hold(self, count):
        held = []
        while not self.over.wait(0.05):
            alive = []
            for each in held:
                try:
                    if each.recv(100):
                        alive.append(each)
                        continue
                except BlockingIOError:
                    alive.append(each)
                    continue
                except OSError:
                    pass
                each.close()
            while len(alive) < count and not self.over.is_set():
                each = socket.socket()
                each.setblocking(False)
                each.connect_ex(self.address)
                alive.append(each)
                self.silent_made += 1
            held = alive

    def guess(self, rate):
        started = time.monotonic()
        while rate and not self.over.is_set():
            while self.attempts < (time.monotonic() - started) * rate and not self.over.is_set():
                self.attempts += 1
                try:
                    with socket.create_connection(self.address, timeout=5) as guess:
                        guess.sendall(HELLO + secrets.token_bytes(32) if self.attempts % 2 else secrets.token_bytes(44))
                except OSError:
                    pass
            self.over.wait(0.002)

    def stop(self):
        self.over.set()
        for thread in self.threads:
            thread.join()


def start(options, cores, ranks, program):
    command = ["taskset", "-c", str(cores[-1]), options.lockstep, "run", "--nproc-per-node", str(ranks), "sh", "-c",
               f"echo STORE $LOCKSTEP_STORE >&2; exec taskset -c {','.join(map(str, cores[:-1] or cores))} \"$@\"",
               "-", *program]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def store_port(line):
    found = re.search(r"STORE \S+:(\d+)", line)
    return int(found.group(1)) if found else None


def run(options, besieged):
    cores = sorted(os.sched_getaffinity(0))
    other = start(options, cores, 1, ["sleep", "3600"]) if besieged == "another job" else None
    target = next(filter(None, map(store_port, other.stderr))) if other else None
    started = time.monotonic()
    job = start(options, cores, options.ranks, options.program)
    strangers = None
    lines = 0
    for line in job.stderr:
        if store_port(line) and besieged and strangers is None:
            os.sched_setaffinity(0, {cores[-1]})
            strangers = Strangers(target or store_port(line), options.silent, options.attempts)
        lines += "[lockstep]" in line
    os.waitid(os.P_PID, job.pid, os.WEXITED | os.WNOWAIT)
    used = processor_seconds(job.pid)
    code = job.wait()
    took = time.monotonic() - started
    if strangers:
        strangers.stop()
        os.sched_setaffinity(0, set(cores))
    if other:
        other.terminate()
        other.communicate()
    if code != 0:
        sys.exit(f"strangers: the program exited with code {code}")
    result = {"seconds": took, "launcher_processor_seconds": used, "log_lines": lines}
    if options.metrics:
        last_line = Path(options.metrics).read_text(encoding="utf-8").splitlines()[-1]
        result["samples_per_second"] = json.loads(last_line)["samples_per_second"]
    if strangers:
        result |= {"silent_made": strangers.silent_made, "attempts": strangers.attempts}
    return result


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--silent", type=int, default=3000)
    parser.add_argument("--attempts", type=int, default=1000, help="a second")
    parser.add_argument("--metrics", help="that the program writes, a JSON object a line")
    parser.add_argument("lockstep")
    parser.add_argument("program", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    runs = {"nobody": [], "training": [], "another job": []}
    for turn in range(options.turns):
        for besieged in list(runs)[:: 1 if turn % 2 == 0 else -1]:
            runs[besieged].append(run(options, None if besieged == "nobody" else besieged))
            print(besieged, runs[besieged][-1], file=sys.stderr, flush=True)
    def medians(what):
        return {besieged: statistics.median(one[what] for one in group) for besieged, group in runs.items()}

    times = medians("seconds")
    result = {"loss": {besieged: time / times["nobody"] - 1 for besieged, time in times.items()}}
    if options.metrics:
        rates = medians("samples_per_second")
        result["loss_of_samples_per_second"] = {besieged: 1 - rate / rates["nobody"]
                                                for besieged, rate in rates.items()}
    print(json.dumps(result | {"runs": runs}, indent=2))


if __name__ == "__main__":
    main()
