"""The backend lockstep of torch.distributed against expected values and against Gloo."""

import os
import subprocess
import sys
import tempfile
import time
import unittest
from functools import partial

import torch
import torch._dynamo  # noqa: F401  what optimizers load when they are first made, in each rank
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from ranks import run_ranks
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

SIZES = (2, 4)
TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32, torch.int64,
         torch.uint8)


def expect(tensor, wanted):
    wanted = torch.as_tensor(wanted, dtype=tensor.dtype).expand(tensor.shape)
    assert torch.equal(tensor, wanted), f"{tensor} where {wanted} belongs"


def all_reduce(rank, size):
    total = size * (size + 1) // 2
    for dtype in TYPES:
        for op, wanted in ((dist.ReduceOp.SUM, total), (dist.ReduceOp.MIN, 1), (dist.ReduceOp.MAX, size),
                           (dist.ReduceOp.PRODUCT, {2: 2, 4: 24}[size])):
            tensor = torch.full((3, 5), rank + 1, dtype=dtype)
            dist.all_reduce(tensor, op)
            expect(tensor, wanted)
    tensor = torch.full((7,), float(rank))
    dist.all_reduce(tensor, dist.ReduceOp.AVG)
    expect(tensor, (size - 1) / 2)
    tensor = torch.full((7,), 1 << rank)
    dist.all_reduce(tensor, dist.ReduceOp.BOR)
    expect(tensor, (1 << size) - 1)
    dist.all_reduce(tensor, dist.ReduceOp.BXOR)
    expect(tensor, 0)
    flag = torch.tensor([rank == 0, True])
    dist.all_reduce(flag, dist.ReduceOp.BAND)
    assert flag.tolist() == [False, True]
    complex_tensor = torch.full((2,), complex(rank, 1))
    dist.all_reduce(complex_tensor)
    expect(complex_tensor, complex(total - size, size))
    strided = torch.zeros(4, 6)[:, ::2]
    strided.fill_(rank + 1)
    dist.all_reduce(strided)
    expect(strided, total)
    sparse = torch.sparse_coo_tensor([[rank, size, size]], [1.0, 2.0, 3.0], (size + 2,))
    dist.all_reduce(sparse)
    assert sparse.is_sparse
    expect(sparse.to_dense(), [1.0] * size + [5.0 * size, 0.0])
    scaled = torch.full((3,), 2.0)
    dist.all_reduce(scaled, dist._make_nccl_premul_sum(0.5))
    expect(scaled, float(size))


def rooted(rank, size):
    for root in range(size):
        tensor = torch.full((5,), rank == root, dtype=torch.bool)
        dist.broadcast(tensor, root)
        expect(tensor, True)
        tensor = torch.full((5,), rank + 1)
        dist.reduce(tensor, root)
        expect(tensor, size * (size + 1) // 2 if rank == root else rank + 1)
        parts = [torch.zeros(3, dtype=torch.int16) for _ in range(size)] if rank == root else None
        dist.gather(torch.full((3,), rank, dtype=torch.int16), parts, root)
        if rank == root:
            for peer, part in enumerate(parts):
                expect(part, peer)
        output = torch.zeros(2, 2)
        dist.scatter(output, [torch.full((2, 2), float(peer)) for peer in range(size)] if rank == root else None, root)
        expect(output, rank)


def gathering(rank, size):
    outputs = [torch.zeros(4) for _ in range(size)]
    dist.all_gather(outputs, torch.full((4,), float(rank)))
    for peer, output in enumerate(outputs):
        expect(output, peer)
    output = torch.zeros(size, 3, dtype=torch.int8)
    dist.all_gather_into_tensor(output, torch.full((3,), rank, dtype=torch.int8))
    expect(output, torch.arange(size, dtype=torch.int8).reshape(-1, 1))
    output = torch.zeros(3)
    dist.reduce_scatter_tensor(output, torch.arange(3.0 * size))
    expect(output, size * torch.arange(3.0 * rank, 3.0 * rank + 3))
    dist.reduce_scatter(output, [torch.full((3,), float(peer)) for peer in range(size)])
    expect(output, size * rank)
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * rank})
    assert objects == [{"rank": peer, "text": "x" * peer} for peer in range(size)], objects


