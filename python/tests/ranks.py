"""Runs a function as the ranks of a job, each in a process of its own."""

import multiprocessing
import os
import tempfile
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

TIMEOUT = timedelta(seconds=20)


def _rank_main(function, rank, size, path, backend, timeout, pipe):
    torch.set_num_threads(1)
    try:
        dist.init_process_group(backend, store=dist.FileStore(path, size), rank=rank, world_size=size, timeout=timeout)
        result = function(rank, size)
        dist.destroy_process_group()
        pipe.send((True, result))
    except BaseException:
        pipe.send((False, traceback.format_exc()))


def run_ranks(size, function, backend="lockstep", timeout=TIMEOUT, dying=()):
    """What function(rank, size) returned on each rank; ranks in `dying` are expected to end without a word."""
    context = multiprocessing.get_context("fork")  # importing torch takes seconds; nothing has started threads yet
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "store")
        ranks = []
        for rank in range(size):
            receiver, sender = context.Pipe(duplex=False)
            arguments = (function, rank, size, path, backend, timeout, sender)
            process = context.Process(target=_rank_main, args=arguments)
            process.start()
            sender.close()
            ranks.append((process, receiver))
        patience = 2 * timeout.total_seconds()
        results = [_outcome(rank, *ranks[rank], rank in dying, patience) for rank in range(size)]
        for process, _ in ranks:
            process.join()
    return results


def _outcome(rank, process, receiver, dies, patience):
    if not receiver.poll(patience):
        process.kill()
        raise AssertionError(f"rank {rank} hangs")
    try:
        good, result = receiver.recv()
    except EOFError:
        if dies:
            return None
        raise AssertionError(f"rank {rank} died") from None
    if not good:
        raise AssertionError(f"rank {rank} failed:\n{result}")
    return result
