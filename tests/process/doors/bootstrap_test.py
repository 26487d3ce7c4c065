"""Which torch script/bootstrap installs: bootstrap_test.py <root>

The script runs in a folder of its own, against indexes of tiny wheels. On the ordinary one a plain torch 2.13.0 is the
CUDA build, as on PyPI; the CPU build is on an index of its own. Debian's packages count as installed.
"""

import glob
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from urllib.parse import quote

from stand_in_index import Index, write_wheel

ROOT = ""
LIBTORCH = ("torch/lib/libtorch_cpu.so", "torch/share/cmake/Torch/TorchConfig.cmake")
CUDA = "torch-2.13.0-py3-none-any.whl"
CUDA_HEADERS = ("cuda_runtime_api.h", "crt/host_defines.h", "cccl/nv/target")
CPU = "torch-2.13.0+cpu-py3-none-any.whl"


def write_cuda_torch(folder):
    write_wheel(folder, "torch", "2.13.0", [*LIBTORCH, "torch/lib/libtorch_cuda.so"], ["nvidia-cuda-runtime"])
    write_wheel(folder, "nvidia-cuda-runtime", "13.0", ["nvidia/libcudart.so"])


def write_cpu_torch(folder):
    write_wheel(folder, "torch", "2.13.0+cpu", LIBTORCH, ["filelock"])


def write_others(folder):
    for name in ("numpy", "safetensors", "expecttest", "filelock"):
        write_wheel(folder, name, "1.0")
    write_wheel(folder, "clang-format", "16.0.6", scripts=["clang-format"])


def link_tools(folder):
    """Everything that PATH has, but nvcc."""
    os.mkdir(folder)
    for path in os.environ["PATH"].split(":"):
        for name in os.listdir(path) if os.path.isdir(path) else ():
            if name != "nvcc" and not os.path.lexists(os.path.join(folder, name)):
                os.symlink(os.path.join(path, name), os.path.join(folder, name))


