"""`lockstep checkpoint` with what other programs write: files of torch.save, distributed checkpoints, an index."""

import json
import os
import re
import shutil
import struct
import tempfile
import unittest

from tool import PYTHON, SANITIZED, ToolTest, flip, limited_memory, main, python, run, write_file

MODEL = """
import sys, torch
torch.manual_seed(3)
net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
state = {"model": net.state_dict(), "turned": torch.arange(12.).reshape(3, 4).t(), "epoch": 3, "lr": 0.1,
         "small": torch.tensor([0.5, -448., 1.25]).to(torch.float8_e4m3fn)}
folder = sys.argv[1]
torch.save(state, folder + "/a.pt")
torch.save(state, folder + "/legacy.pth", _use_new_zipfile_serialization=False)
state["model"]["0.bias"][2] += 1
torch.save(state, folder + "/b.pt")
state["model"]["0.bias"][2] -= 1
del state["small"]
torch.save(state, folder + "/c.pt")
import torch.distributed.checkpoint as dcp
dcp.save(state, checkpoint_id=folder + "/dcp")
dcp.save({"large": torch.zeros(40 << 20)}, checkpoint_id=folder + "/large")
class Mine(dict):
    pass
import __main__, argparse, pathlib
__main__.Mine = Mine
mine = {"w": torch.arange(3.), "args": argparse.Namespace(lr=1, ema=torch.ones(2)), "mine": Mine(a=torch.ones(1), b=2),
        "path": pathlib.PurePosixPath("/data/x"), "wave": torch.complex(torch.arange(3.), torch.ones(3)),
        "lazy": torch.complex(torch.arange(3.), torch.ones(3)).conj(), "sparse": torch.eye(2).to_sparse(),
        "quantised": torch.quantize_per_tensor(torch.ones(2), 0.5, 1, torch.qint8), "seed": 2**64 - 1,
        "meta": torch.ones(2, device="meta"), "storage": torch.ones(2).storage(), (1, "x"): True}
torch.save(mine, folder + "/mine.pt")
torch.save(mine, folder + "/mine.pth", _use_new_zipfile_serialization=False)
torch.save(argparse.Namespace(x=1), folder + "/nothing.model")
torch.save({"two\\nlines": torch.ones(1)}, folder + "/lines.model")
class Bad:
    def __reduce__(self):
        import os
        return os.system, (f"touch {folder}/trap",)
torch.save(Bad(), folder + "/bad.model")
"""

MODEL_SAME = """
import sys, torch
from safetensors import safe_open
from safetensors.torch import load_file
state, flat = torch.load(sys.argv[1], weights_only=True), load_file(sys.argv[2])
expected = {f"model.{name}": tensor for name, tensor in state["model"].items()} | {"turned": state["turned"]}
for name, tensor in expected.items():
    assert torch.equal(flat.pop(name), tensor), name
assert not flat, flat
with safe_open(sys.argv[2], "pt") as file:
    assert file.metadata()["epoch"] == "3" and file.metadata()["lr"] == "0.1", file.metadata()
"""
WAVES_SAME = """
import sys, torch
from safetensors import safe_open
from safetensors.torch import load_file
waves, flat = torch.complex(torch.arange(3.), torch.ones(3)), load_file(sys.argv[1])
for name, expected in (("wave", waves), ("lazy", waves.conj())):
    assert torch.equal(torch.view_as_complex(flat[name]), expected), name
with safe_open(sys.argv[1], "pt") as file:
    assert file.metadata()["lockstep.type.wave"] == "C64", file.metadata()
"""
SMALL = """
import sys
from safetensors.torch import load_file
print(load_file(sys.argv[1])["small"].float().tolist()[1:])
"""
EXPANDED = """
import sys, torch
folder, rows = sys.argv[1], int(sys.argv[2])
torch.save({"x": torch.ones(1).expand(rows, 1 << 20)}, folder + "/expanded.pt")
torch.save({"x": torch.arange(6 << 22, dtype=torch.int32).reshape(3, 1 << 11, 1 << 12).permute(2, 0, 1)},
           folder + "/turned.pt")
"""
TURNED_SAME = """
import sys, torch
from safetensors.torch import load_file
a, b = torch.load(sys.argv[1])["x"], load_file(sys.argv[2])["x"]
assert torch.equal(a, b)
"""


