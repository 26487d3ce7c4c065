"""Ranks of which one is slow, and traces of all of them: skew_test.py <lockstep> <skew_worker> Stragglers|Log|Trace"""

import collections
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "launch"))
from processes import Tree  # noqa: E402

LOCKSTEP = ""
WORKER = ""
TRANSPORTS = ("shared_memory", "tcp")
PARTS = ("data_s", "forward_s", "backward_s", "optimizer_s", "waiting_s", "communicating_s")


class SkewTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def train(self, steps, part, milliseconds, *slow, ranks=3, options=(), transport="automatic", out="out"):
        """What the job printed, on both streams."""
        command = [LOCKSTEP, "run", "--nproc-per-node", str(ranks), "--no-prefix", *options, WORKER,
                   self.folder / out, steps, part, milliseconds, *slow]
        environment = {"OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(self.folder), "LOCKSTEP_TRANSPORT": transport}
        with Tree([str(word) for word in command], environment) as tree:
            code, output, error = tree.finish(150)
        self.assertEqual(code, 0, output + error)
        return output, error

    def lines(self, kind, out="out"):
        lines = [json.loads(line) for line in (self.folder / out / "metrics.jsonl").read_text().splitlines()]
        return [line for line in lines if line["kind"] == kind]


class Stragglers(SkewTest):
    def warnings(self, error):
        return re.findall(r"rank 0: warning: (rank \d+ \(host \S+\) delays the others: .*)", error)

    # fault: 11
    # feature: K-05
    def test_a_rank_that_is_slow_with_its_data_is_named_after_20_steps_with_how_late_it_is(self):
        for transport in TRANSPORTS:
            with self.subTest(transport):
                output, error = self.train(30, "data", 100, 2, transport=transport, out=transport)
                told = self.warnings(error)
                self.assertEqual(len(told), 1, error)
                print(f"  {transport}: {told[0]}", flush=True)
                self.assertRegex(told[0], r"^rank 2 .* of the last 19 steps, .* ms a step on data, the others ")
                self.assertRegex(output, r"straggler:  rank 2 is late by \d+\.\d ms \(data\)\n")
                first, last = self.lines("steps", transport)
                for line in (first, last):
                    self.assertEqual(line["straggler"], 2, line)
                    late = [rank["late_s"] for rank in line["ranks"]]
                    self.assertTrue(0.08 < late[2] < 0.2 and late[0] + late[1] < 0.02, late)
                    self.assertLess(line["ranks"][2]["waiting_s"], 0.02)
                    for rank in (0, 1):
                        self.assertTrue(0.08 < line["ranks"][rank]["waiting_s"] < 0.2, line)
                self.assertEqual([(line["step"], line["steps"]) for line in (first, last)], [(20, 19), (30, 10)])

    def test_the_part_that_it_is_slow_in_is_named(self):
        for part in ("forward", "backward", "optimizer"):
            with self.subTest(part):
                _, error = self.train(21, part, 50, 1, out=part)
                told = self.warnings(error)
                self.assertEqual(len(told), 1, error)
                self.assertRegex(told[0], rf"^rank 1 .* ms a step on {part}, the others ")

    def test_another_straggler_is_told_of_again(self):
        # After 20 steps it is rank 1's turn; the second report comes 5 s later, before that is over.
        _, error = self.train(40, "data", 270, 0, 1)
        told = self.warnings(error)
        self.assertEqual([one.split(" (")[0] for one in told], ["rank 0", "rank 1"], error)


class Log(SkewTest):
    def test_every_rank_accounts_for_its_steps(self):
        for transport in TRANSPORTS:
            with self.subTest(transport):
                self.train(30, "data", 10, 0, transport=transport, out=transport)
                for line in self.lines("steps", transport):
                    self.assertEqual(list(line), ["kind", "step", "steps", "world_size", "ranks", "straggler"])
                    self.assertEqual(line["world_size"], 3)
                    self.assertEqual([rank["rank"] for rank in line["ranks"]], [0, 1, 2])
                    for rank in line["ranks"]:
                        self.assertEqual(list(rank), ["rank", *PARTS, "step_s", "hidden_s", "late_s"])
                        self.assertAlmostEqual(sum(rank[part] for part in PARTS), rank["step_s"], places=9)
                    # All do their steps together.
                    times = [rank["step_s"] for rank in line["ranks"]]
                    self.assertLess(max(times) - min(times), 0.2 * max(times), times)

    def test_a_single_rank_has_times_but_does_not_know_its_phases(self):
        self.train(30, "data", 10, 0, ranks=1)
        for line in self.lines("steps"):
            (rank,) = line["ranks"]
            self.assertIsNone(line["straggler"])
            self.assertNotIn("forward_s", rank)
            self.assertTrue(0.01 <= rank["data_s"] < rank["step_s"], rank)
            self.assertEqual((rank["waiting_s"], rank["late_s"]), (0, 0))

    def test_a_run_tells_what_it_is_and_a_restart_and_its_checkpoints(self):
        self.train(12, "crash", 0, 1, options=("--max-restarts", "1"))
        first, second = self.lines("run")
        for line in (first, second):
            self.assertEqual(list(line), ["kind", "command", "host", "started", "step", "threads", "versions"])
            self.assertEqual(line["command"], [WORKER, str(self.folder / "out"), "12", "crash", "0", "1"])
            self.assertEqual((line["host"], line["threads"]), (os.uname().nodename, 1))
            self.assertRegex(line["started"], r"^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
            self.assertEqual(set(line["versions"]), {"lockstep", "torch"})
        (restart,) = self.lines("restart")
        self.assertRegex(restart.pop("reason"), r"^rank 1 \(pid \d+\) exited with code 7$")
        self.assertEqual(restart, {"kind": "restart", "attempt": 2, "at": second["started"]})
        (checkpoint,) = self.lines("checkpoint")
        self.assertEqual(list(checkpoint), ["kind", "step", "path", "seconds"])
        self.assertEqual(checkpoint["step"], 12)
        self.assertTrue(pathlib.Path(checkpoint["path"], "manifest.json").is_file())


# What each kind of event has in the traces of torch.profiler, and where it may be left out.
TORCH_TRACE = """
import sys, torch
from torch.profiler import ProfilerActivity, profile, record_function
model = torch.nn.Linear(4, 4)
with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
    with record_function("step"):
        model(torch.randn(2, 4)).sum().backward()
recorded.export_chrome_trace(sys.argv[1])
"""


class Trace(SkewTest):
    def trace(self, *arguments):
        return subprocess.run([LOCKSTEP, "trace", *map(str, arguments)], capture_output=True, text=True, timeout=30)

    def recorded(self, transport="automatic"):
        recordings = self.folder / f"flight-{transport}"
        self.train(30, "data", 20, 1, options=("--flight", recordings), transport=transport, out=f"out-{transport}")
        return recordings

    def written(self, recordings, *arguments):
        out = self.folder / "trace.json"
        done = self.trace("--flight", recordings, "--chrome", out, *arguments)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
        return json.loads(out.read_text())

    def test_all_ranks_are_on_one_clock_with_steps_phases_and_collectives(self):
        for transport in TRANSPORTS:
            with self.subTest(transport):
                trace = self.written(self.recorded(transport), "--steps", 5)
                spans = collections.defaultdict(list)
                for event in trace["traceEvents"]:
                    if event["ph"] == "X":
                        spans[event["cat"], event["pid"]].append(event)
                for rank in range(3):
                    steps = spans["user_annotation", rank]
                    self.assertEqual([step["name"] for step in steps], [f"step {n}" for n in range(26, 31)])
                    phases = spans["phase", rank]
                    self.assertEqual([phase["name"] for phase in phases],
                                     ["data", "forward", "backward", "optimizer"] * 5)
                    for phase in phases:
                        (step,) = [one for one in steps if one["args"]["step"] == phase["args"]["step"]]
                        self.assert_within(phase, step)
                    buckets = [one for one in spans["collective", rank] if "gradient bucket" in one["args"]["call"]]
                    # A rank may be in the bucket before when another one begins the first of these steps.
                    self.assertIn(len(buckets), (5, 6))
                    self.assertTrue(all(one["args"]["bytes"] == (64 * 64 + 64) * 4 for one in buckets), buckets)
                for rank in (0, 2):
                    waits = [one["args"]["waiting us"] for one in spans["phase", rank] if one["name"] == "backward"]
                    self.assertGreater(statistics.median(waits), 10_000)
                self.assert_arrows(trace["traceEvents"], spans)

    # feature: K-06
    def test_the_spread_of_arrivals_is_told_for_each_collective(self):
        for transport in TRANSPORTS:
            with self.subTest(transport):
                done = self.trace("--flight", self.recorded(transport), "--json", "--last", 1000)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                (group,) = json.loads(done.stdout)["groups"]
                buckets = [one for one in group["arrivals"] if "gradient bucket" in one["text"]]
                self.assertEqual(len(buckets), 30)
                late = [one for one in buckets if one["last_rank"] == 1 and one["spread_ns"] > 10e6]
                self.assertGreater(len(late), 25, buckets)
                median = statistics.median(one["spread_ns"] for one in buckets)
                print(f"  {transport}: {median / 1e6:.1f} ms", flush=True)

    def assert_within(self, inner, outer):
        self.assertEqual((inner["pid"], inner["tid"]), (outer["pid"], outer["tid"]))
        self.assertGreaterEqual(inner["ts"], outer["ts"])
        self.assertLessEqual(inner["ts"] + inner["dur"], outer["ts"] + outer["dur"] + 0.01)

    def assert_arrows(self, events, spans):
        """Each leads from a collective of the rank that came last to the same one of another, most of all rank 1's."""
        starts = {event["id"]: event for event in events if event["ph"] == "s"}
        ends = {event["id"]: event for event in events if event["ph"] == "f"}
        self.assertEqual(starts.keys(), ends.keys())
        origins = collections.Counter()
        for number, start in starts.items():
            met = []
            for event in (start, ends[number]):
                (span,) = [one for one in spans["collective", event["pid"]] if one["tid"] == event["tid"]
                           and one["ts"] <= event["ts"] <= one["ts"] + one["dur"]][:1]
                met.append(span["args"]["Seq"])
            self.assertEqual(len(set(met)), 1, (start, ends[number]))
            self.assertLessEqual(start["ts"], ends[number]["ts"])
            origins[start["pid"]] += 1
        self.assertGreater(origins[1], origins.total() / 2, origins)

    def test_the_trace_has_the_fields_of_torch_profiler(self):
        path = self.folder / "torch.json"
        made = subprocess.run([sys.executable, "-c", TORCH_TRACE, path], capture_output=True, text=True, timeout=60)
        if made.returncode != 0:
            self.skipTest("PyTorch is not installed")
        theirs = json.loads(path.read_text())
        ours = self.written(self.recorded())
        # Kineto adds distributedInfo to traces of distributed trainings.
        self.assertLessEqual(set(ours), set(theirs) | {"distributedInfo"})
        for name in ("schemaVersion", "displayTimeUnit", "baseTimeNanoseconds", "traceName"):
            self.assertIs(type(ours[name]), type(theirs[name]), name)
        fields = collections.defaultdict(dict)
        for event in theirs["traceEvents"]:
            if isinstance(event.get("pid"), int):
                fields[event["ph"]].update({name: type(value) for name, value in event.items()})
        self.assertEqual({event["ph"] for event in ours["traceEvents"]}, {"M", "X", "s", "f"})
        for event in ours["traceEvents"]:
            for name, value in event.items():
                self.assertIs(type(value), fields[event["ph"]][name], (name, event))
            self.assertEqual(set(event), set(fields[event["ph"]]), event)
            if event["ph"] == "X":
                self.assertGreaterEqual(event["dur"], 0)

    def test_what_cannot_be_read_or_written_is_an_error(self):
        recordings = self.recorded()
        for arguments, code, text in (
                (["--flight", self.folder / "none", "--chrome", self.folder / "a.json"], 1, "none"),
                (["--flight", recordings, "--chrome", self.folder / "none" / "a.json"], 1, "none/a.json"),
                (["--flight", recordings, "--chrome", self.folder / "a.json", "--json"], 2, "--json"),
                (["--flight", recordings, "--steps", "3"], 2, "--chrome"),
                (["--flight", recordings, "--chrome", self.folder / "a.json", "--steps", "0"], 2, "--steps")):
            with self.subTest(arguments):
                done = self.trace(*arguments)
                self.assertEqual((done.returncode, done.stdout), (code, ""), done.stderr)
                self.assertIn(text, done.stderr)
        self.assertFalse((self.folder / "a.json").exists())


if __name__ == "__main__":
    LOCKSTEP, WORKER = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main(verbosity=2)
