"""`lockstep checkpoint diff`."""

import json
import struct
import subprocess

from tool import LOCKSTEP, PYTHON, ToolTest, flip, main, python, run, write_file, write_set

DIFFERENCES = """
import json, sys, torch
from safetensors.torch import load_file, save_file
torch.manual_seed(2)
a, b = {}, {}
for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.uint8):
    for i in range(4):
        x = torch.randn(200) * 10 ** i if dtype.is_floating_point else torch.randint(0, 200, (200,))
        x = x.to(dtype)
        y = x.clone()
        y[torch.randperm(200)[:20]] += 1
        a[f"{dtype}{i}"], b[f"{dtype}{i}"] = x, y
save_file(a, sys.argv[1])
save_file(b, sys.argv[2])
result = {}
for name in a:
    x, y = a[name].double(), b[name].double()
    different = (x != y).sum().item()
    if different:
        relative = ((x - y).abs() / torch.maximum(x.abs(), y.abs())).nan_to_num(0).max().item()
        result[name] = (different, (x - y).abs().max().item(), relative)
print(json.dumps(result))
"""


class DiffTest(ToolTest):
    def write(self, name, tensors):
        path = self.path(name)
        write_file(path, tensors)
        return path

    def test_equal_different_and_unreadable_have_codes_of_their_own(self):
        one, two = write_set(self.sets, 1, 1, 2), write_set(self.sets, 2, 1, 4)
        self.assertEqual(run("diff", one, two), "all 3 tensors are equal\n")
        other = write_set(self.sets, 3, 4, 1)
        text = run("diff", one, other, expected=1)
        self.assertIn("weight: 16 of 16 elements differ, by at most 3 (0.75 of the larger one)", text)
        self.assertIn("2 of 3 tensors differ", text)
        run("diff", one, other, "--tolerance", 3)
        run("diff", one, other, "--tolerance", 0.75)
        run("diff", one, other, "--tolerance", 0.7, expected=1)
        self.assertIn("no such file", run("diff", one, self.path("x"), expected=2))
        flip(f"{other}/part-00000-of-00001.safetensors", -3)
        self.assertIn("is damaged", run("diff", one, other, expected=2))

    def test_a_tolerance_is_a_number_of_at_least_zero(self):
        one, two = write_set(self.sets, 1, 1), write_set(self.sets, 2, 4)
        for bad in ("nan", "NaN", "-nan", "-1", "-1e-9", "-inf", "1e-3x", "many"):
            self.assertRegex(run("diff", one, two, f"--tolerance={bad}", expected=2),
                             r"--tolerance: '.*' is not a number")
        run("diff", one, two, "--tolerance", 0, expected=1)
        run("diff", one, two, "--tolerance", "inf")

    def test_names_types_and_shapes(self):
        a = self.write("a.safetensors", {"x": ("U8", [4], b"1234"), "y": ("U8", [2], b"12"), "z": ("U8", [2], b"12")})
        b = self.write("b.safetensors", {"x": ("U16", [2], b"1234"), "y": ("U8", [2, 1], b"12"), "w": ("U8", [], b"1")})
        text = run("diff", a, b, expected=1)
        for line in ("x: U8 [4] in the first, U16 [2] in the second", "y: U8 [2] in the first, U8 [2, 1] in the second",
                     "z: only in the first, U8 [2]", "w: only in the second, U8 []", "4 of 4 tensors differ"):
            self.assertIn(line + "\n", text)
        found = json.loads(subprocess.run([LOCKSTEP, "checkpoint", "diff", a, b, "--json"], capture_output=True,
                                          text=True, timeout=60, check=False).stdout)
        self.assertEqual({each["name"] for each in found["different"]}, set("wxyz"))

    def test_values_that_are_no_numbers_and_large_ones(self):
        pack = struct.pack
        nan, infinity = float("nan"), float("inf")
        a = self.write("a.safetensors", {"f": ("F32", [5], pack("<5f", nan, 0.0, nan, infinity, 1)),
                                         "i": ("I64", [2], pack("<2q", 2 ** 62, -2 ** 63)),
                                         "u": ("U64", [1], pack("<Q", 2 ** 64 - 1))})
        b = self.write("b.safetensors", {"f": ("F32", [5], pack("<5f", nan, -0.0, 1, infinity, 1)),
                                         "i": ("I64", [2], pack("<2q", 2 ** 62 + 1, 2 ** 63 - 1)),
                                         "u": ("U64", [1], pack("<Q", 0))})
        text = run("diff", a, b, expected=1)
        self.assertIn("f: 1 of 5 elements differ, by at most inf", text)
        self.assertIn("i: 2 of 2 elements differ, by at most 1.84467e+19", text)
        self.assertIn("u: 1 of 1 elements differ, by at most 1.84467e+19", text)
        run("diff", a, a)

    def test_differences_are_those_that_torch_finds(self):
        if not PYTHON:
            self.skipTest("there is no PyTorch here")
        a, b = self.path("a.safetensors"), self.path("b.safetensors")
        expected = json.loads(python(DIFFERENCES, a, b))
        done = subprocess.run([LOCKSTEP, "checkpoint", "diff", a, b, "--json"], capture_output=True, text=True,
                              timeout=60, check=False)
        found = {each["name"]: each for each in json.loads(done.stdout)["different"]}
        self.assertEqual(set(found), set(expected))
        for name, (different, largest, relative) in expected.items():
            self.assertEqual(found[name]["different"], different, name)
            self.assertAlmostEqual(found[name]["largest"], largest, delta=1e-12 * largest)
            self.assertAlmostEqual(found[name]["largest_relative"], relative, delta=1e-12)


if __name__ == "__main__":
    main()
