"""Writes what PyTorch's communication hooks make of known gradients, over Gloo: <out>/hooks_<ranks>.safetensors.

Tensors: shape/<bucket>.<i> (empty tensors with the shapes of the bucket's gradients), in/<bucket> ([rank, step,
element]), out/<case>/<bucket> ([step, element], equal on all ranks: that is checked; [rank, step, element] for noop),
stats/<case> (elements before and after compression). Metadata: cases.
"""

import argparse
import os
import tempfile
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from safetensors.torch import save_file
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook, quantization_hooks
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook

STEPS = 8
# Matrices of equal and of different shapes, a kernel, biases, and some that are not worth compressing.
BUCKETS = [
    [(24, 16), (24,), (40, 12), (24, 16), (8, 4, 3, 3), (2, 3)],
    [(40, 30), (40,), (33, 21), (7,)],
]
POWER_SGD = {
    "power_sgd": {},
    "power_sgd_rank2": {"matrix_approximation_rank": 2, "random_seed": 7},
    "power_sgd_rank4": {"matrix_approximation_rank": 4, "min_compression_rate": 1.5},
    "power_sgd_cold": {"matrix_approximation_rank": 2, "warm_start": False, "random_seed": 123456},
    "power_sgd_no_feedback": {"use_error_feedback": False},
    "power_sgd_at_once": {"use_error_feedback": False, "warm_start": False, "start_powerSGD_iter": 0},
    "power_sgd_epsilon": {"matrix_approximation_rank": 2, "orthogonalization_epsilon": 0.1},
    "power_sgd_batches": {"matrix_approximation_rank": 2, "batch_tensors_with_same_shape": True},
    "batched_power_sgd": {},
    "batched_power_sgd_rank3": {"matrix_approximation_rank": 3, "warm_start": False},
    "fp16_power_sgd": {},
}


class Bucket:
    """A torch.distributed.GradBucket, which Python cannot make."""

    def __init__(self, index, flat):
        self._index, self._buffer = index, flat

    def index(self):
        return self._index

    def is_last(self):
        return self._index == len(BUCKETS) - 1

    def buffer(self):
        return self._buffer

    def set_buffer(self, tensor):
        self._buffer = tensor

    def gradients(self):
        sizes = [torch.Size(shape).numel() for shape in BUCKETS[self._index]]
        return [part.view(shape) for part, shape in zip(self._buffer.split(sizes), BUCKETS[self._index])]


def orthogonalize_any(matrices, epsilon=0, three_dimensional=powerSGD_hook._orthogonalize):
    # batched_powerSGD_hook passes a matrix where PyTorch 2.13 takes batches of matrices only.
    three_dimensional(matrices if matrices.dim() == 3 else matrices.unsqueeze(0), epsilon)


def finished(value):
    future = torch.futures.Future()
    future.set_result([value])
    return SimpleNamespace(get_future=lambda: future)


def all_reduce_in_rank_order(tensor, **_):
    # As Lockstep adds. Gloo's order for four ranks is another, and PowerSGD makes that last bit into 3e-5 in six steps.
    copies = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(copies, tensor)
    total = copies[0].float()
    for copy in copies[1:]:
        total += copy.float()
    return finished(tensor.copy_(total))


def all_gather_as_nccl(outputs, tensor, **_):
    # The quantization hooks know only what NCCL's futures hold: all outputs in one tensor.
    dist.all_gather(outputs, tensor)
    return finished(torch.stack(outputs))


def make_hook(case):
    """A function of a bucket, and the state of PowerSGD."""
    stateless = {
        "all_reduce": default_hooks.allreduce_hook,
        "fp16": default_hooks.fp16_compress_hook,
        "bf16": default_hooks.bf16_compress_hook,
        "fp16_all_reduce": default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook),
        "bf16_fp16": default_hooks.bf16_compress_wrapper(default_hooks.fp16_compress_hook),
        "noop": noop_hook,
        "quantize": quantization_hooks.quantization_pertensor_hook,
        "quantize_channels": quantization_hooks.quantization_perchannel_hook,
    }
    if case in stateless:
        return lambda bucket: stateless[case](None, bucket), None
    state = powerSGD_hook.PowerSGDState(None, **{"start_powerSGD_iter": 2, **POWER_SGD[case]})
    hook = powerSGD_hook.batched_powerSGD_hook if case.startswith("batched") else powerSGD_hook.powerSGD_hook
    if case.startswith("fp16"):
        hook = default_hooks.fp16_compress_wrapper(hook)
    return lambda bucket: hook(state, bucket), state


CASES = ["all_reduce", "fp16", "bf16", "fp16_all_reduce", "bf16_fp16", "noop", "quantize", "quantize_channels",
         *POWER_SGD]


def make_gradients(ranks, index):
    """A part that all ranks and steps have in common, and noise."""
    generator = torch.Generator().manual_seed(100 + index)
    elements = sum(torch.Size(shape).numel() for shape in BUCKETS[index])
    return torch.randn(elements, generator=generator) + 0.5 * torch.randn(ranks, STEPS, elements, generator=generator)


def apply(case, gradients):
    """The hook's results on this rank, by bucket: [step, element]."""
    hook, state = make_hook(case)
    results = [[] for _ in BUCKETS]
    for step in range(STEPS):
        for index, values in enumerate(gradients):
            results[index].append(hook(Bucket(index, values[step].clone())).wait().to(torch.float32))
    return [torch.stack(steps) for steps in results], state


def run_rank(rank, ranks, rendezvous, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=ranks)
    powerSGD_hook._orthogonalize = orthogonalize_any
    powerSGD_hook.dist = SimpleNamespace(**{**vars(dist), "all_reduce": all_reduce_in_rank_order})
    quantization_hooks.dist = SimpleNamespace(**{**vars(dist), "all_gather": all_gather_as_nccl})
    inputs = [make_gradients(ranks, index) for index in range(len(BUCKETS))]
    tensors = {f"in/{index}": values for index, values in enumerate(inputs)}
    for index, shapes in enumerate(BUCKETS):
        tensors.update({f"shape/{index}.{i}": torch.empty(0, *shape) for i, shape in enumerate(shapes)})
    for case in CASES:
        results, state = apply(case, [values[rank] for values in inputs])
        for index, result in enumerate(results):
            copies = [torch.empty_like(result) for _ in range(ranks)]
            dist.all_gather(copies, result)
            if case == "noop":
                tensors[f"out/{case}/{index}"] = torch.stack(copies)
                continue
            if not all(torch.equal(copies[0], copy) for copy in copies):
                raise RuntimeError(f"{case} gives rank {rank} other gradients than rank 0")
            tensors[f"out/{case}/{index}"] = result
        if state is not None:
            tensors[f"stats/{case}"] = torch.tensor(state.compression_stats()[1:])
    dist.destroy_process_group()
    if rank == 0:
        save_file(tensors, path, metadata={"cases": ",".join(CASES)})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--ranks", default="2,4", help="comma-separated")
    arguments = parser.parse_args()
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.makedirs(arguments.out, exist_ok=True)
    for ranks in map(int, arguments.ranks.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(arguments.out, f"hooks_{ranks}.safetensors")
            options = (ranks, os.path.join(folder, "store"), path)
            mp.start_processes(run_rank, options, nprocs=ranks, start_method="fork")


if __name__ == "__main__":
    main()