def all_to_all(rank, size):
    output = torch.zeros(size, dtype=torch.int64)
    dist.all_to_all_single(output, torch.arange(size) + 10 * rank)
    expect(output, 10 * torch.arange(size) + rank)
    inputs = [torch.full((peer + 1,), float(rank)) for peer in range(size)]
    outputs = [torch.zeros(rank + 1) for _ in range(size)]
    dist.all_to_all(outputs, inputs)
    for peer, output in enumerate(outputs):
        expect(output, peer)


def messages(rank, size):
    after, before = (rank + 1) % size, (rank - 1) % size
    tensor = torch.zeros(3)
    receiving = dist.irecv(tensor, before, tag=7)
    dist.isend(torch.full((3,), float(rank)), after, tag=7).wait()
    receiving.wait()
    expect(tensor, before)
    if rank == 0:
        seen = set()
        for _ in range(size - 1):
            tensor = torch.zeros(1, dtype=torch.int64)
            source = dist.recv(tensor)
            assert tensor.item() == 100 + source
            seen.add(source)
        assert seen == set(range(1, size))
    else:
        dist.send(torch.tensor([100 + rank]), 0)


def asynchronous(rank, size):
    tensors = [torch.full((1000,), float(i + rank)) for i in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    futures = [work.get_future() for work in works]
    doubled = futures[-1].then(lambda future: future.value()[0] * 2)
    for i, work in enumerate(works):
        assert work.wait() and work.is_completed() and work.is_success()
        expect(tensors[i], size * i + size * (size - 1) / 2)
        assert futures[i].wait()[0].data_ptr() == tensors[i].data_ptr()
    expect(doubled.wait(), 2 * (size * 19 + size * (size - 1) / 2))


def listeners_that_wait(rank, size):
    def again(future):
        tensor = torch.ones(3)
        dist.all_reduce(tensor, async_op=True).get_future().wait()
        return future.value()[0] + tensor

    for _ in range(20):
        future = dist.all_reduce(torch.ones(3), async_op=True).get_future()
        # Within a listener's own listener as well.
        future = future.then(again).then(lambda sum: [sum.value() * 2]).then(again)
        expect(future.wait(), 5 * size)


def subgroups(rank, size):
    groups = [dist.new_group([peer for peer in range(size) if peer % 2 == parity]) for parity in (0, 1)]
    tensor = torch.tensor([rank])
    dist.all_reduce(tensor, group=groups[rank % 2])
    expect(tensor, sum(peer for peer in range(size) if peer % 2 == rank % 2))
    assert dist.get_backend(groups[rank % 2]) == "lockstep"


def training(rank, size):
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.ReLU(), torch.nn.BatchNorm1d(50),
                                torch.nn.Linear(50, 3))
    model = DistributedDataParallel(model, bucket_cap_mb=0.002)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for _ in range(10):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(torch.randn(16, 20)), torch.randint(3, (16,))).backward()
        optimizer.step()
    return [parameter.detach().tolist() for parameter in model.parameters()]


def sharded_training(rank, size, folder):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.full((4, 8), rank + 1.0)).square().mean().backward()
        optimizer.step()
    state = get_model_state_dict(model)
    before = model[0].weight.full_tensor()
    checkpoint.save(state, checkpoint_id=folder)
    with torch.no_grad():
        model[0].weight.zero_()
    checkpoint.load(state, checkpoint_id=folder)
    assert torch.equal(model[0].weight.full_tensor(), before)
    return before.tolist()


def dying_rank(rank, size):
    dist.barrier()
    if rank == size - 1:
        os._exit(1)
    start = time.monotonic()
    try:
        dist.all_reduce(torch.ones(1000))
    except dist.DistBackendError as error:
        return str(error), time.monotonic() - start
    raise AssertionError("a collective with a dead rank went well")


