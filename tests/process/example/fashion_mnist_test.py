"""The example fashion_mnist with real processes: fashion_mnist_test.py <lockstep> <fashion_mnist>
Training|Mistakes|LockstepMode|Augmentation"""

import gzip
import json
import os
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "launch"))
from processes import Tree, wait_for  # noqa: E402

LOCKSTEP = ""
PROGRAM = ""
REAL_DATA = pathlib.Path("/usr/share/datasets/fashion-mnist")
IMAGES, LABELS = "images-idx3-ubyte.gz", "labels-idx1-ubyte.gz"
# 240 images to train with 24 a step: 10 steps an epoch.
TRAINING, TEST, BATCH = 240, 50, 24


def write_data(folder, training=TRAINING, test=TEST):
    """A small data set in Fashion-MNIST's format."""
    source = random.Random(7)
    for split, count in (("train", training), ("t10k", test)):
        pixels = source.randbytes(count * 28 * 28)
        (folder / f"{split}-{IMAGES}").write_bytes(gzip.compress(struct.pack(">4I", 0x803, count, 28, 28) + pixels))
        labels = bytes(source.randrange(10) for _ in range(count))
        (folder / f"{split}-{LABELS}").write_bytes(gzip.compress(struct.pack(">2I", 0x801, count) + labels))


def folder_with_data(add_cleanup):
    """A folder of its own for a test, with a small data set in data/."""
    folder = tempfile.TemporaryDirectory()
    add_cleanup(folder.cleanup)
    data = pathlib.Path(folder.name) / "data"
    data.mkdir()
    write_data(data)
    return data.parent


def read_safetensors(path):
    """(metadata, name -> (dtype, shape, bytes))"""
    content = path.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:8 + length])
    data = content[8 + length:]
    metadata = header.pop("__metadata__", {})
    return metadata, {name: (entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])])
                      for name, entry in header.items()}


class ExampleTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.data = self.folder / "data"
        self.data.mkdir()
        write_data(self.data)

    environment = {"OMP_NUM_THREADS": "1"}
    alone_is_launched = False

    def run_program(self, ranks, *options, out="out", data=None, model="cnn", batch=BATCH, user=None):
        """(exit code, standard output, standard error)"""
        with self.start(ranks, *options, out=out, data=data, model=model, batch=batch, user=user) as tree:
            return tree.finish(60)

    def start(self, ranks, *options, out, data=None, model="cnn", batch=BATCH, **more):
        launched = ranks > 1 or self.alone_is_launched
        launcher = [LOCKSTEP, "run", "--nproc-per-node", str(ranks)] if launched else []
        command = [*launcher, PROGRAM, "--model", model, "--batch-size", str(batch), "--data", str(data or self.data),
                   "--out", str(self.folder / out), *map(str, options)]
        return Tree(command, {**self.environment, "HOME": str(self.folder)}, **more)


