"""Runs benchmarks briefly and reads what they write: smoke_test.py ALL_REDUCE CHECKS TRAIN_WORKER"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ALL_REDUCE, CHECKS, TRAIN_WORKER = sys.argv[1:]


def run(program, *options):
    return subprocess.run([program, *options], capture_output=True, text=True, timeout=100)


class BenchAllReduce(unittest.TestCase):
    def test_records(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "records.json")
            options = ["--sizes", "4,1024", "--engines", "native", "--iterations", "3", "--rounds", "2"]
            ended = run(ALL_REDUCE, *options, "--json", str(file))
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
            ended = run(ALL_REDUCE, *options)
            self.assertEqual(ended.returncode, 1)
            self.assertIn(complaint, ended.stderr)


class BenchChecks(unittest.TestCase):
    def test_records(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "records.json")
            ended = run(CHECKS, "--blocks", "2", "--json", str(file))
            self.assertEqual(ended.returncode, 0, ended.stderr)
            records = [json.loads(line) for line in file.read_text().splitlines()]
        self.assertEqual([record["bytes"] for record in records], [4, 1024, 65536, 1048576, 16777216])
        for record in records:
            self.assertGreater(record["bare_us"], 0)
            self.assertGreater(record["signature_us"], 0)
            self.assertAlmostEqual(record["checks_us"], record["difference_us"] + record["signature_us"])


class OnHosts(unittest.TestCase):
    def test_wrong_arguments(self):
        program = pathlib.Path(__file__).with_name("on_hosts.py")
        for arguments, complaint in [
            ([], "required: verb"),
            (["pigeon"], "invalid choice: 'pigeon'"),
            (["make"], "make needs a command"),
            (["make", "--hosts", "0", "--", "true"], "--hosts: '0' is not a number from 1 to 254"),
            (["make", "--mbit", "fast", "--", "true"], "--mbit: 'fast' is not a number from 0 to 1000000"),
            (["ranks", "here", "2", "true"], "hosts: 'here' is not NAME=ADDRESS"),
            (["ranks", "here=1.2.3.4", "two", "true"], "ranks: 'two' is not a number"),
            (["ranks", "here=1.2.3.4", "2"], "ranks needs a command"),
            (["openmpi", "a=1.2.3.4,b=1.2.3.5", "3", "true"], "3 ranks cannot be dealt to 2 hosts in equal runs"),
            (["agent", "a=1.2.3.4", "1.2.3.5", "true"], "none of the hosts has the address 1.2.3.5"),
        ]:
            with self.subTest(arguments):
                ended = subprocess.run([sys.executable, "-B", program, *arguments], capture_output=True, text=True,
                                       timeout=20)
                self.assertEqual(ended.returncode, 2, ended.stderr)
                self.assertIn(complaint, ended.stderr)


class BenchTrainWorker(unittest.TestCase):
    def test_wrong_arguments(self):
        usage = "usage: bench_train_worker ddp|lockstep-mode|unconnected MODEL BATCH RANKS"
        for arguments, complaint in [
            (["ddp"], usage),
            (["fast", "mlp", "8", "1"], usage),
            (["ddp", "vgg", "8", "1"], "there is no model 'vgg'; there are resnet18, mlp and gpt"),
        ]:
            ended = run(TRAIN_WORKER, *arguments)
            self.assertEqual(ended.returncode, 1)
            self.assertIn(complaint, ended.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