def wrong_arguments(rank, size):
    for wrong in (lambda: dist.all_reduce(torch.ones(2).to_sparse(), dist.ReduceOp.MAX),
                  lambda: dist.broadcast(torch.ones(2).to_sparse(), 0),
                  lambda: dist.all_reduce(torch.ones(2, dtype=torch.int32), dist.ReduceOp.AVG),
                  lambda: dist.all_gather([torch.ones(3)] * size, torch.ones(2))):
        try:
            wrong()
        except (ValueError, RuntimeError, NotImplementedError):
            continue
        raise AssertionError("a wrong call went well")
    tensor = torch.ones(2)
    dist.all_reduce(tensor)  # the group is as good as before
    expect(tensor, size)


def wrong_first_part(rank, size):
    """Of several parts the first is refused, and those behind it go well."""
    options = dist.AllreduceCoalescedOptions()
    options.reduceOp = dist.ReduceOp.AVG
    tensors = [torch.ones(2, dtype=torch.int32), torch.full((2,), float(rank))]
    work = dist.group.WORLD.allreduce_coalesced(tensors, options)
    try:
        work.wait()
    except (ValueError, RuntimeError) as error:
        assert "int32" in str(error), error
    else:
        raise AssertionError("a part that was refused went well")
    expect(tensors[1], (size - 1) / 2)


def after_the_end(rank, size):
    group = dist.new_group(list(range(size)))
    dist.barrier()
    dist.destroy_process_group(group)
    try:
        dist.all_reduce(torch.ones(2), group=group)
    except ValueError as error:
        return str(error)
    raise AssertionError("a group that was destroyed reduced")


class BackendTest(unittest.TestCase):
    def run_all_sizes(self, function):
        for size in SIZES:
            with self.subTest(size=size):
                run_ranks(size, function)

    def test_all_reduce(self):
        self.run_all_sizes(all_reduce)

    def test_rooted(self):
        self.run_all_sizes(rooted)

    def test_gathering(self):
        self.run_all_sizes(gathering)

    def test_all_to_all(self):
        self.run_all_sizes(all_to_all)

    def test_messages(self):
        self.run_all_sizes(messages)

    def test_asynchronous(self):
        self.run_all_sizes(asynchronous)

    def test_listeners_that_wait(self):
        self.run_all_sizes(listeners_that_wait)

    def test_subgroups(self):
        self.run_all_sizes(subgroups)

    def test_wrong_arguments(self):
        self.run_all_sizes(wrong_arguments)

    def test_a_part_of_a_call_that_is_refused(self):
        run_ranks(2, wrong_first_part)

    # fault: 53
    def test_a_destroyed_group_is_refused(self):
        for text in run_ranks(2, after_the_end):
            self.assertRegex(text, "this process group was destroyed|is not initialized")  # torch may word it itself

    def test_ddp_trains_as_over_gloo(self):
        for size in SIZES:
            ours, gloo = (run_ranks(size, training, backend) for backend in ("lockstep", "gloo"))
            for ours_of_rank, gloo_of_rank in zip(ours, gloo):
                for one, other in zip(ours_of_rank, gloo_of_rank):
                    torch.testing.assert_close(torch.tensor(one), torch.tensor(other), atol=1e-6, rtol=0)

    def test_fsdp_and_checkpoint_as_over_gloo(self):
        results = []
        for backend in ("lockstep", "gloo"):
            with tempfile.TemporaryDirectory() as folder:
                results.append(run_ranks(2, partial(sharded_training, folder=folder), backend))
        torch.testing.assert_close(torch.tensor(results[0]), torch.tensor(results[1]), atol=1e-6, rtol=0)

    def test_a_rank_dies(self):
        for size in SIZES:
            for text, seconds in run_ranks(size, dying_rank, dying=[size - 1])[:-1]:
                self.assertIn(f"rank {size - 1}", text)
                self.assertLess(seconds, 5)

    def test_mixed_backends(self):
        run_ranks(2, gathering, backend="cpu:lockstep")

    def test_torchrun(self):
        program = """
import torch, torch.distributed as dist
dist.init_process_group("lockstep")
tensor = torch.ones(3)
dist.all_reduce(tensor)
assert tensor.tolist() == [2.0] * 3
dist.destroy_process_group()
"""
        with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
            script.write(program)
            script.flush()
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                       script.name]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
