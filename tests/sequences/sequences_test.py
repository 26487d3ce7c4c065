"""Random sequences of events on ranks that are processes: sequences_test.py <sequences_worker>"""

import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "process", "group"))
from same_everywhere import SameEverywhere  # noqa: E402


class SameAsTheModel(SameEverywhere, unittest.TestCase):
    cases = 100
    environment = {"LOCKSTEP_LOG": "off", "LOCKSTEP_TEST_FAMILIES": os.environ.get("LOCKSTEP_TEST_FAMILIES", "all")}


if __name__ == "__main__":
    SameAsTheModel.worker = sys.argv.pop(1)
    unittest.main(verbosity=2)
