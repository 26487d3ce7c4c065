"""Times all-reduces of PyTorch's Gloo process group when it is told to; a worker of bench_all_reduce.

    gloo_worker.py RANKS [HOSTS]    HOSTS: where they run; see on_hosts.py
    gloo_worker.py                  as one of torchrun's ranks: it ends when it is ready

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


def run_rank(rank, ranks, hosts, rendezvous, parent):
    if hosts:
        on_hosts.move_to(on_hosts.host_of(rank, ranks, hosts)[0])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=ranks)
    dist.all_reduce(torch.zeros(1))
    parent.send(None)
    data = torch.empty(0)
    while command := parent.recv():
        size, repetitions, calls = command
        if data.nbytes != size:
            data = torch.empty(size // 4)
        check_once(data, rank, ranks)
        parent.send([one_repetition(data, calls) for _ in range(repetitions)])
    dist.destroy_process_group()


def check_once(data, rank, ranks):
    """Checks one result; then leaves zeros, which stay zeros however often they are added up."""
    data.fill_(rank + 1)
    dist.all_reduce(data)
    if not data.eq(ranks * (ranks + 1) / 2).all():
        raise RuntimeError(f"a wrong result of {data.nbytes} bytes")
    data.zero_()


def one_repetition(data, calls):
    dist.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        dist.all_reduce(data)
    return (time.perf_counter() - start) / calls


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
    hosts = on_hosts.parse_hosts(sys.argv[2]) if len(sys.argv) > 2 else []
    os.environ["GLOO_SOCKET_IFNAME"] = on_hosts.INTERFACE if hosts else "lo"
    if "RANK" in os.environ:
        return be_started()
    count = int(sys.argv[1])
    context = multiprocessing.get_context("fork")  # importing torch once is enough; it has started no threads yet
    with tempfile.TemporaryDirectory() as folder:
        processes, ranks = [], []
        for rank in range(count):
            ours, theirs = context.Pipe()
            options = (rank, count, hosts, os.path.join(folder, "store"), theirs)
            processes.append(context.Process(target=run_rank, args=options, daemon=True))
            processes[-1].start()
            theirs.close()  # a rank that dies then ends the wait for its result
            ranks.append(ours)
        serve(ranks)
        for process in processes:
            process.join()


if __name__ == "__main__":
    main()
