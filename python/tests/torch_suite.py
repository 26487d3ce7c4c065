"""PyTorch's own tests of torch.distributed (in its wheel; they need `expecttest`), run on the backend lockstep.

    python torch_suite.py --ranks 2                      all of them
    python torch_suite.py --ranks 4 test_all_reduce_sum  some
    python torch_suite.py --ranks 2 --match broadcast    those with "broadcast" in their names
    python torch_suite.py --ranks 2 --backend gloo       what Gloo does with the same driver
    --json FILE   writes {test: "passed" | "skipped: why" | "failed"}
    --beside FILE fails for a test that passed there and does not pass here

Where the suite asks whether the backend is Gloo before it runs a test, it is told yes: see AlsoGloo. A test that fails
must stand with its reason in torch_suite_exceptions.txt; one that stands there and passes is a failure as well.
"""

import argparse
import json
import os
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

ARGUMENTS = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
ARGUMENTS.add_argument("tests", nargs="*")
ARGUMENTS.add_argument("--ranks", type=int, default=2)
ARGUMENTS.add_argument("--backend", default="lockstep")
ARGUMENTS.add_argument("--match", default="")
ARGUMENTS.add_argument("--json")
ARGUMENTS.add_argument("--beside")
OPTIONS = ARGUMENTS.parse_args()
EXCEPTIONS = Path(__file__).with_name("torch_suite_exceptions.txt")

os.environ["WORLD_SIZE"] = str(OPTIONS.ranks)
os.environ["BACKEND"] = OPTIONS.backend
os.environ.setdefault("TEMP_DIR", tempfile.mkdtemp(prefix="torch-suite-"))
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", "60")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed import distributed_c10d  # noqa: E402
from torch.testing._internal.common_distributed import DistTestCases  # noqa: E402

DistTestCases.backend_feature["plugin"].add("lockstep")


class AlsoGloo(str):
    """A backend's name that is equal to "gloo" as well, and otherwise itself."""

    def __eq__(self, other):
        return str.__eq__(self, other) or str.__eq__("gloo", str(other))

    def __ne__(self, other):
        return not self == other

    def __hash__(self):
        return hash("gloo")


def answer_for_gloo():
    """Every question for the backend's name is answered with AlsoGloo, and who wants a Gloo group gets ours."""
    plain_get_backend, plain_new_group = dist.get_backend, dist.new_group

    def get_backend(*arguments, **named):
        return AlsoGloo(plain_get_backend(*arguments, **named))

    def new_group(*arguments, backend=None, **named):
        if backend is not None and str(backend).lower() == "gloo":
            backend = OPTIONS.backend
        return plain_new_group(*arguments, backend=backend, **named)

    dist.get_backend = distributed_c10d.get_backend = get_backend
    dist.new_group = distributed_c10d.new_group = new_group
    read = os._Environ.__getitem__

    def environment(self, key):
        value = read(self, key)
        return AlsoGloo(value) if key == "BACKEND" else value

    return mock.patch.object(os._Environ, "__getitem__", environment)


with answer_for_gloo() if OPTIONS.backend != "gloo" else mock.patch.dict({}):
    from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend


class TorchSuite(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        # Forked and not spawned: nothing has run in this process yet, and importing torch takes seconds a rank.
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


class Record(unittest.TextTestResult):
    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.outcomes = {}

    def note(self, test, outcome):
        self.outcomes[test._testMethodName] = outcome

    def addSuccess(self, test):
        super().addSuccess(test)
        self.note(test, "passed")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.note(test, f"skipped: {reason}")

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.note(test, "failed")

    def addError(self, test, error):
        super().addError(test, error)
        self.note(test, "failed")


def exceptions():
    """{test: reason} for this number of ranks. A line is: test [ranks]: reason"""
    found = {}
    for line in EXCEPTIONS.read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        names, reason = line.split(":", 1)
        name, *ranks = names.split()
        if not ranks or str(OPTIONS.ranks) in ranks:
            found[name] = reason.strip()
    return found


def judge(outcomes):
    """What speaks against these outcomes, one line each."""
    allowed = exceptions() if OPTIONS.backend == "lockstep" else {}
    against = []
    for name, outcome in sorted(outcomes.items()):
        if outcome == "failed" and name not in allowed:
            against.append(f"{name} failed")
        if outcome == "passed" and name in allowed:
            against.append(f"{name} passed; take it out of {EXCEPTIONS.name}")
    if OPTIONS.beside:
        for name, there in json.loads(Path(OPTIONS.beside).read_text()).items():
            if there == "passed" and outcomes.get(name, "passed").startswith("skipped"):
                against.append(f"{name} {outcomes[name]}, and passed there")
    return against


def main():
    names = OPTIONS.tests or [
        name for name in unittest.TestLoader().getTestCaseNames(TorchSuite) if OPTIONS.match in name
    ]
    runner = unittest.TextTestRunner(resultclass=Record, verbosity=2)
    outcomes = runner.run(unittest.TestSuite(TorchSuite(name) for name in names)).outcomes
    if OPTIONS.json:
        Path(OPTIONS.json).write_text(json.dumps(outcomes, indent=1))
    kinds = [outcome.split(":")[0] for outcome in outcomes.values()]
    counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in ("passed", "failed", "skipped"))
    print(f"{OPTIONS.backend}, {OPTIONS.ranks} ranks: {counts}")
    against = judge(outcomes)
    for line in against:
        print(line)
    return 1 if against else 0


if __name__ == "__main__":
    sys.exit(main())
