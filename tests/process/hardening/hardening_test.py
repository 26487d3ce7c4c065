"""Whether programs are built as SECURITY.md says: hardening_test.py <readelf> <build folder> <program> ..."""

import re
import subprocess
import sys
import unittest
from pathlib import Path

READELF = ""
BUILD = ""
PROGRAMS = []
# What loads code, runs a command, or reads a format that can hold code. Only the launcher starts programs, by execve().
EXECUTES = re.compile(r"dlopen|dlmopen|system|popen|wordexp|execl[pe]?|execvp?|execvpe|fexecve|posix_spawnp?|"
                      r"Py(?:Run|Marshal|Pickle)_\w+|PyEval_EvalCode\w*|Py_Compile\w+|"
                      r"_Z\w*(?:11pickle_load|3jit4load|5torch4load)\w*")


def read(program, *options):
    return subprocess.run([READELF, "--wide", *options, program], capture_output=True, text=True, check=True).stdout


class HardeningTest(unittest.TestCase):
    # fault: S11
    def test_programs_lie_at_random_addresses(self):
        for program in PROGRAMS:
            with self.subTest(program):
                self.assertRegex(read(program, "--file-header"), r"Type:\s+DYN")
                self.assertRegex(read(program, "--dynamic"), r"\(FLAGS_1\).*\bPIE\b")

    # fault: S11
    def test_what_the_loader_writes_is_read_only_afterwards(self):
        for program in PROGRAMS:
            with self.subTest(program):
                self.assertIn("GNU_RELRO", read(program, "--program-headers"))
                self.assertRegex(read(program, "--dynamic"), r"BIND_NOW|\(FLAGS_1\).*\bNOW\b")

    # fault: S11
    def test_no_memory_is_both_writable_and_executable(self):
        for program in PROGRAMS:
            with self.subTest(program):
                headers = read(program, "--program-headers")
                stack = re.search(r"GNU_STACK\s+(?:0x\w+\s+){5}([RWE ]+?)\s+0x", headers)
                self.assertEqual(stack.group(1).replace(" ", ""), "RW")
                for flags in re.findall(r"^\s+LOAD\s+(?:0x\w+\s+){5}([RWE ]+?)\s+0x", headers, re.M):
                    self.assertFalse("W" in flags and "E" in flags, headers)

    # fault: S11
    def test_stacks_and_copies_are_checked(self):
        for program in PROGRAMS:
            with self.subTest(program):
                symbols = read(program, "--dyn-syms")
                self.assertIn("__stack_chk_fail", symbols)
                self.assertRegex(symbols, r"\b__\w+_chk\b")

    # fault: S11
    def test_libraries_are_not_looked_for_in_relative_places(self):
        for program in PROGRAMS:
            with self.subTest(program):
                for path in re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", read(program, "--dynamic")):
                    for folder in path.split(":"):
                        self.assertTrue(folder.startswith(("/", "$ORIGIN")), path)


    # fault: S6
    def test_nothing_that_executes_what_it_is_given_is_called(self):
        modules = sorted(Path(BUILD, "python").glob("**/_lockstep*.so"))
        archives = sorted(Path(BUILD, "lockstep").glob("**/*.a"))
        self.assertIn("liblockstep_net.a", [archive.name for archive in archives])
        for file in [*archives, *modules, *PROGRAMS]:
            with self.subTest(file):
                called = re.findall(r" UND (\w+)", read(file, "--symbols", "--dyn-syms"))
                self.assertIn("memcpy", {name.removeprefix("__").removesuffix("_chk") for name in called})
                self.assertEqual([name for name in called if EXECUTES.fullmatch(name)], [])


if __name__ == "__main__":
    READELF = sys.argv[1]
    BUILD = sys.argv[2]
    PROGRAMS = sys.argv[3:]
    unittest.main(argv=sys.argv[:1], verbosity=2)
