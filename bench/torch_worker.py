"""Times collectives of PyTorch's process groups when it is told to; a worker of bench_all_reduce.

    torch_worker.py RANKS gloo|lockstep [OPERATION [DTYPE [HOSTS]]]    HOSTS: where they run; see on_hosts.py
    torch_worker.py                         as one of torchrun's ranks, over Gloo: it ends when it is ready

Prints {"ready": true} after a first all-reduce, then answers each line "run BYTES REPETITIONS CALLS" of standard input
with {"seconds": [...]}: for each repetition, from the return of a barrier to the return of the last of CALLS
all-reduces, divided by CALLS, on the slowest rank. Between lines every rank sleeps.
"""

import json
import multiprocessing
import os
import sys
import tempfile
import time

import on_hosts
import torch
import torch.distributed as dist


# The names of PyTorch 2.13, else the older ones.
ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Operation:
    """A collective on memory of one size: `size` bytes are those of its longer side."""

    def __init__(self, name, dtype, size, rank, ranks):
        self.name, self.size, self.rank, self.ranks = name, size, rank, ranks
        count = max(size // dtype.itemsize, ranks) // ranks * ranks
        self.whole = torch.empty(count, dtype=dtype)
        self.part = torch.empty(count // ranks, dtype=dtype)
        self.other = torch.empty(count, dtype=dtype)
        self.check_once()

    def run(self):
        if self.name == "all_reduce":
            dist.all_reduce(self.whole)
        elif self.name == "broadcast":
            dist.broadcast(self.whole, 0)
        elif self.name == "all_gather":
            ALL_GATHER(self.whole, self.part)
        elif self.name == "reduce_scatter":
            REDUCE_SCATTER(self.part, self.whole)
        else:
            dist.all_to_all_single(self.other, self.whole)

    def check_once(self):
        """Checks one result; then leaves zeros, which stay zeros however often they are added up."""
        self.whole.fill_(self.rank + 1)
        self.part.fill_(self.rank + 1)
        self.run()
        of_ranks = torch.arange(1, self.ranks + 1, dtype=self.whole.dtype).repeat_interleave(len(self.part))
        total = self.ranks * (self.ranks + 1) // 2
        result, expected = {
            "all_reduce": (self.whole, total), "broadcast": (self.whole, 1), "all_gather": (self.whole, of_ranks),
            "reduce_scatter": (self.part, total), "all_to_all": (self.other, of_ranks)}[self.name]
        if not result.eq(expected).all():
            raise RuntimeError(f"a wrong result of {self.name} of {self.size} bytes")
        self.whole.zero_()
        self.part.zero_()

    def one_repetition(self, calls):
        dist.barrier()
        start = time.perf_counter()
        for _ in range(calls):
            self.run()
        return (time.perf_counter() - start) / calls


def run_rank(rank, ranks, backend, name, dtype, hosts, rendezvous, parent):
    if hosts:
        on_hosts.move_to(on_hosts.host_of(rank, ranks, hosts)[0])
    torch.set_num_threads(1)
    dist.init_process_group(backend, init_method=f"file://{rendezvous}", rank=rank, world_size=ranks)
    dist.all_reduce(torch.zeros(1))
    parent.send(None)
    operation = None
    while command := parent.recv():
        size, repetitions, calls = command
        if operation is None or operation.size != size:
            operation = Operation(name, dtype, size, rank, ranks)
        parent.send([operation.one_repetition(calls) for _ in range(repetitions)])
    dist.destroy_process_group()


def parse_command(line):
    verb, size, repetitions, calls = line.split()
    if verb != "run" or int(size) < 4 or int(repetitions) < 1 or int(calls) < 1:
        raise ValueError(f'expected "run BYTES REPETITIONS CALLS", got {line!r}')
    return int(size), int(repetitions), int(calls)


def serve(ranks):
    for rank in ranks:
        rank.recv()
    print(json.dumps({"ready": True}), flush=True)
    for line in iter(sys.stdin.readline, ""):
        command = parse_command(line)
        for rank in ranks:
            rank.send(command)
        slowest = [max(times) for times in zip(*[rank.recv() for rank in ranks])]
        print(json.dumps({"seconds": slowest}), flush=True)
    for rank in ranks:
        rank.send(None)


def be_started():
    """One rank of a launcher: a first all-reduce and no more."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    dist.all_reduce(torch.zeros(1))
    if dist.get_rank() == 0:
        print(json.dumps({"ready": True}), flush=True)
    dist.destroy_process_group()


def main():
    hosts = on_hosts.parse_hosts(sys.argv[5]) if len(sys.argv) > 5 else []
    os.environ["GLOO_SOCKET_IFNAME"] = on_hosts.INTERFACE if hosts else "lo"
    if "RANK" in os.environ:
        return be_started()
    count, backend = int(sys.argv[1]), sys.argv[2]
    name = sys.argv[3] if len(sys.argv) > 3 else "all_reduce"
    dtype = getattr(torch, sys.argv[4] if len(sys.argv) > 4 else "float32")
    context = multiprocessing.get_context("fork")  # importing torch once is enough; it has started no threads yet
    with tempfile.TemporaryDirectory() as folder:
        processes, ranks = [], []
        for rank in range(count):
            ours, theirs = context.Pipe()
            options = (rank, count, backend, name, dtype, hosts, os.path.join(folder, "store"), theirs)
            processes.append(context.Process(target=run_rank, args=options, daemon=True))
            processes[-1].start()
            theirs.close()  # a rank that dies then ends the wait for its result
            ranks.append(ours)
        serve(ranks)
        for process in processes:
            process.join()


if __name__ == "__main__":
    main()
