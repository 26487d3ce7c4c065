"""Processes beside the ranks': DataLoader workers, other forked children, and the one that saves checkpoints."""

import gc
import os
import sys
import tempfile
import unittest
from functools import partial

import torch
import torch._dynamo  # noqa: F401  what DistributedDataParallel loads when it is first made, in each rank
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from ranks import run_ranks
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


def in_child(body):
    """The exit code of a forked child that runs `body`, and then ends as Python's processes do."""
    pid = os.fork()
    if pid == 0:
        code = 2
        try:
            body()
            gc.collect()
            code = 0
        except SystemExit as exit:
            code = exit.code
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def train_with_workers(rank, size):
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    data = TensorDataset(torch.randn(24, 4))
    loader = DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context="fork")
    for _ in range(2):  # the workers of the first are gone in the second
        for (batch,) in loader:
            model(batch).sum().backward()
    dist.barrier()
    return model.module.weight.grad.tolist()


def forked_children(rank, size):
    future = dist.irecv(torch.zeros(1), 1 - rank).get_future()  # nobody has sent yet: a thread waits for it
    dist.barrier()
    dist.send(torch.ones(1), 1 - rank)
    future.wait()

    def collective():
        try:
            dist.all_reduce(torch.ones(3))
        except (ValueError, RuntimeError) as error:
            sys.exit(7 if "forked" in str(error) else str(error))

    codes = [in_child(collective), in_child(dist.destroy_process_group), in_child(lambda: None)]
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    return codes, tensor.tolist()


def saving_beside(rank, size, folder):
    """Twice: the first save starts the process, the second finds it."""
    os.environ["OMP_NUM_THREADS"] = "1"
    for step in range(2):
        state = {"weight": torch.full((4,), float(step)), "step": step}
        saved = checkpoint.async_save(state, checkpoint_id=os.path.join(folder, str(step)),
                                      async_checkpointer_type=AsyncCheckpointerType.PROCESS)
        tensor = torch.ones(2)
        dist.all_reduce(tensor)  # goes on meanwhile
        assert tensor.tolist() == [float(size)] * 2
        saved.result()
        found = {"weight": torch.zeros(4), "step": -1}
        checkpoint.load(found, checkpoint_id=os.path.join(folder, str(step)))
        assert found["weight"].tolist() == [float(step)] * 4 and found["step"] == step, found


class ProcessesTest(unittest.TestCase):
    # fault: 49
    def test_workers_of_a_loader(self):
        for size in (2, 4):
            ours, gloo = (run_ranks(size, train_with_workers, backend) for backend in ("lockstep", "gloo"))
            torch.testing.assert_close(torch.tensor(ours), torch.tensor(gloo))

    # fault: 49
    def test_a_forked_child_cannot_use_a_group_and_ends_without_disturbing_it(self):
        for codes, sums in run_ranks(2, forked_children):
            self.assertEqual(codes, [7, 0, 0])
            self.assertEqual(sums, [2.0] * 3)

    def test_a_checkpoint_that_another_process_saves(self):
        with tempfile.TemporaryDirectory() as folder:
            run_ranks(2, partial(saving_beside, folder=folder))


if __name__ == "__main__":
    unittest.main()
