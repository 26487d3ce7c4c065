"""How the ranks of a group meet in torch's store if they are processes: in one that earlier starts have used, with a
token on some of them only, and in one that has stopped."""

import os
import signal
import subprocess
import sys
import tempfile
import unittest
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from ranks import TIMEOUT, backend_over, forked, run_processes, store_server


def connected(port):
    return dist.TCPStore("127.0.0.1", port, is_master=False, timeout=TIMEOUT)


def joined(store, rank, size, timeout=TIMEOUT):
    """What became of it: a Backend or an error, as text."""
    try:
        return str(backend_over(store, rank, size, timeout))
    except (RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


def job_over(port, rank, size):
    dist.init_process_group("lockstep", store=connected(port), rank=rank, world_size=size, timeout=TIMEOUT)
    part = dist.new_group([0, 1])
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    if rank < 2:
        dist.all_reduce(tensor, group=part)
    return tensor.tolist()


WITHOUT_AUTOLOAD = """
import torch, torch.distributed as dist, lockstep
if "{registers}":
    lockstep.register()
dist.init_process_group("lockstep", store=dist.HashStore(), rank=0, world_size=1)
ones = torch.ones(3)
dist.all_reduce(ones)
print(ones.tolist())
"""


class StartsTest(unittest.TestCase):
    def test_without_autoload(self):
        def printed(registers):
            return subprocess.run([sys.executable, "-c", WITHOUT_AUTOLOAD.format(registers=registers)], timeout=120,
                                  env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True).stdout

        self.assertIn("Unknown backend type lockstep", printed(""))
        self.assertIn("[1.0, 1.0, 1.0]", printed("yes"))

    def test_nothing_is_forked_beside_threads(self):
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        with self.assertRaisesRegex(AssertionError, "it forks beside them"):
            forked(str)
        del store
        forked(str).join()

    # fault: 42
    def test_a_store_that_earlier_starts_have_used(self):
        def killed(rank):
            job_over(port, rank, 4)
            os._exit(1)

        def good(rank):
            return job_over(port, rank, 4)

        def smaller(rank):
            return job_over(port, rank, 2)

        with store_server() as (port, _):
            for _ in range(2):
                run_processes(4, killed, dying=range(4))
                self.assertEqual(run_processes(4, good), [[8.0] * 3] * 2 + [[4.0] * 3] * 2)
            self.assertEqual(run_processes(2, smaller), [[4.0] * 3] * 2)

    def test_a_token_on_some_ranks_only(self):
        def with_token(those):
            def join(rank):
                if rank in those:
                    os.environ["LOCKSTEP_TOKEN_FILE"] = path
                # Who is refused leaves; the other one waits for it until the end.
                return joined(connected(port), rank, 2, TIMEOUT if len(those) == 2 else timedelta(seconds=2))

            return run_processes(2, join)

        with store_server() as (port, _), tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "token")
            Path(path).write_text("5a" * 32 + "\n")
            os.chmod(path, 0o600)
            self.assertIn("Backend object", with_token({0, 1})[0])
            self.assertIn("set on rank 0 and not on this rank", with_token({0})[1])
            self.assertIn("set on this rank and not on rank 0", with_token({1})[1])

    def test_the_interfaces_that_are_named(self):
        def join(rank):
            os.environ["LOCKSTEP_IFNAME"] = "eth77"
            return joined(connected(port), rank, 2)

        with store_server() as (port, _):
            for text in run_processes(2, join):
                self.assertIn('this host has no network interface "eth77"', text)

    # fault: 14
    def test_a_store_that_does_not_answer(self):
        """Its server is stopped, not gone: no connection breaks."""
        with store_server() as (port, server):
            client = connected(port)
            client.set("it", "works")
            os.kill(server, signal.SIGSTOP)
            os.waitid(os.P_PID, server, os.WSTOPPED)
            (text,) = run_processes(1, lambda rank: joined(client, rank, 2, timedelta(seconds=1)))  # ends at all
            self.assertIn("DistBackendError", text)
            self.assertIn("torch's store did not answer", text)


if __name__ == "__main__":
    unittest.main()
