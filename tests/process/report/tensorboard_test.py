"""What `lockstep report --tensorboard` writes, read by TensorBoard: tensorboard_test.py <lockstep>"""

import os
import subprocess
import sys
import tempfile
import unittest

import runs

try:
    from tensorboard.backend.event_processing import event_accumulator, event_file_loader
except ImportError:
    event_accumulator = event_file_loader = None

SKIPPED = 77
LOCKSTEP = ""
EVENTS = "events.out.tfevents.0.lockstep"


class TensorBoardTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, *names):
        return os.path.join(self.folder.name, *names)

    def write(self, *directories):
        subprocess.run([LOCKSTEP, "report", *directories, "--tensorboard", self.path("events")], check=True, timeout=60)

    def scalars(self, run):
        accumulator = event_accumulator.EventAccumulator(self.path("events", run), size_guidance={"tensors": 0})
        accumulator.Reload()
        found = {}
        for tag in accumulator.Tags()["tensors"]:
            events = accumulator.Tensors(tag)
            found[tag] = [(event.step, float(event.tensor_proto.float_val[0]), event.wall_time) for event in events]
        for tag in accumulator.Tags()["scalars"]:
            found[tag] = [(event.step, event.value, event.wall_time) for event in accumulator.Scalars(tag)]
        return found

    def test_tensorboard_reads_what_the_run_has(self):
        self.write(runs.write(self.path("a", "out"), runs.whole(3)), runs.write(self.path("b", "out"), runs.whole(1)))
        found = self.scalars("a/out")
        self.assertEqual([(step, round(value, 6)) for step, value, _ in found["train_loss"]],
                         [(0, 1.0), (1, 0.5), (2, 0.333333)])
        self.assertEqual({wall for _, _, wall in found["train_loss"]}, {1795632021.0})
        late = found["late_s/rank 1"]
        self.assertEqual([step for step, value, _ in late if value > 0], [70, 170, 270])
        self.assertEqual(len(late), 30)
        self.assertEqual(len(self.scalars("b/out")["train_loss"]), 1)

    def test_a_second_report_replaces_the_first(self):
        self.write(runs.write(self.path("a"), runs.whole(1)))
        self.write(runs.write(self.path("a"), runs.whole(2)))
        self.assertEqual(os.listdir(self.path("events", "a")), [EVENTS])
        self.assertEqual(len(self.scalars("a")["train_loss"]), 2)

    def test_tensorboard_checks_the_sums(self):
        self.write(runs.write(self.path("a"), runs.whole(1)))
        file = self.path("events", "a", EVENTS)

        def count():
            return sum(1 for _ in event_file_loader.RawEventFileLoader(file).Load())

        whole = count()
        self.assertGreater(whole, 100)
        with open(file, "r+b") as stream:
            stream.seek(200)
            byte = stream.read(1)
            stream.seek(200)
            stream.write(bytes([byte[0] ^ 1]))
        self.assertLess(count(), whole)


if __name__ == "__main__":
    if event_accumulator is None:
        print("skipped: there is no TensorBoard here; script/bootstrap --test installs it")
        sys.exit(SKIPPED)
    LOCKSTEP = os.path.abspath(sys.argv[1])
    unittest.main(argv=sys.argv[:1])
