"""Trains models with PyTorch's own DistributedDataParallel over Gloo and writes <out>/<case>_<ranks>.safetensors.

Tensors: initial/<name> (parameters and buffers), x and y ([rank, step, sample, ...]), loss ([rank, step]),
final/<name> (parameters, which are equal on all ranks: that is checked) and final.<rank>/<name> (buffers). Complex ones
have a last dimension for real and imaginary parts. Metadata: model, options, hook, accumulate, momentum as in Case, and
exact, whether gradients were added in Lockstep's order, so that all bits must be the same. The weights and batches come
from --seed, so the same arguments give the same file.
"""

import argparse
import contextlib
import gc
import mmap
import os
import tempfile
import warnings
from dataclasses import dataclass, field

import torch
import torch._dynamo  # noqa: F401  what optimizers load when they are first made, in each rank
import torch.distributed as dist
import torch.multiprocessing as mp
from safetensors.torch import save_file
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import odd_models

BATCH = {"resnet18": 4, "gpt": 2}  # others 8
STEPS = {"resnet18": 8, "mlp": 8}  # others 20: these are large, and most of their time is the sending
# With batches this small, batch norm makes the last bit of a gradient into a hundredth of the loss within four steps.
# So these models' gradients are added in rank order, as Lockstep does; Gloo's order is another for more than two ranks.
CHAOTIC = {"resnet18", "conv_norm"}
# Through which ranks show each other what is large: [side, rank, byte].
SLOT_BYTES = 8 << 20


@dataclass
class Case:
    model: str
    options: dict = field(default_factory=dict)  # of DistributedDataParallel
    ours: dict = field(default_factory=dict)  # more of them, of Lockstep's only: the result is the same without
    hook: str = ""
    accumulate: int = 1  # parts of a batch, all but the last one without synchronisation
    momentum: float = 0.9
    mixed: tuple = ()  # mixed precision: types of parameters and of the reduction

    def metadata(self, ranks):
        # PyTorch divides float16 before it adds, which the smallest numbers do not survive whole.
        exact = (ranks == 2 and self.hook != "fp16") or self.model in CHAOTIC or bool(self.mixed)
        mixed = {"mixed_precision": list(self.mixed)} if self.mixed else {}
        options = ";".join(f"{name}={text_of(value)}" for name, value in (self.options | self.ours | mixed).items())
        return {"model": self.model, "options": options, "hook": self.hook, "accumulate": str(self.accumulate),
                "momentum": str(self.momentum), "exact": str(int(exact))}


MODELS = ["toy", "mlp", "resnet18", "conv_norm", "recurrent", "small_gpt", "tuple_heads", "named_heads", "shared",
          "frozen", "mixed_types", "complex", "weight_norm", "tied_table", "experts"]
CASES = {
    **{model: Case(model) for model in MODELS},
    "sparse_words": Case("sparse_words", momentum=0),
    "branches": Case("branches", {"find_unused_parameters": True}),
    "branches_skipped": Case("branches", {"find_unused_parameters": True, "skip_all_reduce_unused_params": True}),
    "shared_static": Case("shared", {"static_graph": True}),
    "toy_one_bucket_each": Case("toy", {"bucket_cap_mb": 0.0001}),
    "weight_norm_one_bucket_each": Case("weight_norm", {"bucket_cap_mb": 0.0001}),
    "experts_one_bucket_each": Case("experts", {"bucket_cap_mb": 0.0001}),
    "tied_table_accumulated": Case("tied_table", accumulate=4),
    "small_gpt_buckets": Case("small_gpt", {"bucket_cap_mb_list": [0.01, 0.02, 0.05]}),
    # PyTorch does not wait for the delayed reduction where there is no GPU whose stream would.
    "small_gpt_delayed": Case(
        "small_gpt", ours={"delay_all_reduce_named_params": ["transformer.ln_f.bias", "lm_head.weight"]}),
    "small_gpt_accumulated": Case("small_gpt", accumulate=4),
    "branches_accumulated": Case("branches", {"find_unused_parameters": True}, accumulate=2),
    "small_gpt_all_reduce_hook": Case("small_gpt", hook="all_reduce"),
    "small_gpt_fp16_hook": Case("small_gpt", hook="fp16"),
    "small_gpt_bf16_hook": Case("small_gpt", hook="bf16"),
    "small_gpt_power_sgd": Case("small_gpt", hook="power_sgd"),
    # Not small_gpt: where its input has three dimensions, libtorch's Linear in C++ rounds before it adds the bias.
    "toy_mixed": Case("toy", mixed=("bfloat16", "bfloat16")),
    "toy_mixed_fp16": Case("toy", mixed=("float16", "float32")),
    "tuple_heads_mixed": Case("tuple_heads", mixed=("bfloat16", "float32")),
}


def text_of(value):
    return ",".join(map(str, value)) if isinstance(value, list) else str(int(value) if value is True else value)


def make_batches(name, ranks, steps, seed):
    generator = torch.Generator().manual_seed(seed)
    size = BATCH.get(name, 8)
    x, y = odd_models.make_batch(name, ranks * steps * size, generator)
    return tuple(t.reshape(ranks, steps, size, *t.shape[1:]) for t in (x, y))


def run_rank(rank, ranks, arguments, rendezvous, memory):
    slots.sides = torch.frombuffer(memory, dtype=torch.uint8).view(2, ranks, SLOT_BYTES)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    warnings.filterwarnings("ignore", message=".*find_unused_parameters.*|.*sparse.*")
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=ranks)
    for name in arguments.cases.split(","):
        case = CASES[name]
        tensors = train(case, rank, ranks, STEPS.get(case.model, 20), arguments.seed)
        if rank == 0:
            path = os.path.join(arguments.out, f"{name}_{ranks}.safetensors")
            save_file(tensors, path, metadata=case.metadata(ranks))
    # Every DistributedDataParallel is gone by now. If one outlives the process group, its destructor waits for Gloo's
    # thread while it holds the interpreter's lock, which that thread may be waiting for.
    dist.destroy_process_group()


