"""The training of examples/fashion_mnist_ddp with PyTorch's own DistributedDataParallel over Gloo, as its oracle:
article_torch.py --world-size 2 --out DIR [options as of fashion_mnist_ddp] [--backend lockstep]

Equal seeds give equal weights and the same order of samples. Each epoch adds a line to DIR/metrics.jsonl and replaces
DIR/state.pt, from which it goes on if it is started again."""

import argparse
import gzip
import json
import os
import pathlib
import sys
import tempfile

import numpy
import torch
import torch._dynamo  # noqa: F401  what optimizers load when they are first made, in each rank
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.nn import functional as distributed
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "parity"))
import models  # noqa: E402  (found through the line above)


def read_idx(folder, name):
    path = pathlib.Path(folder) / name
    packed = path.with_name(name + ".gz")
    data = gzip.decompress(packed.read_bytes()) if packed.exists() else path.read_bytes()
    dimensions = numpy.frombuffer(data, ">i4", data[3], 4)
    return torch.from_numpy(numpy.frombuffer(data, numpy.uint8, offset=4 + 4 * data[3]).reshape(dimensions).copy())


class GlobalBatchNorm(torch.nn.BatchNorm2d):
    """Over the images of all ranks, as SyncBatchNorm, which PyTorch has for GPUs only."""

    @classmethod
    def convert(cls, module):
        for name, child in module.named_children():
            if isinstance(child, torch.nn.BatchNorm2d):
                synced = cls(child.num_features, child.eps, child.momentum)
                synced.load_state_dict(child.state_dict())
                setattr(module, name, synced)
            else:
                cls.convert(child)
        return module

    def forward(self, x):
        if not self.training:
            return super().forward(x)
        count = x.new_tensor([x.numel() / self.num_features])
        sums = torch.cat([x.sum((0, 2, 3)), x.square().sum((0, 2, 3)), count])
        total, squares, count = distributed.all_reduce(sums).split((self.num_features, self.num_features, 1))
        mean = total / count
        variance = squares / count - mean.square()
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * count / (count - 1), self.momentum)
            self.num_batches_tracked += 1
        scale = self.weight * (variance + self.eps).rsqrt()
        return x * scale[:, None, None] + (self.bias - mean * scale)[:, None, None]


class Split:
    """Pixels in [0, 1], the grey image three times."""

    def __init__(self, folder, prefix, device):
        self.device = device
        self.images = read_idx(folder, prefix + "-images-idx3-ubyte")
        self.targets = read_idx(folder, prefix + "-labels-idx1-ubyte").long()

    def __len__(self):
        return len(self.targets)

    def batch(self, indices):
        images = (self.images[indices].float() / 255).unsqueeze(1).expand(-1, 3, -1, -1)
        return images.contiguous().to(self.device), self.targets[indices].to(self.device)


def batches(order, size):
    order = torch.tensor(list(order))
    return order.split(size)


def averaged(numbers):
    """Sums over all ranks."""
    numbers = torch.tensor(numbers, dtype=torch.float64)
    dist.all_reduce(numbers)
    return numbers.tolist()


