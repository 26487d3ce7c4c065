"""Random modules and schedules on ranks that are processes: graphs_test.py <graphs_worker>"""

import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "process", "group"))
from same_everywhere import SameEverywhere  # noqa: E402


class SameAsByHand(SameEverywhere, unittest.TestCase):
    cases = 12
    environment = {"LOCKSTEP_LOG": "error"}


if __name__ == "__main__":
    SameAsByHand.worker = sys.argv.pop(1)
    unittest.main(verbosity=2)
