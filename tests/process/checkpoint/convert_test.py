"""`lockstep checkpoint convert` and `strip-prefix`."""

import json
import os
import struct
import tempfile

from tool import PYTHON, ToolTest, flip, limited_memory, main, python, run, write_file, write_set

MANY_TYPES = """
import sys, torch
from safetensors.torch import save_file
types = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.float16, torch.bfloat16, torch.int32, torch.float32,
         torch.int64, torch.float64, torch.uint16, torch.uint32, torch.uint64]
torch.manual_seed(1)
tensors = {f"module.t{i}": (torch.randn(5, 3) * 100).to(torch.int64).abs().to(t) for i, t in enumerate(types)}
tensors["module.scalar"] = torch.tensor(1.5)
tensors["module.empty"] = torch.empty(0, 7)
save_file(tensors, sys.argv[1], {"a": "b"})
"""

SAME = """
import sys, torch
from safetensors import safe_open
from safetensors.torch import load_file
a, b = load_file(sys.argv[1]), load_file(sys.argv[2])
prefix = sys.argv[3] if len(sys.argv) > 3 else ""
assert {name.removeprefix(prefix) for name in a} == set(b), (list(a), list(b))
for name, tensor in a.items():
    other = b[name.removeprefix(prefix)]
    assert tensor.dtype == other.dtype and tensor.shape == other.shape and torch.equal(tensor, other), name
with safe_open(sys.argv[2], "pt") as file:
    print(file.metadata()["a"])
"""