def train_epoch(model, optimizer, data, order, options, losses):
    model.train()
    loss_sum, samples = 0.0, 0
    for indices in batches(order, options.batch_size // options.world_size):
        x, y = data.batch(indices)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        loss_sum += loss.item() * len(y)
        samples += len(y)
        if losses is not None:
            total = averaged([loss.item() * len(y), len(y)])
            losses.append(total[0] / total[1])
            if len(losses) == options.max_steps:
                break
    total = averaged([loss_sum, samples])
    return total[0] / total[1]


@torch.no_grad()
def evaluate(model, data, rank, options):
    """Loss and accuracy over all images, each once, in evaluation mode; or as the article's program did."""
    ranks = options.world_size
    shown = len(data) // ranks if options.article_bugs else len(data)
    if not options.article_bugs:
        model.eval()
        for buffer in model.buffers():  # rank 0's, as a DistributedDataParallel's forward would send them
            dist.broadcast(buffer, 0)
    sums = [0.0, 0.0, 0.0]
    size = options.batch_size // ranks
    share = list(range(rank, shown, ranks))
    if options.article_bugs and shown // ranks % size <= 1:  # no last batch of one sample, as in C++
        share = share[:shown // ranks // size * size]
    for indices in batches(share, size):
        x, y = data.batch(indices)
        output = model(x)
        weight = 1 if options.article_bugs else len(y)
        sums[0] += F.cross_entropy(output, y).item() * weight
        sums[1] += (output.argmax(1) == y).double().mean().item() * weight
        sums[2] += weight
    sums = averaged(sums)
    return sums[0] / sums[2], sums[1] / sums[2]


def run_rank(rank, options, rendezvous):
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // options.world_size))
    if options.backend == "lockstep":
        import lockstep  # noqa: F401  (registers the backend)
    dist.init_process_group(options.backend, init_method=f"file://{rendezvous}", rank=rank,
                            world_size=options.world_size)
    try:
        train(rank, options)
    finally:
        dist.destroy_process_group()


def train(rank, options):
    torch.manual_seed(options.seed)
    device = torch.device("cpu" if options.device == "cpu" else f"cuda:{rank % torch.cuda.device_count()}")
    module = models.ResNet18(10)
    if options.sync_batchnorm:
        GlobalBatchNorm.convert(module)
    module.to(device)
    out = pathlib.Path(options.out)
    state = torch.load(out / "state.pt", weights_only=True) if (out / "state.pt").exists() else None
    if state:
        module.load_state_dict(state["model"])
    model = DistributedDataParallel(module, device_ids=None if device.type == "cpu" else [device])
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)
    images, test = (Split(options.data, name, device) for name in ("train", "t10k"))
    sampler = DistributedSampler(images, options.world_size, rank, shuffle=True, seed=options.seed)
    losses = [] if options.step_losses else None
    for epoch in range(state["epoch"] if state else 0, options.num_epochs):
        sampler.set_epoch(epoch)
        loss = train_epoch(model, optimizer, images, sampler, options, losses)
        if losses is not None:
            if rank == 0:
                lines = ["step,train_loss", *(f"{i},{value!r}" for i, value in enumerate(losses, start=1))]
                pathlib.Path(options.step_losses).write_text("\n".join(lines) + "\n")
            return
        # The module itself: the wrapper communicates in each forward, but ranks may have different numbers of them.
        validation_loss, accuracy = evaluate(module, test, rank, options)
        if rank == 0:
            keep(out, module, epoch + 1, {"epoch": epoch, "train_loss": loss, "val_loss": validation_loss,
                                          "val_accuracy": accuracy, "world_size": options.world_size})


def keep(out, module, epochs, metrics):
    torch.save({"model": module.state_dict(), "epoch": epochs}, out / "state.new")
    with open(out / "metrics.jsonl", "a") as file:
        file.write(json.dumps(metrics) + "\n")
    os.replace(out / "state.new", out / "state.pt")
    print("Iteration {}  Train Loss: {train_loss:.4f}  Val Loss: {val_loss:.4f}".format(epochs, **metrics), flush=True)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world-size", type=int, required=True)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--num-epochs", type=int, default=10)
    parser.add_argument("--num-workers", type=int, default=4, help="ignored: batches are prepared in the loop")
    parser.add_argument("--lr", type=float, default=0.001)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: each rank takes a GPU")
    parser.add_argument("--sync-batchnorm", action="store_true")
    parser.add_argument("--max-steps", type=int, default=0)
    parser.add_argument("--step-losses")
    parser.add_argument("--article-bugs", action="store_true")
    parser.add_argument("--backend", choices=("gloo", "lockstep"), default="gloo",
                        help="lockstep needs the package of that name in PYTHONPATH")
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--out", default="out")
    options = parser.parse_args(arguments)
    pathlib.Path(options.out).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        # Forked, since importing torch takes longer than a short training; CUDA does not bear that.
        mp.start_processes(run_rank, (options, pathlib.Path(folder) / "rendezvous"), options.world_size,
                           start_method="fork" if options.device == "cpu" else "spawn")


if __name__ == "__main__":
    main()
