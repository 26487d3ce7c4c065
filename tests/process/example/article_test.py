"""The program of an article, fashion_mnist_ddp, beside PyTorch in the same setup: article_test.py <program>"""

import json
import multiprocessing
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

from fashion_mnist_test import write_data

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "bench"))
import article_torch  # noqa: E402
import torch  # noqa: E402

PROGRAM = ""
TRAINING, TEST, BATCH = 96, 146, 32  # with --article-bugs, 4 ranks validate 9 images each, in batches of 8


class ArticleTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        write_data(self.folder, TRAINING, TEST)

    def run_program(self, *words, expected=0):
        done = subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode != 0, expected != 0, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def run_oracle(self, *words):
        """Forked: each process that imports torch takes seconds."""
        process = multiprocessing.get_context("fork").Process(target=article_torch.main, args=([*map(str, words)],))
        process.start()
        process.join(120)
        process.kill()
        self.assertEqual(process.exitcode, 0, words)

    def epoch(self, run, name, *options):
        """What an epoch of training ends with."""
        out = self.folder / name
        run("--num-epochs", "1", "--batch-size", BATCH, "--data", self.folder, "--out", out, *options)
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        return next(line for line in lines if "train_loss" in line)

    # feature: G-07
    def test_the_options_have_the_articles_names_and_defaults(self):
        self.assertIn("--world-size is required", self.run_program(expected=1))
        text = self.run_program("--help")
        for option, default in (("batch-size", 128), ("num-epochs", 10), ("num-workers", 4), ("lr", 0.001)):
            self.assertRegex(text, rf"--{option} [^\n]*={default}\s")

    # feature: N-05, Z-03
    def test_it_validates_as_the_articles_program_if_asked_to(self):
        for ranks, bugs in ((2, []), (2, ["--article-bugs"]), (4, ["--article-bugs"]),
                            (2, ["--sync-batchnorm"]), (4, ["--sync-batchnorm", "--article-bugs"])):
            with self.subTest(ranks=ranks, bugs=bugs):
                options = ["--world-size", ranks, *bugs]
                ours = self.epoch(self.run_program, f"ours_{ranks}_{'_'.join(bugs)}", *options)
                theirs = self.epoch(self.run_oracle, f"theirs_{ranks}_{'_'.join(bugs)}", *options)
                for key in ("train_loss", "val_loss", "val_accuracy"):
                    self.assertAlmostEqual(ours[key], theirs[key], delta=2e-4 * abs(theirs[key]), msg=key)

    def test_lockstep_mode_prints_the_same_at_any_number_of_ranks(self):
        found = [self.epoch(self.run_program, f"lockstep_{ranks}", "--world-size", ranks, "--lockstep", "--shards", 4)
                 for ranks in (1, 2, 4)]
        for key in ("train_loss", "val_loss", "val_accuracy"):
            self.assertEqual({each[key] for each in found}, {found[0][key]}, key)

    # feature: L-04
    def test_ranks_that_share_a_gpu_train_as_one(self):
        if not torch.cuda.is_available():
            self.skipTest("no CUDA device")
        with mock.patch.dict(os.environ, LOCKSTEP_BACKEND="native"):  # NCCL connects no ranks that share a GPU
            alone, both = (self.epoch(self.run_program, f"gpu_{ranks}", "--world-size", ranks, "--device", "cuda",
                                      "--sync-batchnorm") for ranks in (1, 2))
        for key in ("train_loss", "val_loss"):  # convolutions of a GPU have factors of 10 bits (TF32)
            self.assertAlmostEqual(alone[key], both[key], delta=5e-3 * alone[key], msg=key)

    def test_ranks_that_would_validate_nothing_are_told(self):
        write_data(self.folder, 40, 8)
        text = self.run_program("--world-size", 4, "--article-bugs", "--num-epochs", 1, "--batch-size", 8, "--data",
                                self.folder, "--out", self.folder / "out", expected=1)
        self.assertIn("--article-bugs: 8 test images are too few for 4 ranks", text)

    def test_a_host_without_a_gpu_is_told(self):
        with mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES=""):
            text = self.run_program("--world-size", 2, "--device", "cuda", "--data", self.folder, "--out",
                                    self.folder / "out", expected=1)
        self.assertRegex(text, r"rank [01] needs a GPU, but libtorch finds none here")
        self.assertIn("--device: gpu not in {cpu,cuda}", self.run_program("--world-size", 2, "--device", "gpu",
                                                                          expected=1))

    def test_it_goes_on_where_it_was(self):
        options = ["--world-size", "1", "--num-epochs", "2", "--batch-size", BATCH, "--data", self.folder, "--out",
                   self.folder / "out", "--checkpoint-every", "1"]
        self.run_program(*options, "--max-steps", "4")
        self.assertIn("resumed after step 4", self.run_program(*options))


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
