"""Pods of the indexed Job that are evicted: eviction_test.py <lockstep> <fashion_mnist>

The Job of share/lockstep/kubernetes, and the same with 2 to 4 hosts, trains on from the step at which it was stopped,
and no eviction counts as a failure. With the same number of ranks the bits are those of a run that is left alone.
"""

import json
import pathlib
import re
import secrets
import sys
import unittest

try:
    import yaml
except ImportError:
    yaml = None

HERE = pathlib.Path(__file__).resolve().parent
for folder in ("launch", "example"):
    sys.path.insert(0, str(HERE.parent / folder))
from fashion_mnist_test import folder_with_data  # noqa: E402
from pods import IndexedJob, Pods, Unavailable  # noqa: E402
from processes import Tree  # noqa: E402

SKIPPED = 77
LOCKSTEP = ""
PROGRAM = ""
MANIFEST = HERE.parents[2] / "share" / "lockstep" / "kubernetes" / "job.yaml"
EPOCHS = 40
LOCKSTEP_MODE = ["--lockstep", "--shards", "4"]  # in which the number of ranks is a power of two
LEFT, STOPPED = 5, 75


class Eviction(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = folder_with_data(cls.addClassCleanup)
        with open(MANIFEST, encoding="ascii") as file:
            cls.service, cls.job = yaml.safe_load_all(file)
        with Tree([LOCKSTEP, "run", "--nproc-per-node", "2", "--no-prefix", *cls.training("whole", *LOCKSTEP_MODE)],
                  {"OMP_NUM_THREADS": "1"}) as run:
            _, output, error = run.finish(120)
        found = re.search("SHA-256 of the run: ([0-9a-f]{64})", output)
        cls.digest = found[1] if found else f"no digest: {error}"

    @classmethod
    def training(cls, out, *options):
        return [PROGRAM, "--model", "cnn", "--batch-size", "24", "--epochs", str(EPOCHS), *options,
                "--data", str(cls.folder / "data"), "--out", str(cls.folder / out), "--resume"]

    def start(self, nodes, *options):
        self.out = self.id().rpartition(".")[2]
        folder = self.folder / f"pods-{self.out}"
        folder.mkdir()
        name = self.job["metadata"]["name"]
        names = [f"{name}-{index}" for index in range(self.job["spec"]["completions"])]
        try:
            pods = Pods(folder, names, self.service["metadata"]["name"], secrets.token_hex(32))
        except Unavailable as reason:
            self.skipTest(str(reason))
        self.addCleanup(pods.close)
        changes = {"lockstep run": f"{LOCKSTEP} run --no-prefix --rdzv-conf last_call_timeout=1",
                   "--nproc-per-node auto": "--nproc-per-node 1", "--nnodes 4": f"--nnodes {nodes}",
                   "./train --resume": " ".join(self.training(self.out, *options))}
        self.pods = IndexedJob(pods, self.job, changes, {"OMP_NUM_THREADS": "1"})
        self.assertTrue(self.pods.run_until(lambda: self.epochs() >= 2), self.pods.said())
        return names

    def epochs(self):
        """How many are done."""
        try:
            lines = [json.loads(line) for line in (self.folder / self.out / "metrics.jsonl").read_text().splitlines()]
            return len([line for line in lines if "kind" not in line])
        except (OSError, json.JSONDecodeError):
            return 0

    def expect_done(self):
        done = self.epochs()
        self.assertTrue(self.pods.run_until(lambda: self.epochs() > done), self.pods.said())  # it goes on
        self.pods.run_until(lambda: False, 120)
        said = self.pods.said()
        self.assertIsNone(self.pods.failed, said)
        self.assertEqual(self.pods.running, {}, said)
        self.assertEqual([codes[-1] for codes in self.pods.codes.values()], [0] * 4, said)
        self.assertEqual(self.pods.failures, 0, said)
        stopped, resumed = (set(re.findall(rf"{what} after step (\d+)", said)) for what in ("stopped", "resumed"))
        self.assertTrue(stopped, said)
        self.assertEqual(resumed, stopped | {"0"}, said)  # no step is lost
        self.assertEqual(said.count("Completed training"), 1, said)
        return re.findall("SHA-256 of the run: ([0-9a-f]{64})", said)

    def codes(self):
        """How the pods ended before the end of the training."""
        return [codes[:-1] for codes in self.pods.codes.values()]

    def test_one_pod_of_a_fixed_number(self):
        names = self.start("4", *LOCKSTEP_MODE)
        self.pods.evict(names[2])
        self.assertEqual(self.expect_done(), [self.digest])
        self.assertEqual(self.codes(), [[STOPPED]] * 4, self.pods.said())

    def test_all_pods_of_a_fixed_number(self):
        names = self.start("4", *LOCKSTEP_MODE)
        self.pods.evict(*names)
        self.assertEqual(self.expect_done(), [self.digest])
        self.assertEqual(self.codes(), [[STOPPED]] * 4, self.pods.said())

    def test_one_pod_of_two_to_four(self):
        names = self.start("2:4")
        self.pods.evict(names[2])
        self.expect_done()
        self.assertEqual(self.codes(), [[], [], [LEFT], []], self.pods.said())

    def test_the_first_pod_of_two_to_four(self):
        names = self.start("2:4")
        self.pods.evict(names[0])
        self.expect_done()
        self.assertEqual(self.codes(), [[LEFT], [], [], []], self.pods.said())
        self.assertIn("the first host train-0 has left: meeting again", self.pods.said())

    def test_all_pods_of_two_to_four(self):
        names = self.start("2:4")
        self.pods.evict(*names)
        self.expect_done()
        self.assertEqual(self.codes(), [[STOPPED]] * 4, self.pods.said())


if __name__ == "__main__":
    LOCKSTEP, PROGRAM = sys.argv.pop(1), sys.argv.pop(1)
    if yaml is None:
        print("skipped: PyYAML is not installed (pip install kubernetes-validate)")
        sys.exit(SKIPPED)
    unittest.main(verbosity=2)
