"""The example elastic_ddp under `lockstep run --max-restarts`: elastic_test.py <lockstep> <elastic_ddp>"""

import os
import pathlib
import re
import signal
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "launch"))
from processes import Tree, wait_for  # noqa: E402

LOCKSTEP = ""
PROGRAM = ""


class ElasticTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def start(self, ranks, epochs, *options, out):
        command = [LOCKSTEP, "run", "--nproc-per-node", str(ranks), *options, PROGRAM, str(epochs),
                   str(self.folder / out)]
        return Tree(command, {"OMP_NUM_THREADS": "1"})

    def train(self, *arguments, **more):
        with self.start(*arguments, **more) as tree:
            code, output, error = tree.finish(120)
            self.assertEqual(code, 0, output + error)
            return output

    def steps(self, out):
        return [int(path.name[5:]) for path in sorted((self.folder / out).glob("step-*"))]

    def wait_for_step(self, out, step):
        self.assertTrue(wait_for(lambda: self.steps(out)[-1:] >= [step], 60))

    def rank_process(self, tree, rank):
        for pid in tree.survivors():
            try:
                variables = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                is_program = os.readlink(f"/proc/{pid}/exe") == os.path.realpath(PROGRAM)
                if is_program and f"RANK={rank}".encode() in variables:
                    return pid
            except OSError:
                pass
        return self.fail(f"rank {rank} is not there")

    def digest(self, output):
        return re.search("SHA-256 of the run: ([0-9a-f]{64})", output)[1]

    # feature: H-12, J-06, J-10
    def test_a_job_whose_rank_is_killed_goes_on_from_its_snapshot(self):
        whole = self.train(3, 150, out="whole")
        self.assertIn("3 ranks, RESTART_COUNT 0, begin in epoch 0 after step 0\n", whole)
        for victim in (0, 2):
            out = f"killed{victim}"
            with self.subTest(victim=victim), self.start(3, 150, "--max-restarts", "3", out=out) as tree:
                self.wait_for_step(out, 20)
                os.kill(self.rank_process(tree, victim), signal.SIGKILL)
                code, output, error = tree.finish(120)
                self.assertEqual(code, 0, output + error)
                self.assertIn("RESTART_COUNT 0, begin in epoch 0 after step 0\n", output)
                epoch, step = re.search(r"RESTART_COUNT 1, begin in epoch (\d+) after step (\d+)\n", output).groups()
                self.assertGreaterEqual(int(epoch), 2)
                self.assertEqual(int(step), 10 * int(epoch))
                self.assertRegex(error, rf"rank {victim} \(pid \d+\) was killed by SIGKILL")
                self.assertEqual(self.digest(output), self.digest(whole))

    # feature: J-06
    def test_it_goes_on_with_another_number_of_ranks(self):
        self.train(3, 4, out="out")
        for ranks, epochs in ((2, 6), (4, 8), (1, 10)):
            output = self.train(ranks, epochs, out="out")
            self.assertRegex(output, rf"{ranks} ranks?, RESTART_COUNT 0, begin in epoch {epochs - 2} after "
                                     rf"step {10 * (epochs - 2)}\n")
            self.assertEqual(len(re.findall(r"epoch \d+: loss", output)), 2, output)

    def test_a_request_to_stop_leaves_a_snapshot_and_no_restart(self):
        whole = self.train(2, 150, out="whole")
        with self.start(2, 150, "--max-restarts", "3", out="stopped") as tree:
            self.wait_for_step("stopped", 20)
            os.kill(tree.pid, signal.SIGTERM)
            code, output, error = tree.finish(60)
        self.assertEqual(code, 75, output + error)
        step = int(re.search(r"stopped after step (\d+); the next start continues\n", output)[1])
        self.assertEqual(self.steps("stopped")[-1], step)
        self.assertEqual(output.count("RESTART_COUNT"), 1)
        output = self.train(2, 150, out="stopped")
        self.assertIn(f"after step {step}\n", output)
        self.assertEqual(self.digest(output), self.digest(whole))


if __name__ == "__main__":
    LOCKSTEP, PROGRAM = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main(verbosity=2)
