# Checkpoints of torch.distributed.checkpoint.
#   distributed_oracle.py DIR       saves DIR/one with one rank, DIR/two with two, and DIR/two_dimensions with four
import os
import subprocess
import sys
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

warnings.filterwarnings("ignore")


def whole(rows, columns):
    return torch.arange(rows * columns, dtype=torch.float32).reshape(rows, columns)


def rank_of(directory, rank, ranks, mesh_shape):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    dist.init_process_group("gloo", init_method=f"file://{directory}.rendezvous", rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", mesh_shape)
    rows, columns = [Shard(0)], [Shard(1)]
    if len(mesh_shape) == 2:
        rows, columns = [Shard(0), Shard(1)], [Shard(1), Replicate()]
    state = {
        "rows": distribute_tensor(whole(5, 3), mesh, rows),
        "columns": distribute_tensor(whole(3, 5), mesh, columns),
        "small": distribute_tensor(whole(1, 3), mesh, rows),
        "copies": torch.ones(3, dtype=torch.bfloat16),
        "step": 7,
    }
    dcp.save(state, checkpoint_id=directory)
    dist.destroy_process_group()


def start(directory, ranks, mesh_shape):
    command = [sys.executable, "-B", __file__, directory, str(ranks), mesh_shape]
    running = [subprocess.Popen([*command, str(rank)], stderr=subprocess.DEVNULL) for rank in range(ranks)]
    assert all(process.wait() == 0 for process in running)


if len(sys.argv) == 2:
    base = sys.argv[1]
    model = {"w": torch.arange(12.0).reshape(3, 4), "turned": torch.arange(6).reshape(2, 3).t(),
             "scalar": torch.tensor(5), "none": torch.empty(0, 2), "small": torch.tensor([1, 2], dtype=torch.uint16)}
    dcp.save({"model": model, "step": 7, "optimizer": {"lr": [0.1, 0.2], "state": {0: {"m": torch.ones(2)}}},
              "name": "x"}, checkpoint_id=os.path.join(base, "one"))
    start(os.path.join(base, "two"), 2, "2")
    start(os.path.join(base, "two_dimensions"), 4, "2x2")
else:
    os.environ["OMP_NUM_THREADS"] = "1"
    rank_of(sys.argv[1], int(sys.argv[4]), int(sys.argv[2]), tuple(int(size) for size in sys.argv[3].split("x")))
