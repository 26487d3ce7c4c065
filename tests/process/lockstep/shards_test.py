"""Lockstep mode with real processes: shards_test.py <shards_worker>"""

import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "group"))
from jobs import Job  # noqa: E402

WORKER = ""
# Even numbers: a run is stopped half way.
STEPS = {"mlp": 20, "gpt": 20, "resnet18": int(os.environ.get("LOCKSTEP_TEST_RESNET_STEPS", "2"))}
SMALL, ALL = ("mlp", "gpt"), ("mlp", "gpt", "resnet18")


class SameBits(unittest.TestCase):
    def train(self, size, models=ALL, first=0, last=1, transport="automatic", nodes=None, folder="-"):
        """What the part of all steps from first to last leaves, a line for each model, and the transport of rank 0."""
        spans = [f"{model}:{int(STEPS[model] * first)}:{int(STEPS[model] * last)}" for model in models]
        # As different launchers would set it. More ranks would have more threads than cores.
        of_rank = lambda rank: {"OMP_NUM_THREADS": str(1 + (size + rank) % 2 if size <= 2 else 1),
                                **({"LOCKSTEP_NODE": nodes[rank]} if nodes else {})}
        with Job(WORKER, [folder, *spans], size, {"LOCKSTEP_TRANSPORT": transport}, of_rank) as work:
            lines = [[work.line(rank).split(" over ") for _ in models] for rank in range(size)]
            self.assertEqual(work.exit_codes(), [0] * size)
        found = [[state for state, _ in of_one] for of_one in lines]
        self.assertEqual([state.split()[0] for state in found[0]], list(models))
        self.assertEqual(found, [found[0]] * size)
        return found[0], lines[0][0][1]

    def test_any_number_of_ranks_any_transport_and_a_run_resumed_on_fewer_ranks(self):
        expected, _ = self.train(1)
        self.assertRegex(expected[0], r"^mlp [0-9a-f]{64} \d\.\d+$")
        for size, transport, models in ((2, "shared memory", SMALL), (4, "shared memory", ALL),
                                        (8, "shared memory", SMALL), (2, "tcp", SMALL), (4, "tcp", SMALL),
                                        (8, "tcp", ALL)):
            with self.subTest(size=size, transport=transport):
                self.assertEqual(self.train(size, models, transport=transport.replace(" ", "_")),
                                 (expected[:len(models)], transport))
        for nodes in ("aabb", "abab"):
            with self.subTest(nodes=nodes):
                self.assertEqual(self.train(4, SMALL, nodes=nodes), (expected[:2], "tcp and shared memory"))
        with self.subTest("stopped on 4 ranks, resumed on 2"), tempfile.TemporaryDirectory() as folder:
            stopped, _ = self.train(4, last=0.5, folder=folder)
            self.assertTrue(all(half != whole for half, whole in zip(stopped, expected)), stopped)
            self.assertEqual(self.train(2, first=0.5, folder=folder)[0], expected)

    def test_ranks_whose_kernels_differ_are_told(self):
        of_rank = lambda rank: {"before": ["sh", "-c", 'exec "$0" "$@" 2>&1'],
                                **({"ATEN_CPU_CAPABILITY": "default"} if rank == 1 else {})}
        with Job(WORKER, ["-", "mlp:0:2"], 2, of_rank=of_rank) as work:
            for rank in work.ranks:
                (error,) = (line for line in rank.finish()[1].splitlines() if line.startswith("shards_worker: "))
                self.assertRegex(error, "lockstep mode: rank 0 has .*, rank 1 has .*, and the bits of results")
            self.assertEqual(work.exit_codes(), [1, 1])


if __name__ == "__main__":
    WORKER = sys.argv.pop(1)
    unittest.main(verbosity=2)
