"""Times training steps with PyTorch's own DistributedDataParallel, one thread a rank, ranks on this machine.

Prints JSON lines: {"ready": true, ...} after the warm-up, then {"seconds": [...]} for each block of steps: one number
per step (zero_grad, forward, backward, optimizer), the mean of all ranks' times. Between blocks no rank uses the
processor, so that a driver can run blocks of other engines there.
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "parity"))
import models  # noqa: E402  (found through the line above)


def run_rank(rank, arguments, rendezvous, parent):
    torch.set_num_threads(1)
    if arguments.unconnected:
        return serve(rank, arguments, parent)
    dist.init_process_group(arguments.backend, init_method=f"file://{rendezvous}", rank=rank,
                            world_size=arguments.ranks)
    serve(rank, arguments, parent)
    # The DistributedDataParallel is gone by now: outliving its process group, its destructor could wait for ever.
    dist.destroy_process_group()


def serve(rank, arguments, parent):
    """Runs blocks of steps, of the sizes that come from `parent`, until one is 0."""
    torch.manual_seed(0)
    model = models.make(arguments.model)
    x, y = models.make_batch(arguments.model, arguments.batch, torch.Generator().manual_seed(1 + rank))
    if not arguments.unconnected:
        model = DistributedDataParallel(model, gradient_as_bucket_view=arguments.bucket_view)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    while steps := parent.recv():
        parent.send([one_step(arguments.model, model, optimizer, x, y) for _ in range(steps)])


def one_step(name, model, optimizer, x, y):
    start = time.perf_counter()
    optimizer.zero_grad()
    models.loss_of(name, model(x), y).backward()
    optimizer.step()
    return time.perf_counter() - start


def run_block(ranks, steps):
    """Seconds per step, the mean of the ranks."""
    for rank in ranks:
        rank.send(steps)
    return [statistics.fmean(step) for step in zip(*[rank.recv() for rank in ranks])]


def block_sizes(arguments):
    if not arguments.driven:
        yield arguments.steps
        return
    for line in iter(sys.stdin.readline, ""):
        verb, steps = line.split()
        if verb != "go" or int(steps) < 1:
            raise ValueError(f'expected "go <steps>", got {line!r}')
        yield int(steps)


def drive(arguments, ranks):
    run_block(ranks, arguments.warm_up)
    print(json.dumps({"ready": True, **vars(arguments)}), flush=True)
    for steps in block_sizes(arguments):
        print(json.dumps({"seconds": run_block(ranks, steps)}), flush=True)
    for rank in ranks:
        rank.send(0)


def positive(text):
    if int(text) < 1:
        raise ValueError
    return int(text)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, choices=["toy", "mlp", "cnn", "resnet18", "gpt"])
    parser.add_argument("--batch", type=positive, default=64, help="samples per rank")
    parser.add_argument("--steps", type=positive, default=20, help="in the one block that is timed without --driven")
    parser.add_argument("--warm-up", type=positive, default=3, help="steps before the first block")
    parser.add_argument("--ranks", type=positive, default=2)
    parser.add_argument("--backend", choices=["gloo", "lockstep"], default="gloo")
    parser.add_argument("--unconnected", action="store_true", help="every rank trains alone, without communication")
    parser.add_argument("--bucket-view", action="store_true", help="gradient_as_bucket_view=True")
    parser.add_argument("--driven", action="store_true", help='a block for each line "go <steps>" of standard input')
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    context = mp.get_context("fork")  # importing torch once is enough; this process has used no torch thread
    with tempfile.TemporaryDirectory() as folder:
        processes, ranks = [], []
        for rank in range(arguments.ranks):
            ours, theirs = context.Pipe()
            options = (rank, arguments, os.path.join(folder, "store"), theirs)
            processes.append(context.Process(target=run_rank, args=options, daemon=True))
            processes[-1].start()
            theirs.close()  # a rank that dies then ends the wait for its result
            ranks.append(ours)
        drive(arguments, ranks)
        for process in processes:
            process.join()


if __name__ == "__main__":
    main()
