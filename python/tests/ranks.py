"""Runs a function in several processes, or as the ranks of a job."""

import contextlib
import gc
import multiprocessing
import os
import tempfile
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

TIMEOUT = timedelta(seconds=20)


def threads():
    return len(os.listdir("/proc/self/task"))


THREADS = threads()  # those that importing torch has started: they sleep, and know what a fork is


def forked(function, *arguments):
    """A process that runs the function. Importing torch takes seconds, so it is forked; what locks other threads hold
    would stay locked in it for ever (libc's resolver has one), so there must be no other threads."""
    if threads() > THREADS:
        raise AssertionError("this process has threads that the tests have started, and it forks beside them")
    gc.freeze()  # so that it does not look through all modules again and again
    process = multiprocessing.get_context("fork").Process(target=function, args=arguments)
    process.start()
    return process


def _process_main(function, rank, pipe):
    torch.set_num_threads(1)
    try:
        pipe.send((True, function(rank)))
    except BaseException:
        pipe.send((False, traceback.format_exc()))


def run_processes(size, function, patience=2 * TIMEOUT, dying=()):
    """What function(rank) returned in each of `size` processes; ranks in `dying` are expected to end without a word."""
    ranks = []
    for rank in range(size):
        receiver, sender = multiprocessing.Pipe(duplex=False)
        process = forked(_process_main, function, rank, sender)
        sender.close()
        ranks.append((process, receiver))
    results = [_outcome(rank, *ranks[rank], rank in dying, patience.total_seconds()) for rank in range(size)]
    for process, _ in ranks:
        process.join()
    return results


def _serve(pipe):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pipe.send(store.port)
    pipe.recv()  # until it is killed, or nobody is there any more


@contextlib.contextmanager
def store_server():
    """(port, pid) of a server of torch's TCPStore. It has threads, so it is a process of its own."""
    ours, its = multiprocessing.Pipe()
    process = forked(_serve, its)
    try:
        its.close()
        yield ours.recv(), process.pid
    finally:
        process.kill()
        process.join()


def backend_over(store, rank, size, timeout=TIMEOUT):
    from lockstep import _lockstep

    return _lockstep.create(store, rank, size, timeout, "group", list(range(size)))


def run_ranks(size, function, backend="lockstep", timeout=TIMEOUT, dying=()):
    """What function(rank, size) returned on each rank of a job; ranks in `dying` are expected to end without a word."""
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "store")

        def rank_main(rank):
            store = dist.FileStore(file, size)
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
            result = function(rank, size)
            dist.destroy_process_group()
            return result

        try:
            return run_processes(size, rank_main, 2 * timeout, dying)
        except AssertionError as error:
            # Seldom, Gloo loses a connection that it is making; what it does over its connections is what we compare.
            if backend != "gloo" or "Gloo connectFullMesh failed" not in str(error):
                raise
            file = os.path.join(folder, "another-store")
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
