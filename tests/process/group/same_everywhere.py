"""Random cases on ranks that are processes, over all transports.

A worker gets the first seed and how many; each of its ranks prints "<rank> same <count> over <transport>".
"""

import os

from jobs import Job


class SameEverywhere:
    """A mixin of a unittest.TestCase. worker: the program; cases: how many, if LOCKSTEP_TEST_CASES does not say."""

    worker = ""
    cases = 0
    environment = {}

    def play(self, size, transport="automatic", nodes=None):
        """The transport of rank 0."""
        first = int(os.environ.get("LOCKSTEP_TEST_SEED", "1"))
        count = int(os.environ.get("LOCKSTEP_TEST_CASES", self.cases))
        of_rank = (lambda rank: {"LOCKSTEP_NODE": nodes[rank]}) if nodes else None
        environment = {"LOCKSTEP_TRANSPORT": transport, **self.environment}
        with Job(self.worker, [first, count], size, environment, of_rank) as job:
            lines = [job.ranks[rank].process.communicate(timeout=240)[0].decode() for rank in range(size)]
            codes = job.exit_codes()
        for rank, text in enumerate(lines):
            self.assertTrue(text.startswith(f"{rank} same {count} over "), "\n".join(lines))
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