class ConvertTest(ToolTest):
    def test_a_set_becomes_a_file_and_the_same_set_again(self):
        path = write_set(self.sets, 400, 7, 3, 0.25)
        file = self.path("a.safetensors")
        run("convert", path, file)
        back = self.path("back/step-0000000400")
        run("convert", file, back)
        for other in (file, back):
            run("diff", path, other)
            run("verify", other)
            one, two = (json.loads(run("show", each, "--json")) for each in (path, other))
            for key in ("step", "world_size", "metadata", "metrics", "user", "written", "tensors"):
                self.assertEqual(one[key], two[key], key)
        self.assertEqual(os.listdir(back + "/.."), ["step-0000000400"])
        self.assertEqual(os.stat(back).st_mode & 0o777, 0o700)

    def test_nothing_is_replaced_unasked_and_nothing_half_written_is_left(self):
        path = write_set(self.sets, 400, 7, 3)
        file = self.path("a.safetensors")
        for out in (file, f"{self.sets}/step-0000000500"):
            run("convert", path, out)
            self.assertIn("--force replaces it", run("convert", path, out, expected=1))
            run("convert", path, out, "--force")
            run("verify", out)
        flip(f"{path}/part-00002-of-00003.safetensors", -3)
        before = sorted(os.listdir(self.root)), sorted(os.listdir(self.sets))
        for out in ("b.safetensors", "sets/step-0000000600", "a.safetensors"):
            self.assertIn("is damaged", run("convert", path, self.path(out), "--force", expected=1))
        self.assertEqual((sorted(os.listdir(self.root)), sorted(os.listdir(self.sets))), before)
        run("verify", file)

    # fault: S9
    def test_what_is_no_file_is_never_replaced(self):
        path = write_set(self.sets, 400)
        os.mkfifo(self.path("fifo.safetensors"))
        os.symlink("/dev/null", self.path("null.safetensors"))
        os.symlink("fifo.safetensors", self.path("link.safetensors"))
        os.mkfifo(self.path("step-0000000401"))
        before = {name: os.lstat(self.path(name)).st_mode for name in os.listdir(self.root)}
        for out, kind in (("fifo.safetensors", "a FIFO"), ("null.safetensors", "a device"),
                          ("link.safetensors", "a FIFO")):
            text = run("convert", path, self.path(out), "--force", expected=1)
            self.assertIn(f"saving {self.path(out)}: this is {kind}, which is not replaced", text)
        for out in ("/dev/null", "/dev/full"):
            self.assertIn("which is not replaced", run("convert", path, out, "--to", "file", "--force", expected=1))
        self.assertIn("step-0000000401", run("convert", path, self.path("step-0000000401"), "--force", expected=1))
        self.assertEqual({name: os.lstat(self.path(name)).st_mode for name in os.listdir(self.root)}, before)
        os.symlink("thesis.safetensors", self.path("name.safetensors"))
        run("convert", path, self.path("name.safetensors"), "--force")
        self.assertFalse(os.path.islink(self.path("name.safetensors")))

    def test_tensors_of_8_bit_floats_are_like_others_and_unknown_types_are_named(self):
        file = self.path("a.safetensors")
        write_file(file, {"e4m3": ("F8_E4M3", [2, 2], b"\x38\xb8\x7e\0"), "e5m2": ("F8_E5M2", [3], b"\x3c\x7b\x80")})
        self.assertIn("F8_E4M3 [2, 2]", run("show", file))
        for out in ("b.safetensors", "step-0000000001"):
            run("convert", file, self.path(out))
            run("verify", self.path(out))
            self.assertEqual(run("diff", file, self.path(out)), "all 2 tensors are equal\n")
        write_file(self.path("c.safetensors"), {"e4m3": ("F8_E4M3", [2, 2], b"\x38\xb8\x7f\0"),
                                                "e5m2": ("F8_E5M2", [3], b"\x3d\x7b\0")})
        text = run("diff", file, self.path("c.safetensors"), expected=1)
        self.assertIn("e4m3: 1 of 4 elements differ, by at most inf", text)  # a number, and none
        self.assertIn("e5m2: 1 of 3 elements differ, by at most 0.25 (0.2 of the larger one)", text)
        for dtype in ("F8_E4M3FN", "F4", "C16", "f32"):
            write_file(file, {"x": (dtype, [8], bytes(8))})
            for words in (["show", file], ["verify", file], ["convert", file, self.path("d.safetensors")]):
                self.assertIn(f"tensor 'x' has the unknown type '{dtype}'", run(*words, expected=1))

    def test_complex_tensors_and_other_floats_of_8_bits_are_compared_as_the_numbers_that_they_are(self):
        file, other = self.path("a.safetensors"), self.path("c.safetensors")
        write_file(file, {"wave": ("C64", [2], struct.pack("<4f", 1, 2, 3, 4)), "e8m0": ("F8_E8M0", [2], b"\x7f\x80"),
                          "fnuz": ("F8_E4M3FNUZ", [2], b"\x40\x80")})
        self.assertIn("wave  C64 [2]", run("show", file))
        for out in ("b.safetensors", "step-0000000001"):
            run("convert", file, self.path(out))
            run("verify", self.path(out))
            self.assertEqual(run("diff", file, self.path(out)), "all 3 tensors are equal\n")
        write_file(other, {"wave": ("C64", [2], struct.pack("<4f", 1, 2, 6, 8)), "e8m0": ("F8_E8M0", [2], b"\x7f\x81"),
                           "fnuz": ("F8_E4M3FNUZ", [2], b"\x48\x80")})
        text = run("diff", file, other, expected=1)
        self.assertIn("wave: 1 of 2 elements differ, by at most 5 (0.5 of the larger one)", text)
        self.assertIn("e8m0: 1 of 2 elements differ, by at most 2 (0.5 of the larger one)", text)
        self.assertIn("fnuz: 1 of 2 elements differ, by at most 1 (0.5 of the larger one)", text)

    def test_the_name_says_what_it_becomes(self):
        path = write_set(self.sets, 400)
        for out in ("model.bin", "step-400", "step-0000000400x"):
            self.assertIn("its name does not show whether", run("convert", path, self.path(out), expected=1))
        self.assertIn("its name does not show whether", run("convert", path, self.path("x"), "--to", "set", expected=1))
        run("convert", path, self.path("model.bin"), "--to", "file")
        run("verify", self.path("model.bin"))
        run("convert", path, self.path("x/step-0000000007"))
        self.assertEqual(json.loads(run("show", self.path("x/step-0000000007"), "--json"))["step"], 7)

    # feature: H-13
    def test_other_programs_read_what_is_written_and_write_what_is_read(self):
        if not PYTHON:
            self.skipTest("there is no PyTorch here")
        file, out = self.path("a.safetensors"), self.path("b.safetensors")
        python(MANY_TYPES, file)
        run("convert", file, out)
        self.assertEqual(python(SAME, file, out), "b\n")
        run("convert", file, self.path("step-0000000001"))
        run("convert", self.path("step-0000000001"), out, "--force")
        self.assertEqual(python(SAME, file, out), "b\n")
        run("strip-prefix", file, out, "--prefix", "module.", "--force")
        self.assertEqual(python(SAME, file, out, "module."), "b\n")
        run("strip-prefix", out, self.path("c.safetensors"), "--add-prefix", "module.")
        self.assertEqual(python(SAME, file, self.path("c.safetensors")), "b\n")

    def test_two_names_never_become_one(self):
        file = self.path("a.safetensors")
        write_file(file, {"m.x": ("U8", [1], b"1"), "x": ("U8", [1], b"2"), "m.": ("U8", [1], b"3")})
        out = self.path("b.safetensors")
        self.assertIn("would both get the name 'x'", run("strip-prefix", file, out, "--prefix", "m.", expected=1))
        self.assertIn("begins with 'n.'", run("strip-prefix", file, out, "--prefix", "n.", expected=1))
        self.assertFalse(os.path.exists(out))

    def test_large_files_take_little_memory(self):
        size = int(os.environ.get("LOCKSTEP_TEST_BYTES", 300 << 20))
        folder = tempfile.TemporaryDirectory(prefix="lockstep-test-",
                                             dir="/dev/shm" if size < 1 << 30 and os.path.isdir("/dev/shm") else None)
        self.addCleanup(folder.cleanup)
        self.root = folder.name
        file = self.path("a.safetensors")
        header = json.dumps({"x": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}).encode()
        with open(file, "wb") as stream:
            stream.write(struct.pack("<Q", len(header)) + header)
            for i in range(size >> 20):
                stream.write(bytes([i & 127]) * (1 << 20))
        limited = limited_memory()
        out, back = self.path("step-0000000001"), self.path("b.safetensors")
        run("convert", file, out, **limited)
        run("verify", out, **limited)
        run("convert", out, back, **limited)
        run("diff", file, back, **limited)
        with open(file, "r+b") as stream:
            stream.seek(-7, os.SEEK_END)
            stream.write(b"\0")
        self.assertIn("1 of 1 tensors differ", run("diff", file, back, expected=1, **limited))


if __name__ == "__main__":
    main()
