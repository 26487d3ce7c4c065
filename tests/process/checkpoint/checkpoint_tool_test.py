"""`lockstep checkpoint`: checkpoint_tool_test.py <lockstep> <set_writer> [<python with torch and safetensors>]"""

import json
import os
import pty
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

LOCKSTEP = ""
WRITER = ""
PYTHON = ""

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


def run(*words, expected=0, **options):
    done = subprocess.run([LOCKSTEP, "checkpoint", *map(str, words)], capture_output=True, text=True, timeout=120,
                          check=False, **options)
    assert done.returncode == expected, (words, done.returncode, done.stdout, done.stderr)
    return done.stdout if expected == 0 else done.stdout + done.stderr


def write_set(directory, step, version=1, writers=2, *more):
    done = subprocess.run([WRITER, directory, str(step), str(version), str(writers), *map(str, more)],
                          capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


def python(code, *words):
    return subprocess.run([PYTHON, "-c", code, *words], capture_output=True, text=True, timeout=300, check=True).stdout


def write_file(path, tensors, metadata=None):
    """Without the package: name -> dtype, shape, bytes."""
    header, data = {"__metadata__": metadata or {}}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def flip(path, offset):
    with open(path, "r+b") as file:
        file.seek(offset, os.SEEK_SET if offset >= 0 else os.SEEK_END)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


class ToolTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = self.folder.name
        self.sets = os.path.join(self.root, "sets")

    def path(self, name):
        return os.path.join(self.root, name)


class ListTest(ToolTest):
    def test_sets_and_files_are_listed_newest_first_and_damaged_ones_are_marked(self):
        for step in (100, 300, 200):
            write_set(self.sets, step, 1, 2, step / 1000)
        run("convert", f"{self.sets}/step-0000000300", f"{self.sets}/step-0000000250.safetensors")
        run("convert", f"{self.sets}/step-0000000300", f"{self.sets}/best.safetensors")
        os.truncate(f"{self.sets}/step-0000000200/part-00001-of-00002.safetensors", 9)
        flip(f"{self.sets}/step-0000000100/manifest.json", 40)
        lines = run("ls", self.sets).splitlines()
        self.assertEqual([line.split()[0] for line in lines],
                         ["NAME", "step-0000000300", "step-0000000250.safetensors", "step-0000000200",
                          "step-0000000100", "best.safetensors"])
        self.assertRegex(lines[1], r" 300 set +\d[\d.]* (B|KiB) +\S+ +2 +3 +loss=0.3$")
        self.assertRegex(lines[2], r" 250 file ")
        self.assertRegex(lines[3], r"DAMAGED: .*part-00001-of-00002.safetensors.*it has 9 bytes, \d+ were expected")
        self.assertRegex(lines[4], r"DAMAGED: .*manifest.json.*XXH3-128 expected")
        found = json.loads(run("ls", self.sets, "--json"))
        self.assertEqual([each["step"] for each in found["checkpoints"]], [300, 250, 200, 100, 300])
        self.assertEqual(["damage" in each for each in found["checkpoints"]], [False, False, True, True, False])
        self.assertEqual(found["unpublished"], [])

    def test_what_killed_writers_have_left_is_shown_and_pruned(self):
        write_set(self.sets, 1)
        command = [WRITER, self.sets, "2", "1", "2", "hidden"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as living, \
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as killed:
            for process in (living, killed):
                self.assertEqual(process.stdout.readline(), "ready\n")
            killed.send_signal(signal.SIGKILL)
            killed.wait()
            text = run("ls", self.sets)
            self.assertRegex(text, r"\.step-0000000002\.writing-\w+: being written")
            self.assertRegex(text, r"\.step-0000000002\.writing-\w+: left by a killed writer; the next save")
            self.assertIn("would remove", run("prune", self.sets, "--keep-last", 5, "--dry-run"))
            self.assertEqual(len(os.listdir(self.sets)), 3)
            self.assertIn("1 removed, 1 sets kept", run("prune", self.sets, "--keep-last", 5))
            self.assertEqual(len(os.listdir(self.sets)), 2)
            living.stdin.close()

    def test_what_is_not_there_is_named(self):
        self.assertIn("no such checkpoint or directory", run("ls", self.path("x"), expected=1))
        os.mkdir(self.sets)
        self.assertEqual(run("ls", self.sets), f"no checkpoints in {self.sets}\n")
        self.assertIn("no checkpoints", run("verify", self.sets, expected=1))
        for words in (["show"], ["bogus"], [], ["prune", self.sets], ["convert", "a"], ["strip-prefix", "a", "b"],
                      ["prune", self.sets, "--keep-last", 1, "--keep-best", 1], ["ls", self.sets, "--bogus"]):
            self.assertIn("--help'", run(*words, expected=2))

    def test_show_has_a_line_for_each_tensor(self):
        path = write_set(self.sets, 400, 7, 3, 0.25)
        lines = run("show", path).splitlines()
        self.assertRegex(lines[0], r"^empty   F16 \[0, 3\] +0 bytes$")
        self.assertRegex(lines[1], r"^scalar  I64 \[\] +8 bytes$")
        self.assertRegex(lines[2], r"^weight  I64 \[8, 2\] +128 bytes$")
        self.assertEqual(lines[3], "3 tensors, 136 bytes (136 B)")
        self.assertRegex(lines[4], r"^set of 3 files, \d+ bytes$")
        for line in ("step: 400", "ranks: 3", "metric loss: 0.25", "metadata version: 7"):
            self.assertIn(line, lines)
        found = json.loads(run("show", path, "--json"))
        self.assertEqual(found["user"], {"epoch": 3, "list": [1, 2.5, None]})
        self.assertEqual(found["tensors"]["weight"], {"dtype": "I64", "shape": [8, 2], "bytes": 128})

    def test_names_from_a_file_do_not_reach_the_terminal_as_they_are(self):
        write_file(self.path("a.safetensors"), {"x": ("U8", [1], b"1")}, {"note": "\x1b[31mred\n"})
        text = run("show", self.path("a.safetensors"))
        self.assertIn("metadata note: ?[31mred?", text)
        self.assertIn("without digests", text)


class VerifyTest(ToolTest):
    # fault: 24
    def test_damage_anywhere_in_a_directory_is_an_error(self):
        path = write_set(self.sets, 100)
        write_set(self.sets, 200)
        run("convert", path, f"{self.sets}/a.safetensors")
        self.assertEqual(run("verify", self.sets).count(": whole ("), 3)
        self.assertEqual(run("verify", path).count("whole"), 1)
        for damaged in (f"{path}/part-00000-of-00002.safetensors", f"{self.sets}/a.safetensors"):
            flip(damaged, -3)
            text = run("verify", self.sets, expected=1)
            self.assertEqual(text.count(": whole ("), 2)
            self.assertRegex(text, "DAMAGED: .*" + os.path.basename(damaged) + ".*XXH3-128 expected")
            self.assertIn("DAMAGED", run("verify", damaged if damaged.endswith("a.safetensors") else path, expected=1))
            flip(damaged, -3)
        os.remove(f"{path}/manifest.json")
        self.assertIn("manifest.json: no such file", run("verify", self.sets, expected=1))
        found = json.loads(run("verify", f"{self.sets}/a.safetensors", "--json"))
        self.assertEqual((len(found), found[0]["has_digests"]), (1, True))

    def test_a_file_without_digests_is_told_from_one_that_is_whole(self):
        path = self.path("a.safetensors")
        write_file(path, {"x": ("U8", [4], b"1234")})
        self.assertIn("readable; it has no digests", run("verify", path))
        os.truncate(path, os.path.getsize(path) - 1)
        self.assertIn("truncated", run("verify", path, expected=1))

    def test_a_terminal_shows_how_far_it_is(self):
        path = self.path("a.safetensors")
        size = 1 << 30
        header = json.dumps({"x": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            file.truncate(8 + len(header) + size)  # a hole
        ours, theirs = pty.openpty()
        with subprocess.Popen([LOCKSTEP, "checkpoint", "verify", path], stdout=subprocess.DEVNULL, stderr=theirs):
            os.close(theirs)
            text = b""
            try:
                while part := os.read(ours, 4096):
                    text += part
            except OSError:  # the other end is closed
                pass
        os.close(ours)
        self.assertRegex(text.decode(), r"\r\x1b\[Kverifying a.safetensors: [\d.]+ MiB of 1.0 GiB")
        self.assertTrue(text.endswith(b"\r\x1b[K"))


class SignatureTest(ToolTest):
    def token(self, name, digit):
        with open(self.path(name), "w", encoding="ascii") as file:
            file.write(digit * 64 + "\n")
        os.chmod(self.path(name), 0o600)
        return {**os.environ, "LOCKSTEP_TOKEN_FILE": self.path(name)}

    # fault: S9
    def test_verify_tells_who_has_signed(self):
        mine, other = self.token("mine", "1"), self.token("other", "2")
        command = [WRITER, self.sets, "1", "1", "2", "sign"]
        path = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=mine).stdout.strip()
        self.assertRegex(run("verify", path, env=mine), r": whole \([^)]*, signed\)")
        run("verify", path, "--require-signature", "--token-file", self.path("mine"), env=other)
        for words in ([], ["--require-signature"]):
            self.assertIn("DAMAGED: " + path + "/manifest.json was signed with another token, or changed since",
                          run("verify", path, *words, expected=1, env=other))
        nobody = {**os.environ, "HOME": self.root, "LOCKSTEP_TOKEN_FILE": ""}
        self.assertIn("there is no token to check that with", run("verify", path, env=nobody))
        self.assertIn("there is no token", run("verify", path, "--require-signature", expected=1, env=nobody))
        unsigned = write_set(self.sets, 2)
        self.assertIn("not signed)", run("verify", unsigned, env=mine))
        self.assertIn("is not signed, and a signature is required",
                      run("verify", self.sets, "--require-signature", expected=1, env=mine))
        self.assertIn("cannot read the token file", run("verify", path, "--token-file", self.path("x"), expected=1))
        found = json.loads(run("verify", self.sets, "--json", env=mine))
        self.assertEqual([each["signature"] for each in found], ["not signed", "signed"])


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
        self.assertEqual(run("verify", self.models.name).count(": whole ("), 3)
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
        self.assertIn("F8_E4M3", run("convert", self.model("a.pt"), out, "--force", expected=1))

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

    def test_the_name_says_what_it_becomes(self):
        path = write_set(self.sets, 400)
        for out in ("model.bin", "step-400", "step-0000000400x"):
            self.assertIn("its name does not say", run("convert", path, self.path(out), expected=1))
        self.assertIn("its name does not say", run("convert", path, self.path("x"), "--to", "set", expected=1))
        run("convert", path, self.path("model.bin"), "--to", "file")
        run("verify", self.path("model.bin"))
        run("convert", path, self.path("x/step-0000000007"))
        self.assertEqual(json.loads(run("show", self.path("x/step-0000000007"), "--json"))["step"], 7)

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
        self.assertIn("would both be called 'x'", run("strip-prefix", file, out, "--prefix", "m.", expected=1))
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

        def limit():
            resource.setrlimit(resource.RLIMIT_DATA, (256 << 20, 256 << 20))

        limited = {} if os.environ.get("LOCKSTEP_TEST_SANITIZED") else {"preexec_fn": limit}
        out, back = self.path("step-0000000001"), self.path("b.safetensors")
        run("convert", file, out, **limited)
        run("verify", out, **limited)
        run("convert", out, back, **limited)
        run("diff", file, back, **limited)
        with open(file, "r+b") as stream:
            stream.seek(-7, os.SEEK_END)
            stream.write(b"\0")
        self.assertIn("1 of 1 tensors differ", run("diff", file, back, expected=1, **limited))


class PruneTest(ToolTest):
    def steps(self):
        return sorted(int(name[5:]) for name in os.listdir(self.sets))

    def test_the_rules_decide(self):
        for step, loss in ((100, 5), (200, 1), (300, 4), (400, 3), (500, 2)):
            write_set(self.sets, step, 1, 2, loss)
        before = self.steps()
        text = run("prune", self.sets, "--keep-last", 1, "--keep-best", 1, "--metric", "loss", "--dry-run")
        self.assertEqual([line.rpartition("-")[2] for line in text.splitlines() if "would remove" in line],
                         ["0000000100", "0000000300", "0000000400"])
        self.assertEqual(self.steps(), before)
        found = json.loads(run("prune", self.sets, "--keep-last", 1, "--keep-every", 200, "--keep-best", 1, "--metric",
                               "loss", "--higher-is-better", "--json"))
        self.assertEqual([os.path.basename(each) for each in found["removed"]], ["step-0000000300"])
        self.assertEqual(self.steps(), [100, 200, 400, 500])
        run("prune", self.sets, "--keep-last", 2)
        self.assertEqual(self.steps(), [400, 500])


if __name__ == "__main__":
    LOCKSTEP = os.path.abspath(sys.argv[1])
    WRITER = os.path.abspath(sys.argv[2])
    PYTHON = sys.argv[3] if len(sys.argv) > 3 else ""
    unittest.main(argv=sys.argv[:1])