class Bootstrap(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = temporary.name
        os.makedirs(os.path.join(self.folder, "clone", "script"))
        shutil.copy(os.path.join(ROOT, "script", "bootstrap"), os.path.join(self.folder, "clone", "script"))
        self.own, self.cpu = os.path.join(self.folder, "own"), os.path.join(self.folder, "cpu")
        for folder in (self.own, self.cpu):
            os.mkdir(folder)
        write_others(self.own)
        self.own_index, self.cpu_index = Index(self.own), Index(self.cpu)
        self.addCleanup(self.own_index.close)
        self.addCleanup(self.cpu_index.close)
        self.bin = os.path.join(self.folder, "bin")
        os.mkdir(self.bin)
        self.tools = os.path.join(self.folder, "tools")
        link_tools(self.tools)
        self.add_command("dpkg-query", "while (($#)); do echo installed $1; shift; done")
        self.add_command("apt-get", "echo apt-get was called >&2; exit 1")
        for tool, version in (("cmake", "cmake version 3.25.1"), ("g++", "12"), ("ninja", ""), ("ccache", ""),
                              ("pkg-config", "")):
            self.add_command(tool, f"echo {version}")

    def add_command(self, name, text):
        path = os.path.join(self.bin, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"#!/bin/bash\n{text}\n")
        os.chmod(path, 0o755)

    def bootstrap(self, *options, **variables):
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith(("PIP_", "TORCH_", "Torch_")) and name not in ("CXX", "VIRTUAL_ENV")}
        environment |= {"PATH": f"{self.bin}:{self.tools}", "PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1",
                        "PIP_INDEX_URL": self.own_index.url, "TORCH_CPU_INDEX": self.cpu_index.url, "PIP_RETRIES": "1"}
        done = subprocess.run([os.path.join(self.folder, "clone", "script", "bootstrap"), *options], timeout=200,
                              env=environment | variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
        return done.returncode, done.stdout

    def installed(self, name, venv=".venv"):
        found = glob.glob(os.path.join(self.folder, "clone", venv, "lib/python3*/site-packages", f"{name}-*.dist-info"))
        return [os.path.basename(path).removeprefix(f"{name}-").removesuffix(".dist-info") for path in found]

    def expect_cpu_torch(self, **variables):
        code, printed = self.bootstrap(**variables)
        self.assertEqual(code, 0, printed)
        self.assertEqual(self.installed("torch"), ["2.13.0+cpu"], printed)
        self.assertEqual(self.installed("filelock"), ["1.0"])  # what torch needs comes along
        self.assertEqual(self.installed("nvidia_cuda_runtime"), [])
        self.assertNotIn(CUDA, self.own_index.wheels())
        return printed

    def test_torch_alone_comes_from_the_index_of_cpu_builds(self):
        write_cuda_torch(self.own)
        write_cpu_torch(self.cpu)
        for name in ("numpy", "filelock"):
            write_wheel(self.cpu, name, "9.0")  # that index has others, too
        printed = self.expect_cpu_torch()
        self.assertIn(f"pip's own sources have no torch==2.13.0+cpu; getting it from {self.cpu_index.url}", printed)
        self.assertEqual(self.cpu_index.wheels(), [quote(CPU)])
        self.assertEqual(self.installed("numpy"), ["1.0"])
        asked = len(self.own_index.paths), len(self.cpu_index.paths)
        self.assertEqual(self.bootstrap(), (0, ""))
        self.assertEqual((len(self.own_index.paths), len(self.cpu_index.paths)), asked)

    def test_pips_own_sources_come_first(self):
        write_cuda_torch(self.own)
        write_cpu_torch(self.own)
        self.expect_cpu_torch()
        self.assertEqual(self.cpu_index.paths, [])

    def test_a_folder_of_wheels_is_one_of_pips_sources(self):
        write_cuda_torch(self.own)
        folder = os.path.join(self.folder, "wheels")
        write_cpu_torch(folder)
        self.expect_cpu_torch(PIP_FIND_LINKS=os.path.join(folder, "torch"), TORCH_CPU_INDEX="http://127.0.0.1:1")

    def test_without_a_cpu_build_it_says_what_to_do(self):
        write_cuda_torch(self.own)
        code, printed = self.bootstrap()
        self.assertEqual(code, 1, printed)
        python = "cp%d%d" % sys.version_info[:2]
        for text in ("bootstrap: torch==2.13.0+cpu, the CPU build of PyTorch, was not found.",
                     "Of pip's own sources pip says: No matching distribution found for torch==2.13.0+cpu",
                     f"Of {self.cpu_index.url} it says: No matching distribution found",
                     f"the wheel for this Python ({python}), or Torch_DIR to <libtorch>"):
            self.assertIn(text, printed)
        self.assertEqual(self.installed("torch") + self.installed("numpy"), [])
        self.assertEqual(self.own_index.wheels(), [])

    def test_an_index_that_cannot_be_reached_is_named(self):
        write_cuda_torch(self.own)
        code, printed = self.bootstrap(TORCH_CPU_INDEX="http://127.0.0.1:1/cpu")
        self.assertEqual(code, 1, printed)
        self.assertRegex(printed, "(?s)Of http://127.0.0.1:1/cpu it says: No matching.*connection broken by .*refused")
        self.assertIn("set TORCH_CPU_INDEX to a mirror of it", printed)

    def test_with_the_cuda_toolkit_torch_is_pips_choice(self):
        write_cuda_torch(self.own)
        self.add_command("nvcc", "")
        code, printed = self.bootstrap()
        self.assertEqual((code, self.installed("torch"), self.installed("nvidia_cuda_runtime")),
                         (0, ["2.13.0"], ["13.0"]), printed)
        os.remove(os.path.join(self.bin, "nvcc"))
        code, printed = self.bootstrap()
        self.assertEqual(code, 1, printed)
        self.assertIn("Remove .venv and run this again: it takes the CPU build.", printed)

    def test_the_cuda_build_has_a_folder_of_its_own(self):
        write_cpu_torch(self.own)
        code, printed = self.bootstrap("--cuda")
        self.assertEqual(code, 1, printed)
        self.assertIn("bootstrap: torch 2.13.0 with CUDA was not installed.\n"
                      "  Of pip's own sources pip says: No matching distribution found for torch===2.13.0", printed)
        write_cuda_torch(self.own)
        write_wheel(self.own, "cuda-toolkit", "13.0",
                    [f"nvidia/cu13/include/{name}" for name in CUDA_HEADERS] + ["nvidia/nccl/include/nccl.h"])
        code, printed = self.bootstrap("--cuda")
        self.assertEqual((code, self.installed("torch", ".venv-cuda")), (0, ["2.13.0"]), printed)
        self.assertEqual(self.installed("torch"), [])
        asked = len(self.own_index.paths)
        self.assertEqual(self.bootstrap("--cuda"), (0, ""))
        self.assertEqual(len(self.own_index.paths), asked)
        code, printed = self.bootstrap("--cuda", TORCH_CUDA_VERSION="2.14.1")
        self.assertEqual(code, 1, printed)
        self.assertIn("No matching distribution found for torch===2.14.1", printed)


if __name__ == "__main__":
    ROOT = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
