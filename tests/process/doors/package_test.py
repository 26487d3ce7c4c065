"""The Python package as a package: package_test.py <root> <a Python that has torch>

pip installs it from its folder, as a wheel and from its source distribution, which has to be complete without the
clone. So that this takes no minutes, stand-ins of a few lines are compiled instead of the library's sources;
pages_test.py compiles these.
"""

import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

ROOT, PYTHON = "", ""
_REQUIREMENT = "scikit-build-core>=1.0"
_LIBRARY = """
cmake_minimum_required(VERSION 3.25)
project(Lockstep LANGUAGES CXX)
include(cmake/found.cmake)
add_library(lockstep_flags INTERFACE)
function(lockstep_precompile_torch)
endfunction()
add_library(Lockstep::group ALIAS lockstep_flags)
add_subdirectory(tools)
"""
_COMMAND = """
#include <cstdio>
#include <cstdlib>
int main(int count, char** words) {
  std::printf("%s", std::getenv("PYTHON_EXEC"));
  for (int i = 1; i < count; ++i) std::printf(" %s", words[i]);
}
"""
_MODULE = """
#include <Python.h>
static PyModuleDef module{PyModuleDef_HEAD_INIT, "_lockstep"};
PyMODINIT_FUNC PyInit__lockstep() { return PyModule_Create(&module); }
"""


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def write_sources(clone):
    """The package as it is, over a library of stand-ins."""
    package = os.path.join(clone, "python")
    shutil.copytree(os.path.join(ROOT, "python"), package, ignore=shutil.ignore_patterns("src", "tests", "__pycache__"))
    with open(os.path.join(package, "CMakeLists.txt"), encoding="utf-8") as file:
        for name in re.findall(r"src/(\w+)\.cpp", file.read()):
            write(f"{package}/src/{name}.cpp", _MODULE if name == "module" else "")
    shutil.copy(os.path.join(ROOT, "LICENSE"), clone)
    write(f"{clone}/CMakeLists.txt", _LIBRARY)
    write(f"{clone}/cmake/found.cmake", "")
    write(f"{clone}/lockstep/a.h", "")
    write(f"{clone}/share/lockstep/a.md", "")
    write(f"{clone}/tools/main.cpp", _COMMAND)
    write(f"{clone}/tools/CMakeLists.txt", "add_executable(lockstep main.cpp)\n")


class PackageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.folder = os.path.realpath(temporary.name)
        cls.clone, cls.venv = os.path.join(cls.folder, "clone"), os.path.join(cls.folder, "venv")
        write_sources(cls.clone)
        subprocess.run([PYTHON, "-m", "venv", cls.venv], check=True, timeout=900)
        (site,) = glob.glob(f"{cls.venv}/lib/python3*/site-packages")
        torchs = cls.run_command(PYTHON, "-c", "import torch; print(torch.__path__[0])").strip()
        write(f"{site}/torch.pth", os.path.dirname(torchs) + "\n")  # a copy of torch would take longer
        cls.run_command(f"{cls.venv}/bin/pip", "install", "-q", _REQUIREMENT)

    @classmethod
    def run_command(cls, *command, folder=None):
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHON_EXEC")}
        done = subprocess.run(command, cwd=folder or cls.folder, env=environment, stdin=subprocess.DEVNULL, timeout=900,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            raise AssertionError(f"{' '.join(command)} ends with {done.returncode}:\n{done.stdout}")
        return done.stdout

    def pip(self, *words, folder=None):
        return self.run_command(f"{self.venv}/bin/pip", *words, folder=folder)

    def expect_installed(self):
        python = f"{self.venv}/bin/python"
        for command, words in (((f"{self.venv}/bin/lockstep", "doctor", "-v"), "doctor -v"),
                               ((python, "-m", "lockstep.run", "a.py"), "run a.py")):
            self.assertRegex(self.run_command(*command), rf"^{re.escape(python)}[\d.]* {words}$")
        self.run_command(python, "-c", "import lockstep._lockstep")
        self.pip("uninstall", "-y", "lockstep")
        self.assertFalse(os.path.exists(f"{self.venv}/bin/lockstep"))

    def test_from_the_folder(self):
        self.pip("install", "./python", folder=self.clone)
        self.expect_installed()

    def test_a_wheel(self):
        wheels = os.path.join(self.folder, "wheels")
        self.pip("wheel", "--no-deps", "--wheel-dir", wheels, "./python", folder=self.clone)
        (wheel,) = glob.glob(f"{wheels}/*.whl")
        with zipfile.ZipFile(wheel) as file:
            names = " ".join(file.namelist())
        for pattern in ("lockstep/bin/lockstep ", r"lockstep/_lockstep\.\S+\.so ", r"dist-info/licenses/LICENSE"):
            self.assertRegex(names, pattern)
        self.assertNotIn("native/", names)
        self.pip("install", wheel)
        self.expect_installed()

    def test_a_source_distribution(self):
        sdist = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
        first, second = os.path.join(self.folder, "first"), os.path.join(self.folder, "second")
        self.run_command(f"{self.venv}/bin/python", "-c", sdist, first, folder=os.path.join(self.clone, "python"))
        (archive,) = glob.glob(f"{first}/*.tar.gz")
        self.run_command("tar", "-xzf", archive, "-C", first)
        (unpacked,) = glob.glob(f"{first}/lockstep-*/")
        self.run_command(f"{self.venv}/bin/python", "-c", sdist, second, folder=unpacked)  # one of one
        for folder in (first, second):
            (archive,) = glob.glob(f"{folder}/*.tar.gz")
            self.pip("install", archive)
            self.expect_installed()


def can_get_the_build_backend():
    with tempfile.TemporaryDirectory() as folder:
        command = [PYTHON, "-m", "pip", "download", "-q", "--no-deps", "--dest", folder, _REQUIREMENT]
        return subprocess.run(command, stdin=subprocess.DEVNULL, timeout=200).returncode == 0


if __name__ == "__main__":
    ROOT, PYTHON = os.path.abspath(sys.argv.pop(1)), os.path.abspath(sys.argv.pop(1))
    if not can_get_the_build_backend():
        print(f"skipped: pip cannot get {_REQUIREMENT}")
        sys.exit(77)
    unittest.main(verbosity=2)
