"""Trains models with PyTorch's own DistributedDataParallel over Gloo and writes <out>/<model>_<ranks>.safetensors.

Tensors: initial/<name> (parameters and buffers), x and y ([rank, step, sample, ...]), loss ([rank, step]),
final/<name> (parameters, which are equal on all ranks: that is checked) and final.<rank>/<name> (buffers). Metadata:
model, ranks. The weights and batches come from --seed, so the same arguments give the same file.
"""

import argparse
import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from safetensors.torch import save_file
from torch.nn.parallel import DistributedDataParallel

import models

BATCH = {"toy": 8, "mlp": 8, "cnn": 8, "resnet18": 4, "gpt": 2}
# With batches this small, batch norm makes the last bit of a gradient into a hundredth of the loss within four steps.
# So these models' gradients are added in rank order, as Lockstep does; Gloo's order is another for more than two ranks.
CHAOTIC = {"resnet18"}


def make_batches(name, ranks, steps, seed):
    generator = torch.Generator().manual_seed(seed)
    x, y = models.make_batch(name, ranks * steps * BATCH[name], generator)
    return tuple(t.reshape(ranks, steps, BATCH[name], *t.shape[1:]) for t in (x, y))


def run_rank(rank, name, ranks, steps, seed, rendezvous, path):
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=ranks)
    tensors = train(rank, name, ranks, steps, seed)
    # The DistributedDataParallel is gone by now. If it outlives the process group, its destructor waits for Gloo's
    # thread while it holds the interpreter's lock, which that thread may be waiting for.
    dist.destroy_process_group()
    if rank == 0:
        save_file(tensors, path, metadata={"model": name, "ranks": str(ranks)})


def train(rank, name, ranks, steps, seed):
    torch.manual_seed(seed)
    model = models.make(name)
    tensors = {f"initial/{key}": value.clone() for key, value in model.state_dict().items()}
    x, y = make_batches(name, ranks, steps, seed + 1)
    ddp = DistributedDataParallel(model)
    if name in CHAOTIC:
        ddp.register_comm_hook(None, mean_in_rank_order)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01, momentum=0.9)
    losses = torch.zeros(steps)
    for step in range(steps):
        optimizer.zero_grad()
        loss = models.loss_of(name, ddp(x[rank, step]), y[rank, step])
        loss.backward()
        optimizer.step()
        losses[step] = loss.detach()

    tensors.update({"x": x, "y": y, "loss": torch.stack(gather(losses))})
    for key, parameter in model.named_parameters():
        copies = gather(parameter.detach())
        if not all(torch.equal(copies[0], copy) for copy in copies):
            raise RuntimeError(f"rank {rank}: {key} differs between ranks after {steps} steps of {name}")
        tensors[f"final/{key}"] = copies[0]
    for key, buffer in model.named_buffers():
        tensors.update({f"final.{peer}/{key}": copy for peer, copy in enumerate(gather(buffer))})
    return tensors


def mean_in_rank_order(_, bucket):
    copies = gather(bucket.buffer())
    for copy in copies[1:]:
        copies[0] += copy
    mean = torch.futures.Future()
    mean.set_result(copies[0] / len(copies))
    return mean


def gather(tensor):
    copies = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(copies, tensor)
    return copies


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--models", default="toy,mlp,resnet18", help="comma-separated")
    parser.add_argument("--ranks", default="2,4", help="comma-separated")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.makedirs(arguments.out, exist_ok=True)
    for name in arguments.models.split(","):
        for ranks in map(int, arguments.ranks.split(",")):
            with tempfile.TemporaryDirectory() as folder:
                # Forked, since importing torch takes longer than the training; this process has used no torch thread.
                path = os.path.join(arguments.out, f"{name}_{ranks}.safetensors")
                options = (name, ranks, arguments.steps, arguments.seed, os.path.join(folder, "store"), path)
                mp.start_processes(run_rank, options, nprocs=ranks, start_method="fork")


if __name__ == "__main__":
    main()
