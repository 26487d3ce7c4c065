"""Runs benchmarks briefly and reads what they write: smoke_test.py BENCH_ALL_REDUCE BENCH_TRAIN_WORKER"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM, TRAIN_WORKER = sys.argv[1:3]


def run(*options, program=PROGRAM):
    return subprocess.run([program, *options], capture_output=True, text=True, timeout=100)


class BenchAllReduce(unittest.TestCase):
    def test_records(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "records.json")
            options = ["--sizes", "4,1024", "--engines", "native", "--iterations", "3", "--rounds", "2"]
            ended = run(*options, "--json", str(file))
            self.assertEqual(ended.returncode, 0, ended.stderr)
            records = [json.loads(line) for line in file.read_text().splitlines()]
        found = [(record["engine"], record["bytes"], record["ranks"], record["iterations"]) for record in records]
        engines = ("native", "native-ordinary")
        self.assertEqual(found, [(engine, size, 2, 6) for size in (4, 1024) for engine in engines])
        for record in records:
            self.assertGreater(record["min_us"], 0)
            self.assertLessEqual(record["min_us"], record["p50_us"])
            self.assertLessEqual(record["p50_us"], record["p90_us"])
            self.assertAlmostEqual(record["algbw_gbps"] * record["p50_us"] * 1e3 / record["bytes"], 1)

    def test_wrong_arguments(self):
        for options, complaint in [
            (["--engines", "carrier-pigeon"], "there is no 'carrier-pigeon'"),
            (["--sizes", "6"], "6 is not a multiple of 4"),
            (["--engines", "native", "--json", "/nowhere/records.json"], "cannot write /nowhere/records.json"),
        ]:
            ended = run(*options)
            self.assertEqual(ended.returncode, 1)
            self.assertIn(complaint, ended.stderr)


class BenchTrainWorker(unittest.TestCase):
    def test_wrong_arguments(self):
        usage = "usage: bench_train_worker ddp|lockstep-mode|unconnected MODEL BATCH RANKS"
        for arguments, complaint in [
            (["ddp"], usage),
            (["fast", "mlp", "8", "1"], usage),
            (["ddp", "vgg", "8", "1"], "there is no model 'vgg'; there are resnet18, mlp and gpt"),
        ]:
            ended = run(*arguments, program=TRAIN_WORKER)
            self.assertEqual(ended.returncode, 1)
            self.assertIn(complaint, ended.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
