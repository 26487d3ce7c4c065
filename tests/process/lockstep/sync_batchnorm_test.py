"""Lockstep mode of a ResNet18 with synchronised batch norm: sync_batchnorm_test.py <shards_worker>"""

import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "group"))
from jobs import Job  # noqa: E402

WORKER = ""
STEPS = int(os.environ.get("LOCKSTEP_TEST_RESNET_STEPS", "2"))  # an even number: a run is stopped half way


class SameBits(unittest.TestCase):
    def train(self, size, first=0, last=STEPS, transport="automatic", nodes=None, folder="-"):
        """What the steps from first to last leave, and the transport of rank 0."""
        of_rank = (lambda rank: {"LOCKSTEP_NODE": nodes[rank]}) if nodes else None
        arguments = [folder, f"resnet18_sync:{first}:{last}"]
        with Job(WORKER, arguments, size, {"LOCKSTEP_TRANSPORT": transport}, of_rank) as work:
            states, transports = zip(*(work.line(rank).split(" over ") for rank in range(size)))
            self.assertEqual(work.exit_codes(), [0] * size)
        self.assertEqual(set(states), {states[0]})
        return states[0], transports[0]

    def test_any_number_of_ranks_any_transport_and_a_run_resumed_on_fewer_ranks(self):
        expected, _ = self.train(1)
        self.assertRegex(expected, r"^resnet18_sync [0-9a-f]{64} \d\.\d+$")
        self.assertEqual(self.train(2, transport="shared_memory"), (expected, "shared memory"))
        self.assertEqual(self.train(8, transport="tcp"), (expected, "tcp"))
        self.assertEqual(self.train(4, nodes="abab"), (expected, "tcp and shared memory"))
        with tempfile.TemporaryDirectory() as folder:
            stopped, _ = self.train(4, last=STEPS // 2, folder=folder)
            self.assertNotEqual(stopped, expected)
            self.assertEqual(self.train(2, first=STEPS // 2, folder=folder)[0], expected)


if __name__ == "__main__":
    WORKER = sys.argv.pop(1)
    unittest.main(verbosity=2)
