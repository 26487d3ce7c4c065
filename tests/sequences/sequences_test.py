"""Random sequences of events on ranks that are processes: sequences_test.py <sequences_worker>"""

import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "process", "group"))
from jobs import Job  # noqa: E402

WORKER = ""
FIRST = int(os.environ.get("LOCKSTEP_TEST_SEED", "1"))
COUNT = int(os.environ.get("LOCKSTEP_TEST_CASES", "100"))


class SameAsTheModel(unittest.TestCase):
    def play(self, size, transport="automatic", nodes=None):
        """The transport of rank 0."""
        of_rank = (lambda rank: {"LOCKSTEP_NODE": nodes[rank]}) if nodes else None
        environment = {"LOCKSTEP_TRANSPORT": transport, "LOCKSTEP_LOG": "off",
                       "LOCKSTEP_TEST_FAMILIES": os.environ.get("LOCKSTEP_TEST_FAMILIES", "all")}
        with Job(WORKER, [FIRST, COUNT], size, environment, of_rank) as job:
            lines = [job.ranks[rank].process.communicate(timeout=240)[0].decode() for rank in range(size)]
            codes = job.exit_codes()
        for rank, text in enumerate(lines):
            self.assertTrue(text.startswith(f"{rank} same {COUNT} over "), "\n".join(lines))
        self.assertEqual(codes, [0] * size)
        return lines[0].strip().split(" over ")[1]

    def test_memory(self):
        for size in (2, 3):
            self.assertEqual(self.play(size, "shared_memory"), "shared memory")

    def test_tcp(self):
        for size in (2, 4):
            self.assertEqual(self.play(size, "tcp"), "tcp")

    def test_nodes(self):
        for nodes in ("aab", "abab"):
            self.assertEqual(self.play(len(nodes), nodes=nodes), "tcp and shared memory")


if __name__ == "__main__":
    WORKER = sys.argv.pop(1)
    unittest.main(verbosity=2)
