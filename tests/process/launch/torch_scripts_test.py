"""PyTorch's own example scripts under `lockstep run`, with gloo: torch_scripts_test.py <lockstep> <a Python>"""

import os
import re
import signal
import sys
import tempfile
import unittest

from processes import Tree, rank_process

LOCKSTEP = ""
PYTHON = ""
SCRIPTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_scripts")


class ScriptsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def start(self, *options, script, arguments=()):
        command = [LOCKSTEP, "run", *options, os.path.join(SCRIPTS, script), *arguments]
        environment = {"PYTHON_EXEC": PYTHON, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        tree = Tree(command, environment, cwd=self.folder)
        self.addCleanup(tree.__exit__)
        return tree

    def finish(self, tree):
        code, output, error = tree.finish(120)
        self.assertEqual(code, 0, output + error)
        self.assertEqual(tree.survivors(), [])
        return output, error

    # feature: J-01
    def test_elastic_ddp(self):
        for options in (("--nproc-per-node=2", "--rdzv-id=100", "--rdzv-backend=c10d"),
                        ("--hosts", "localhost:1,127.0.0.1:1")):
            output, _ = self.finish(self.start(*options, script="elastic_ddp.py"))
            for rank in range(2):
                self.assertIn(f"[{rank}] Finished running basic DDP example on rank {rank}.", output)
            self.assertEqual(len(set(re.findall(r"parameters (\S+)", output))), 1, output)

    # feature: J-11
    def test_multigpu_torchrun_resumes_from_its_snapshot_after_a_crash(self):
        tree = self.start("--standalone", "--nproc_per_node=2", "--max-restarts=1", script="multigpu_torchrun.py",
                          arguments=("200", "1"))
        line = ""
        while "[rank1] Epoch 3 " not in line:
            line = tree.read_lines(1)[0]
            self.assertTrue(line, "it ends too early")
        os.kill(rank_process(tree.pid, 1), signal.SIGKILL)
        output, error = self.finish(tree)
        self.assertIn("was killed by SIGKILL", error)
        self.assertIn("restart 1 of 1", error)
        resumed = {int(epoch) for epoch in re.findall(r"Resuming training from snapshot at Epoch (\d+)", output)}
        self.assertEqual(len(resumed), 1, output)
        epoch = resumed.pop()
        self.assertGreaterEqual(epoch, 3)
        after = output[output.index("Resuming training"):]
        for rank in range(2):
            epochs = [int(each) for each in re.findall(rf"\[rank{rank}\] Epoch (\d+) ", after)]
            self.assertEqual(epochs, list(range(epoch, 200)))


if __name__ == "__main__":
    LOCKSTEP = os.path.abspath(sys.argv[1])
    PYTHON = sys.argv[2]
    unittest.main(argv=sys.argv[:1])
