"""Runs a function in several processes, or as the ranks of a job."""

import multiprocessing
import os
import tempfile
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

TIMEOUT = timedelta(seconds=20)


def _process_main(function, rank, pipe):
    torch.set_num_threads(1)
    try:
        pipe.send((True, function(rank)))
    except BaseException:
        pipe.send((False, traceback.format_exc()))


def run_processes(size, function, patience=2 * TIMEOUT, dying=()):
    """What function(rank) returned in each of `size` processes; ranks in `dying` are expected to end without a word."""
    context = multiprocessing.get_context("fork")  # importing torch takes seconds; nothing has started threads yet
    ranks = []
    for rank in range(size):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_process_main, args=(function, rank, sender))
        process.start()
        sender.close()
        ranks.append((process, receiver))
    results = [_outcome(rank, *ranks[rank], rank in dying, patience.total_seconds()) for rank in range(size)]
    for process, _ in ranks:
        process.join()
    return results


def run_ranks(size, function, backend="lockstep", timeout=TIMEOUT, dying=()):
    """What function(rank, size) returned on each rank of a job; ranks in `dying` are expected to end without a word."""
    with tempfile.TemporaryDirectory() as folder:

        def rank_main(rank):
            store = dist.FileStore(os.path.join(folder, "store"), size)
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
            result = function(rank, size)
            dist.destroy_process_group()
            return result

        return run_processes(size, rank_main, 2 * timeout, dying)


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