class TorchTest(ToolTest):
    models = None

    @classmethod
    def setUpClass(cls):
        if not PYTHON:
            raise unittest.SkipTest("there is no PyTorch here")
        cls.models = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.models.cleanup)
        python(MODEL, cls.models.name)

    def model(self, name):
        return os.path.join(self.models.name, name)

    def test_files_of_torch_save_are_shown_verified_and_compared(self):
        a, b, legacy = self.model("a.pt"), self.model("b.pt"), self.model("legacy.pth")
        lines = run("show", a).splitlines()
        self.assertRegex(lines[0], r"^model\.0\.bias +F32 \[4\] +16 bytes$")
        self.assertRegex("\n".join(lines), r"turned +F32 \[4, 3\] +48 bytes")
        for line in ("metadata epoch: 3", "metadata lr: 0.1"):
            self.assertIn(line, lines)
        self.assertEqual(run("diff", a, legacy), "all 9 tensors are equal\n")
        self.assertIn("model.0.bias: 1 of 4 elements differ, by at most 1", run("diff", a, b, expected=1))
        self.assertIn(": whole (", run("verify", a))
        self.assertIn("readable; it has no digests", run("verify", legacy))
        self.assertEqual(run("verify", self.models.name).count(": whole ("), 4)
        damaged = self.path("damaged.pt")
        shutil.copy(a, damaged)
        with open(damaged, "rb") as file:
            at = file.read().index(struct.pack("<4f", 0, 1, 2, 3))
        flip(damaged, at)
        self.assertIn("DAMAGED", run("verify", damaged, expected=1))
        self.assertIn("is damaged", run("diff", damaged, b, expected=2))

    def test_they_become_safetensors_and_so_do_directories_of_distributed_checkpoints(self):
        out = self.path("out.safetensors")
        for source in (self.model("c.pt"), self.model("dcp")):
            run("convert", source, out, "--force")
            run("diff", source, out)
            run("verify", source)
        python(MODEL_SAME, self.model("c.pt"), out)
        run("convert", self.model("c.pt"), self.path("step-0000000009"))
        run("diff", self.path("step-0000000009"), self.model("dcp"))
        run("convert", self.model("a.pt"), out, "--force")
        run("diff", self.model("a.pt"), out)
        self.assertIn("[-448.0, 1.25]", python(SMALL, out))

    def test_a_shape_that_needs_more_memory_than_there_is_is_refused(self):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        python(EXPANDED, self.root, str((memory >> 22) + 1024))
        expanded = self.path("expanded.pt")
        self.assertRegex(run("show", expanded), r"x  F32 \[\d+, 1048576\]")
        for words in (["verify", expanded], ["convert", expanded, self.path("x.safetensors")]):
            self.assertIn("of memory", run(*words, expected=1))
        self.assertIn("of memory", run("diff", expanded, expanded, expected=2))
        self.assertFalse(os.path.exists(self.path("x.safetensors")))

    def test_a_tensor_for_which_there_is_no_memory_now_is_named(self):
        if SANITIZED:
            self.skipTest("a sanitizer's memory is not limited")
        self.assertIn("tensor 'large' takes 167772160 bytes, and not enough memory is free",
                      run("verify", self.model("large"), expected=1, **limited_memory(96)))

    def test_a_large_tensor_that_is_transposed_takes_little_memory(self):
        python(EXPANDED, self.root, "64")  # 256 MiB that one element stands for
        for name in ("expanded", "turned"):
            run("convert", self.path(f"{name}.pt"), self.path(f"{name}.safetensors"), **limited_memory())
            run("diff", self.path(f"{name}.pt"), self.path(f"{name}.safetensors"), **limited_memory())
        python(TURNED_SAME, self.path("turned.pt"), self.path("turned.safetensors"))

    def test_what_is_not_known_leaves_the_rest_to_be_read(self):
        for name in ("mine.pt", "mine.pth"):
            lines = run("show", self.model(name)).splitlines()
            for pattern in (r"w +F32 \[3\] +12 bytes", r"wave +C64 \[3\] +24 bytes", r"args\.ema +F32 \[2\] .*",
                            r"mine\.a +F32 \[1\] .*", r"sparse\.indices +I64 \[2, 2\] .*", r"storage +F32 \[2\] .*",
                            r"quantised\.values +I8 \[2\] .*"):
                self.assertTrue(any(re.fullmatch(pattern, line) for line in lines), (pattern, lines))
            for line in ("args: <argparse.Namespace>", "mine: <__main__.Mine>", "path: /data/x",
                         "seed: 18446744073709551615", "sparse.layout: torch.sparse_coo", "quantised.scale: 0.5",
                         "meta.device: meta", "(1, x): True"):
                self.assertIn("metadata " + line, lines)
            self.assertIn("readable" if name.endswith("h") else ": whole (", run("verify", self.model(name)))
            out = self.path("mine.safetensors")
            run("convert", self.model(name), out, "--force")
            run("diff", self.model(name), out)
            run("verify", out)
            self.assertRegex(run("show", out), r"(?m)^wave +C64 \[3\] +24 bytes$")
            python(WAVES_SAME, out)
            run("convert", out, self.path("step-0000000009"), "--force")
            run("diff", out, self.path("step-0000000009"))

    def test_a_file_with_nothing_to_be_had_and_names_of_two_lines_are_refused_by_name(self):
        self.assertIn("the file holds only 'argparse.Namespace'", run("show", self.model("nothing.model"), expected=1))
        self.assertIn("control characters, shown as '?': 'two?lines'",
                      run("convert", self.model("lines.model"), self.path("lines.safetensors"), expected=1))

    def test_a_pickle_that_would_run_something_is_refused(self):
        for words in (["show"], ["verify"], ["diff", self.model("c.pt")]):
            code = 2 if words[0] == "diff" else 1
            self.assertIn("executes nothing", run(*words, self.model("bad.model"), expected=code))
        self.assertFalse(os.path.exists(self.model("trap")))


class IndexTest(ToolTest):
    def test_the_index_of_sharded_safetensors_is_one_checkpoint(self):
        write_file(self.path("m-1.safetensors"), {"x": ("U8", [4], b"1234")})
        write_file(self.path("m-2.safetensors"), {"y": ("U8", [2], b"12"), "z": ("U8", [], b"1")})
        index = self.path("m.safetensors.index.json")
        names = {"x": "m-1.safetensors", "y": "m-2.safetensors", "z": "m-2.safetensors"}
        with open(index, "w", encoding="ascii") as file:
            json.dump({"metadata": {"total_size": 7}, "weight_map": names}, file)
        self.assertIn("index of 2 files", run("show", index))
        run("convert", index, self.path("whole.safetensors"))
        self.assertEqual(run("diff", index, self.path("whole.safetensors")), "all 3 tensors are equal\n")


if __name__ == "__main__":
    main()
