"""PyTorch's elastic_ddp.py for processors: it knows of torchrun and of no other launcher."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.optim as optim
from torch.nn.parallel import DistributedDataParallel as DDP


class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1 = nn.Linear(10, 10)
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(10, 5)

    def forward(self, x):
        return self.net2(self.relu(self.net1(x)))


def demo_basic():
    rank = dist.get_rank()
    print(f"Start running basic DDP example on rank {rank}.", flush=True)
    assert int(os.environ["LOCAL_RANK"]) == rank % int(os.environ["LOCAL_WORLD_SIZE"])
    torch.manual_seed(rank)
    ddp_model = DDP(ToyModel())
    loss_fn = nn.MSELoss()
    optimizer = optim.SGD(ddp_model.parameters(), lr=0.001)

    optimizer.zero_grad()
    outputs = ddp_model(torch.randn(20, 10))
    loss_fn(outputs, torch.randn(20, 5)).backward()
    optimizer.step()
    total = sum(parameter.double().sum() for parameter in ddp_model.parameters()).item()
    print(f"parameters {total:.12f}", flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    demo_basic()
    dist.destroy_process_group()
    print(f"Finished running basic DDP example on rank {os.environ['RANK']}.", flush=True)
    os._exit(0)  # at Python's end PyTorch's gloo sometimes calls std::terminate(), under torchrun as well