class LowPrecision:
    """Mixed precision as one would write it by hand: PyTorch's own needs events, which the CPU does not have.

    Gradients are added in rank order, in float32, as Lockstep does.
    """

    def __init__(self, model, parameters, reduction):
        self.model, self.low = model, {}
        self.parameter_type, self.reduction_type = getattr(torch, parameters), getattr(torch, reduction)

    def parameters(self):
        return self.model.parameters()

    def __call__(self, x):
        self.low = {name: parameter.detach().to(self.parameter_type).requires_grad_()
                    for name, parameter in self.model.named_parameters()}
        x = x.to(self.parameter_type) if x.is_floating_point() else x
        return torch.func.functional_call(self.model, self.low, (x,))

    def average_gradients(self):
        for name, parameter in self.model.named_parameters():
            copies = gather(self.low[name].grad.to(self.reduction_type).float())
            for copy in copies[1:]:
                copies[0] += copy
            parameter.grad = (copies[0] / len(copies)).to(self.reduction_type).float()


def wrap(case, model):
    if case.mixed:
        return LowPrecision(model, *case.mixed)
    ddp = DistributedDataParallel(model, **case.options)
    if case.model in CHAOTIC:
        ddp.register_comm_hook(None, mean_in_rank_order)
    elif case.hook == "power_sgd":
        # Two plain steps, then compressed ones with memory.
        ddp.register_comm_hook(powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook)
    elif case.hook:
        hook = {"all_reduce": default_hooks.allreduce_hook, "fp16": default_hooks.fp16_compress_hook,
                "bf16": default_hooks.bf16_compress_hook}[case.hook]
        # Not by its name, by which some are refused where there is no GPU.
        ddp.register_comm_hook(None, lambda state, bucket: hook(state, bucket))
    return ddp


def train(case, rank, ranks, steps, seed):
    torch.manual_seed(seed)
    model = odd_models.make(case.model)
    tensors = {f"initial/{key}": real(value).clone() for key, value in model.state_dict().items()}
    x, y = make_batches(case.model, ranks, steps, seed + 1)
    ddp = wrap(case, model)
    trained = [parameter for parameter in ddp.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.01, momentum=case.momentum)
    losses = torch.zeros(steps, dtype=torch.float64)
    for step in range(steps):
        optimizer.zero_grad()
        parts = list(zip(x[rank, step].chunk(case.accumulate), y[rank, step].chunk(case.accumulate)))
        for i, (part_x, part_y) in enumerate(parts):
            with ddp.no_sync() if i + 1 < len(parts) else contextlib.nullcontext():
                loss = odd_models.loss_of(case.model, ddp, part_x, part_y, rank, step)
                loss.backward()
        if case.mixed:
            ddp.average_gradients()
        optimizer.step()
        losses[step] = loss.detach()

    tensors.update({"x": x, "y": y, "loss": torch.stack(gather(losses))})
    for key, parameter in model.named_parameters():
        copies = gather(real(parameter.detach()))
        if not all(torch.equal(copies[0], copy) for copy in copies):
            raise RuntimeError(f"rank {rank}: {key} differs between ranks after {steps} steps of {case}")
        tensors[f"final/{key}"] = copies[0]
    for key, buffer in model.named_buffers():
        tensors.update({f"final.{peer}/{key}": copy for peer, copy in enumerate(gather(buffer))})
    return tensors


def real(tensor):
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def mean_in_rank_order(_, bucket):
    copies = gather(bucket.buffer())
    for copy in copies[1:]:
        copies[0] += copy
    mean = torch.futures.Future()
    mean.set_result(copies[0] / len(copies))
    return mean


class Slots:
    """Memory that all ranks of this machine share. Gloo's sockets take most of the time of large models.

    Two sides in turn: whoever writes to one again has seen all others come to the barrier of the other side, which is
    when they have read this one."""

    sides = None
    next_side = 0

    def gather(self, tensor):
        ranks, rank = dist.get_world_size(), dist.get_rank()
        copies = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(ranks)]
        parts = [copy.view(-1).view(torch.uint8).split(SLOT_BYTES) for copy in copies]
        for i, mine in enumerate(tensor.contiguous().view(-1).view(torch.uint8).split(SLOT_BYTES)):
            side = self.sides[self.next_side]
            self.next_side = 1 - self.next_side
            side[rank, :len(mine)] = mine
            dist.barrier()
            for peer in range(ranks):
                parts[peer][i].copy_(side[peer, :len(mine)])
        return copies


slots = Slots()


def gather(tensor):
    if tensor.nbytes > 1 << 16:
        return slots.gather(tensor)
    copies = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(copies, tensor)
    return copies


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--cases", default=",".join(CASES), help="comma-separated")
    parser.add_argument("--ranks", default="2,4", help="comma-separated")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.makedirs(arguments.out, exist_ok=True)
    gc.freeze()  # so that no rank looks through all modules again and again
    for ranks in map(int, arguments.ranks.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            # Forked, since importing torch takes longer than the training; this process has used no torch thread.
            options = (ranks, arguments, os.path.join(folder, "store"), mmap.mmap(-1, 2 * ranks * SLOT_BYTES))
            mp.start_processes(run_rank, options, nprocs=ranks, start_method="fork")


if __name__ == "__main__":
    main()
