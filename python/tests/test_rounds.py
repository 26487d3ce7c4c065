"""How the ranks of a group meet in torch's store: over what earlier starts left there, late, twice, or not at all.

The ranks are threads here, so nothing of this file forks; see test_starts.py."""

import os
import random
import subprocess
import sys
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from ranks import TIMEOUT, backend_over

SHORT = timedelta(seconds=1)


def meet(store, ranks, timeout=TIMEOUT):
    """What became of each (rank, size), all at once, each in a thread: a Backend or an error."""

    def one(rank, size):
        try:
            return backend_over(store, rank, size, timeout)
        except (RuntimeError, ValueError) as error:
            return error

    with ThreadPoolExecutor(len(ranks)) as threads:
        return [future.result() for future in [threads.submit(one, *each) for each in ranks]]


class RoundsTest(unittest.TestCase):
    def test_hellos_of_processes_that_have_gone(self):
        """Whatever the order in which the ranks come again; each start may end before it is complete."""
        order = random.Random(1)
        store = dist.HashStore()
        for _ in range(5):
            present = order.sample(range(3), 2)
            for error in meet(store, [(rank, 3) for rank in present], timedelta(milliseconds=50)):
                self.assertIsInstance(error, dist.DistBackendError)
            backends = meet(store, [(rank, 3) for rank in order.sample(range(3), 3)])
            self.assertEqual({backend.size() for backend in backends}, {3})

    def test_every_store_of_torch(self):
        with tempfile.TemporaryDirectory() as folder:
            for store in (dist.HashStore(), dist.FileStore(os.path.join(folder, "store"), 3),
                          dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)):
                with self.subTest(type(store).__name__):
                    for _ in range(2):
                        for backend in meet(dist.PrefixStore("prefix", store), [(rank, 3) for rank in range(3)]):
                            self.assertEqual(backend.size(), 3)

    def test_the_token_does_not_stay_in_the_store(self):
        store = dist.HashStore()
        for backend in meet(store, [(rank, 3) for rank in range(3)]):
            self.assertEqual(backend.size(), 3)
        keys = store.list_keys()
        self.assertTrue([key for key in keys if "/hello/" in key])
        self.assertFalse([key for key in keys if "/round/" in key])

    def test_a_missing_rank_is_named_on_all_ranks(self):
        pairs = ([0, 1], [1, 2], [0, 2])
        with ThreadPoolExecutor(len(pairs)) as threads:  # all at once, in time for a busy machine
            meetings = [threads.submit(meet, dist.HashStore(), [(rank, 3) for rank in present], timedelta(seconds=4))
                        for present in pairs]
        for present, meeting in zip(pairs, meetings):
            (missing,) = {0, 1, 2} - set(present)
            for error in meeting.result():
                self.assertIsInstance(error, dist.DistBackendError)
                self.assertIn(f"rank {missing} did not join", str(error))

    def test_two_processes_as_one_rank(self):
        store = dist.HashStore()
        errors = meet(store, [(1, 2), (1, 2)], SHORT)
        self.assertEqual(len([error for error in errors if "rank 1 is taken" in str(error)]), 1)

    # fault: 44
    def test_sizes_that_differ(self):
        for error in meet(dist.HashStore(), [(0, 2), (1, 3)]):
            self.assertIsInstance(error, ValueError)
            self.assertIn("the ranks disagree about the world size", str(error))

    def test_timeouts_of_any_length(self):
        for days in (36500, 365000, 90000000):
            for backend in meet(dist.HashStore(), [(0, 2), (1, 2)], timedelta(days=days)):
                self.assertEqual(backend.options._timeout, timedelta(days=36500))
        for timeout in (timedelta.max, timedelta(0)):
            (error,) = meet(dist.HashStore(), [(0, 1)], timeout)
            self.assertIsInstance(error, ValueError)
            self.assertIn("it must be positive", str(error))


class TorchrunTest(unittest.TestCase):
    # fault: 42
    def test_restarts_over_one_store(self):
        """Two nodes, of which each counts restarts for itself; the store is the launcher's and stays."""
        program = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("lockstep")
tensor = torch.ones(3)
dist.all_reduce(tensor)
first = os.path.join(sys.argv[1], "failed")
if dist.get_rank() == 1 and not os.path.exists(first):
    open(first, "w").close()
    os._exit(3)
dist.barrier()
open(os.path.join(sys.argv[1], f"rank{dist.get_rank()}"), "w").write(str(tensor.tolist()))
dist.destroy_process_group()
"""
        rendezvous = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder, "train.py")
            script.write_text(program)
            environment = {key: value for key, value in os.environ.items()
                           if key != "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"}
            command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1",
                       "--max-restarts", "3", "--rdzv-backend", "c10d",
                       "--rdzv-endpoint", f"127.0.0.1:{rendezvous.port}", script, folder]
            agents = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                       env=environment) for _ in range(2)]
            said = [agent.communicate(timeout=120)[0] for agent in agents]
            for agent, text in zip(agents, said):
                self.assertEqual(agent.returncode, 0, text)
            self.assertTrue(Path(folder, "failed").exists())
            for rank in range(2):
                self.assertEqual(Path(folder, f"rank{rank}").read_text(), "[2.0, 2.0, 2.0]")


if __name__ == "__main__":
    unittest.main()
