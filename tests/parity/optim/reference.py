"""Optimizers and model averaging as PyTorch does them over Gloo: writes <out>/optim_<case>_<ranks>.safetensors.

Metadata: case, ranks. Case clip: gradient/<i>, and for each norm type norm/<type> and clipped/<type>/<i>. The others
train a model: initial/<name>, x and y ([rank, step, sample, ...]) and <step>.<rank>/<name>, the parameters after each
step; of sharded optimizers also owner/<name>, the rank that updates a parameter.
"""

import argparse
import gc
import os
import sys
import tempfile
from collections import OrderedDict

import torch
import torch._dynamo  # noqa: F401  what optimizers load when they are first made, in each rank
import torch.distributed as dist
import torch.multiprocessing as mp
from safetensors.torch import save_file
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import HierarchicalModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import models  # noqa: E402

STEPS, SAMPLES = 10, 8
AVERAGED = ["periodic", "hierarchical", "post_local"]
CASES = {2: ["clip", "zero_adam", "zero_momentum", *AVERAGED], 4: AVERAGED}  # by the number of ranks


def clip(_):
    generator = torch.Generator().manual_seed(3)
    shapes = [(20, 30), (7,), (1, 5, 3), ()]
    gradients = [torch.randn(shape, generator=generator) for shape in shapes]
    tensors = {f"gradient/{i}": gradient.clone() for i, gradient in enumerate(gradients)}
    for norm_type in ("1.0", "2.0", "3.0", "inf"):
        parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
        for parameter, gradient in zip(parameters, gradients):
            parameter.grad = gradient.clone()
        norm = torch.nn.utils.clip_grad_norm_(parameters, 1.5, float(norm_type), error_if_nonfinite=True)
        tensors[f"norm/{norm_type}"] = norm.reshape(1)
        tensors.update({f"clipped/{norm_type}/{i}": p.grad for i, p in enumerate(parameters)})
    return tensors


def sharded(case, parameters):
    if case == "zero_adam":
        return ZeroRedundancyOptimizer(parameters, torch.optim.Adam, lr=0.01)
    return ZeroRedundancyOptimizer(parameters, torch.optim.SGD, lr=0.05, momentum=0.9)


def averaged(case, parameters, ranks):
    if case == "hierarchical":
        averager = HierarchicalModelAverager(OrderedDict([(2, ranks // 2), (4, ranks)]), warmup_steps=1)
    else:
        averager = PeriodicModelAverager(period=3, warmup_steps=2)
    return PostLocalSGDOptimizer(torch.optim.SGD(parameters, lr=0.05, momentum=0.9), averager)


def train(case):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = models.make("toy")
    tensors = {f"initial/{name}": value.clone() for name, value in model.state_dict().items()}
    x, y = models.make_batch("toy", ranks * STEPS * SAMPLES, torch.Generator().manual_seed(2))
    x, y = (t.reshape(ranks, STEPS, SAMPLES, *t.shape[1:]) for t in (x, y))
    tensors.update({"x": x, "y": y})
    forward = model
    if case.startswith("zero_"):
        forward = DistributedDataParallel(model)
        optimizer = sharded(case, model.parameters())
        owners = optimizer._param_to_rank
        tensors.update({f"owner/{name}": torch.tensor([owners[p]]) for name, p in model.named_parameters()})
    else:
        optimizer = averaged(case, list(model.parameters()), ranks)
    if case == "post_local":
        subgroup, _ = dist.new_subgroups(ranks // 2)
        forward = DistributedDataParallel(model)
        forward.register_comm_hook(PostLocalSGDState(None, subgroup, start_localSGD_iter=2), post_localSGD_hook)
    for step in range(STEPS):
        optimizer.zero_grad()
        models.loss_of("toy", forward(x[rank, step]), y[rank, step]).backward()
        optimizer.step()
        for name, parameter in model.named_parameters():
            copies = [torch.empty_like(parameter.data) for _ in range(ranks)]
            dist.all_gather(copies, parameter.data)
            tensors.update({f"{step}.{peer}/{name}": copy for peer, copy in enumerate(copies)})
    return tensors


def run_rank(rank, ranks, rendezvous, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=ranks)
    for case in CASES[ranks]:
        tensors = clip(case) if case == "clip" else train(case)
        if rank == 0:
            path = os.path.join(folder, f"optim_{case}_{ranks}.safetensors")
            save_file(tensors, path, metadata={"case": case, "ranks": str(ranks)})
    # Every DistributedDataParallel is gone by now; see tests/parity/reference.py.
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    arguments = parser.parse_args()
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.makedirs(arguments.out, exist_ok=True)
    gc.freeze()  # so that no rank looks through all modules again and again
    for ranks in CASES:
        with tempfile.TemporaryDirectory() as folder:
            # Forked, since importing torch takes longer than the training; this process has used no torch thread.
            options = (ranks, os.path.join(folder, "store"), arguments.out)
            mp.start_processes(run_rank, options, nprocs=ranks, start_method="fork")


if __name__ == "__main__":
    main()
