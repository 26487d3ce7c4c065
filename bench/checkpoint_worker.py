"""The same with PyTorch: checkpoint_worker.py DIRECTORY MIB [load]. Rank 0 prints JSON: torch.save() and torch.load()
by rank 0, and DistributedCheckpoint by all ranks, also asynchronous."""

import json
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

WIDTH = 2048


def timed(action):
    dist.barrier()
    start = time.perf_counter()
    result = action()
    dist.barrier()
    return time.perf_counter() - start, result


def save_whole(state, path):
    """As programs do that care for their files: torch.save() alone does not wait for the disk."""
    if dist.get_rank() != 0:
        return
    with open(path, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


def finish(result):
    if dist.get_rank() == 0:
        print(json.dumps(result), flush=True)
    dist.destroy_process_group()


def main():
    directory, mebibytes = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    state = {f"layer{i}.weight": torch.rand(WIDTH, WIDTH) for i in range(max(1, mebibytes // 16))}
    directory.mkdir(parents=True, exist_ok=True)
    result = {}
    if sys.argv[3:] == ["load"]:
        result["dcp_load_cold"], _ = timed(lambda: dcp.load(state, checkpoint_id=directory / "dcp"))
        finish(result)
        return
    result["torch_save"], _ = timed(lambda: save_whole(state, directory / "whole.pt"))
    result["torch_load"], _ = timed(lambda: torch.load(directory / "whole.pt", weights_only=True))
    writer = dcp.FileSystemWriter(directory / "dcp")  # which waits for the disk
    result["dcp_save"], _ = timed(lambda: dcp.save(state, storage_writer=writer))
    result["dcp_load"], _ = timed(lambda: dcp.load(state, checkpoint_id=directory / "dcp"))
    writer = dcp.FileSystemWriter(directory / "dcp_async")
    # Its thread's collectives must not meet the barriers of this one.
    group = dist.new_group(backend="gloo")
    result["dcp_async_stall"], future = timed(
        lambda: dcp.async_save(state, storage_writer=writer, process_group=group))
    rest, _ = timed(lambda: future.result())
    result["dcp_async"] = result["dcp_async_stall"] + rest
    writer = dcp.FileSystemWriter(directory / "dcp_async_again")
    result["dcp_async_stall_again"], future = timed(
        lambda: dcp.async_save(state, storage_writer=writer, process_group=group))
    future.result()
    finish(result)


if __name__ == "__main__":
    main()
