"""Whether programs are built as SECURITY.md says: hardening_test.py <readelf> <program> ..."""

import re
import subprocess
import sys
import unittest

READELF = ""
PROGRAMS = []


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


if __name__ == "__main__":
    READELF = sys.argv[1]
    PROGRAMS = sys.argv[2:]
    unittest.main(argv=sys.argv[:1], verbosity=2)