class Training(ExampleTest):
    def train(self, ranks, *options, **more):
        code, output, error = self.run_program(ranks, *options, **more)
        self.assertEqual(code, 0, output + error)
        return output

    def checkpoint(self, out, step):
        return self.folder / out / f"step-{step:010d}"

    def as_file(self, out, step):
        file = self.folder / f"{out}-{step}.safetensors"
        subprocess.run([LOCKSTEP, "checkpoint", "convert", self.checkpoint(out, step), file], check=True,
                       capture_output=True)
        return file

    def assert_same_run(self, one, other, step):
        expected, found = (read_safetensors(self.as_file(out, step)) for out in (one, other))
        for name in ("step", "epoch", "batch", "choice.seed"):
            self.assertEqual(found[0][name], expected[0][name])
        self.assertEqual(found[1].keys(), expected[1].keys())
        self.assertGreater(len(found[1]), 8)
        # Added up in another order where several ranks were interrupted.
        self.assertAlmostEqual(float(found[0]["loss_sum"]), float(expected[0]["loss_sum"]), places=9)
        self.assertEqual(found[0]["samples"], expected[0]["samples"])
        for name, tensor in expected[1].items():
            self.assertEqual(found[1][name], tensor, f"{name} differs")

    def metrics(self, out):
        """The lines of epochs."""
        lines = [json.loads(line) for line in (self.folder / out / "metrics.jsonl").read_text().splitlines()]
        return [line for line in lines if "kind" not in line]

    # feature: G-03, G-04, G-06, H-01
    def test_an_epoch_leaves_metrics_and_a_checkpoint_that_python_reads(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                out = f"out{ranks}"
                output = self.train(ranks, "--epochs", 2, out=out)
                self.assertRegex(output, rf"training cnn on {TRAINING} images, {ranks} ranks? ")
                self.assertRegex(output,
                                 r"Iteration 2/2  Train Loss: \d+\.\d+  Val Loss: \d+\.\d+  Val Accuracy: 0\.\d+")
                self.assertRegex(output, r"\n(\[0\] )?Completed training in \d+\.\d seconds\.\n")
                self.assertIn(str(self.checkpoint(out, 20)), output)
                lines = self.metrics(out)
                self.assertEqual([line["epoch"] for line in lines], [0, 1])
                for line in lines:
                    self.assertEqual(list(line), ["epoch", "train_loss", "val_loss", "val_accuracy",
                                                  "samples_per_second", "communication_share", "world_size"])
                    self.assertEqual(line["world_size"], ranks)
                    # Every test image counts once.
                    self.assertAlmostEqual(line["val_accuracy"] * TEST % 1, 0, places=6)
                    self.assertTrue(1 < line["train_loss"] < 4 and 1 < line["val_loss"] < 4, line)
                    self.assertGreater(line["samples_per_second"], 0)
                    self.assertTrue(0 <= line["communication_share"] < 1, line)
                self.read_with_python(self.as_file(out, 20))
        self.train(2, "--epochs", 2, "--accumulate", 5, out="in_parts")
        # The same images in each step, so the same losses but for rounding.
        for one, two, in_parts in zip(*(self.metrics(out) for out in ("out1", "out2", "in_parts"))):
            for name in ("train_loss", "val_loss"):
                self.assertAlmostEqual(one[name], two[name], places=3)
                self.assertAlmostEqual(one[name], in_parts[name], places=3)

    def read_with_python(self, path):
        try:
            from safetensors import safe_open
        except ImportError:
            print("  safetensors is not installed: the checkpoint was not read with it", flush=True)
            return
        with safe_open(path, framework="numpy") as file:
            shapes = {name: list(file.get_slice(name).get_shape()) for name in file.keys()}
            self.assertEqual(file.metadata()["step"], "20")
        self.assertIn([16, 1, 3, 3], shapes.values())
        self.assertEqual(shapes, {name: shape for name, (_, shape, _) in read_safetensors(path)[1].items()})

    # feature: H-11
    def test_a_resumed_run_has_the_bits_of_one_that_was_never_interrupted(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                self.train(ranks, "--max-steps", 6, "--checkpoint-every", 2, out=f"whole{ranks}")
                self.train(ranks, "--max-steps", 3, out=f"parts{ranks}")
                output = self.train(ranks, "--max-steps", 6, "--resume", out=f"parts{ranks}")
                self.assertIn("resumed after step 3", output)
                self.assert_same_run(f"whole{ranks}", f"parts{ranks}", 6)

    def test_the_log_says_how_gradients_are_bucketed_if_asked_to(self):
        self.environment = {**self.environment, "LOCKSTEP_LOG": "debug"}
        _, output, error = self.run_program(2, "--max-steps", 1)
        self.assertRegex(error, r"DistributedDataParallel: \d+ parameters, \d+ buckets?, in this order: \d+ KiB in \d+",
                         output)

    # feature: H-11
    def test_a_killed_run_goes_on_from_its_newest_checkpoint(self):
        options = ("--epochs", 4, "--checkpoint-every", 3)
        self.train(2, *options, out="whole")
        steps = lambda: sorted((self.folder / "killed").glob("step-*"))
        with self.start(2, *options, out="killed") as tree:
            self.assertTrue(wait_for(steps, 30))
        self.assertEqual(tree.wait_until_gone(5), [])
        newest = steps()[-1]
        output = self.train(2, *options, "--resume", out="killed")
        self.assertIn(f"resumed after step {int(newest.name[5:])}\n", output)
        self.assert_same_run("whole", "killed", 40)

    def test_resuming_where_there_is_nothing_begins_anew(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                (self.folder / f"none{ranks}").mkdir()
                output = self.train(ranks, "--max-steps", 2, "--resume", out=f"none{ranks}")
                self.assertIn("resumed after step 0\n", output)
                self.train(ranks, "--max-steps", 2, out=f"whole{ranks}")
                self.assert_same_run(f"whole{ranks}", f"none{ranks}", 2)

    def test_a_damaged_checkpoint_is_passed_over(self):
        self.train(2, "--max-steps", 7, "--checkpoint-every", 2, out="whole")
        self.train(2, "--max-steps", 7, "--checkpoint-every", 2, out="damaged")
        steps = [int(path.name[5:]) for path in sorted((self.folder / "damaged").glob("step-*"))]
        self.assertEqual(steps, [4, 6, 7])  # the newest three are kept
        for step in (6, 7):
            part = self.checkpoint("damaged", step) / "part-00001-of-00002.safetensors"
            part.write_bytes(part.read_bytes()[:-1])
        output = self.train(2, "--max-steps", 7, "--resume", out="damaged")
        self.assertIn("resumed after step 4\n", output)
        self.assert_same_run("whole", "damaged", 7)

    def test_a_run_may_be_resumed_in_a_later_epoch(self):
        self.train(2, "--epochs", 2, "--max-steps", 13, out="whole")
        self.train(2, "--epochs", 1, out="parts")
        output = self.train(2, "--epochs", 2, "--max-steps", 13, "--resume", out="parts")
        self.assertIn("resumed after step 10", output)
        self.assert_same_run("whole", "parts", 13)

    @unittest.skipUnless(REAL_DATA.is_dir(), "Fashion-MNIST is not installed")
    def test_a_few_steps_on_the_real_images(self):
        self.train(1, "--max-steps", 4, data=REAL_DATA, batch=64)
        (line,) = self.metrics("out")
        self.assertTrue(0.02 < line["val_accuracy"] < 0.9, line)
        self.assertTrue(2 < line["train_loss"] < 3, line)


class SameBits(ExampleTest):
    """In lockstep mode, and nobody has set a number of threads."""

    environment = {}
    alone_is_launched = True

    def train(self, ranks, *options, **more):
        """(SHA-256 of the run, its output)"""
        code, output, error = self.run_program(ranks, "--lockstep", *options, **more)
        self.assertEqual(code, 0, output + error)
        return re.search(r"SHA-256 of the run: ([0-9a-f]{64})\n", output)[1], output + error


class LockstepMode(SameBits):
    def assert_same_bits(self, ranks, *options, **more):
        found = {n: self.train(n, *options, out=f"out{n}", **more)[0] for n in ranks}
        self.assertEqual(len(set(found.values())), 1, found)
        return found[ranks[0]]

    # feature: G-11
    def test_every_model_has_the_same_bits(self):
        cnn = self.assert_same_bits((1, 2, 4, 8), "--max-steps", 3, model="cnn")
        self.alone_is_launched = False
        self.assertEqual(self.train(1, "--max-steps", 3, model="cnn")[0], cnn)
        self.assert_same_bits((1, 4), "--max-steps", 2, model="mlp")
        self.assert_same_bits((1, 2), "--max-steps", 1, model="resnet18")

    def test_so_have_synchronised_batch_norms_and_accumulation(self):
        options = ("--max-steps", 1, "--shards", 4, "--sync-batchnorm", "--accumulate", 2)
        both = self.assert_same_bits((1, 4), *options, model="resnet18")
        whole = self.train(2, *options[:-2], model="resnet18")[0]
        self.assertNotEqual(both, whole)
        self.assertNotEqual(self.train(2, *options[:4], model="resnet18")[0], whole)

    def test_so_has_a_run_that_is_resumed_on_other_ranks(self):
        options = ("--shards", 4, "--accumulate", 3, "--epochs", 2, "--max-steps", 13)
        whole = self.assert_same_bits((1, 4), *options)
        self.assertNotEqual(self.train(4, *options[:-1], 4, out="parts")[0], whole)
        self.train(1, *options[:-1], 11, "--resume", out="parts")
        digest, output = self.train(2, *options, "--resume", out="parts")
        self.assertIn("resumed after step 11", output)
        self.assertNotIn("warning", output)
        self.assertEqual(digest, whole)

    def test_what_changes_bits_is_said_when_a_run_is_resumed(self):
        self.train(1, "--max-steps", 1)
        self.environment = {"ATEN_CPU_CAPABILITY": "default"}
        _, output = self.train(2, "--max-steps", 2, "--threads", 2, "--resume")
        self.assertEqual(output.count("the resumed run will not be bitwise equal to an uninterrupted one"), 1, output)
        self.assertIn("threads of a shard: 1, now 2; ", output)
        self.assertIn("ATEN_CPU_CAPABILITY: not set, now default", output)


class Augmentation(SameBits):
    """Images that are moved and mirrored at random."""

    def test_a_model_has_the_same_bits_with_any_workers_and_ranks_and_when_it_is_resumed_within_an_epoch(self):
        # All models take minutes: LOCKSTEP_TEST_MODELS=all.
        for model, steps in {"cnn": 13, "mlp": 13, "resnet18": 2}.items():
            if model == "cnn" or os.environ.get("LOCKSTEP_TEST_MODELS") == "all":
                with self.subTest(model=model):
                    self.augmented(model, steps)

    def augmented(self, model, steps):
        def train(ranks, workers, out, *options):
            return self.train(ranks, "--epochs", 2, "--augment", "--workers", workers, *options, model=model,
                              out=f"{model}-{out}")

        found = {}
        for ranks, workers in ((1, 0), (2, 1), (4, 4)):
            found[ranks, workers] = train(ranks, workers, f"{ranks}-{workers}", "--max-steps", steps)[0]
        for first, then in (((2, 4), (8, 0)),):
            train(*first, f"parts{first[0]}", "--max-steps", steps - 1)
            digest, output = train(*then, f"parts{first[0]}", "--max-steps", steps, "--resume")
            self.assertIn(f"resumed after step {steps - 1}", output)
            found[first, then] = digest
        self.assertEqual(len(set(found.values())), 1, found)
        plain = self.train(1, "--epochs", 2, "--max-steps", steps, model=model, out=f"{model}-plain")[0]
        self.assertNotIn(plain, found.values())


class Mistakes(ExampleTest):
    def assert_refused(self, pattern, *options, ranks=1, seconds=20, **more):
        """Alone, the program complains in one line. Under the launcher each rank may, and the launcher quotes it."""
        start = time.monotonic()
        code, output, error = self.run_program(ranks, *options, **more)
        self.assertLess(time.monotonic() - start, seconds)
        self.assertGreater(code, 0, output)
        complaints = [line for line in error.splitlines() if "fashion_mnist: " in line and "|" not in line]
        if ranks == 1:
            self.assertEqual(len(error.splitlines()), 1, error)
        self.assertTrue(complaints, error)
        self.assertRegex(complaints[0], pattern)
        self.assertLessEqual(len(complaints), ranks)

    def test_a_data_directory_that_is_not_there(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                self.assert_refused("data set not found: no directory /nowhere; .*--data DIR",
                                    ranks=ranks, data="/nowhere")

    def test_a_file_that_was_cut(self):
        file = self.data / f"train-{IMAGES}"
        content = file.read_bytes()
        for keep in (0, 5, len(content) // 2, len(content) - 1):
            with self.subTest(keep=keep):
                file.write_bytes(content[:keep])
                self.assert_refused(rf"{file}: at byte \d+: ")

    def test_a_flipped_bit_anywhere(self):
        file = self.data / f"t10k-{LABELS}"
        content = file.read_bytes()
        # From behind gzip's header, where name and time stand, to the checksum and the length.
        for place in (12, len(content) // 2, len(content) - 6, len(content) - 2):
            with self.subTest(place=place):
                damaged = bytearray(content)
                damaged[place] ^= 4
                file.write_bytes(damaged)
                self.assert_refused(rf"{file}: at byte \d+: ")

    def test_a_damaged_file_under_the_launcher(self):
        file = self.data / f"train-{IMAGES}"
        file.write_bytes(file.read_bytes()[:-100])
        self.assert_refused(rf"{file}: at byte \d+: the compressed data is truncated", ranks=2)

    def test_an_unknown_model(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                code, output, error = self.run_program(ranks, model="transformer")
                self.assertEqual((code, output), (2, ""))
                self.assertIn("--model: transformer not in {resnet18,cnn,mlp}", error)

    # feature: F-10
    def test_a_batch_that_the_ranks_cannot_share(self):
        self.assert_refused("a global batch of 63 samples cannot be divided equally among 2 ranks; use 64, for example",
                            ranks=2, batch=63)

    def test_shards_that_do_not_fit(self):
        self.assert_refused("a global batch of 24 samples cannot be divided equally among 16 ranks", "--lockstep",
                            "--shards", 16)
        self.assert_refused("lockstep mode: the number of shards is 6; it has to be a power of two", "--lockstep",
                            "--shards", 6)
        self.assert_refused("lockstep mode: 1 shards are too few for 2 ranks; use at least as many shards as ranks",
                            "--lockstep", "--shards", 1, ranks=2)

    def test_resuming_another_run(self):
        code, output, error = self.run_program(1, "--max-steps", 1)
        self.assertEqual(code, 0, output + error)
        self.assert_refused("made with batch_size = 24, and this run has 12", "--resume", batch=12)
        self.assert_refused("made with model = cnn, and this run has mlp", "--resume", model="mlp")
        self.assert_refused("made with accumulate = 1, and this run has 2", "--resume", "--accumulate", 2)

    def test_an_output_directory_that_cannot_be_made(self):
        (self.folder / "file").write_text("in the way")
        self.assert_refused(rf"cannot write to the directory {self.folder}/file/out: Not a directory",
                            out="file/out")

    @unittest.skipUnless(os.geteuid() == 0, "only root can become somebody else")
    def test_an_output_directory_that_may_not_be_written(self):
        self.folder.chmod(0o755)
        self.data.chmod(0o755)
        (self.folder / ".lockstep").mkdir()
        (self.folder / "out").mkdir(mode=0o555)
        # Before any training: this many epochs would take hours.
        self.assert_refused(rf"cannot write to the directory {self.folder}/out: Permission denied",
                            "--epochs", 1000000, user=65534)


if __name__ == "__main__":
    LOCKSTEP, PROGRAM = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main(verbosity=2)
