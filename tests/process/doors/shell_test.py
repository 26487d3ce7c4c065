"""The shell of pages_test.py is one: shell_test.py"""

import os
import tempfile
import time
import unittest

from shell import Shell


class ShellTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = os.path.realpath(temporary.name)
        environment = {"PATH": os.environ["PATH"], "REMOVED": "1"}
        self.shell = Shell(self.folder, environment, os.path.join(self.folder, "state"))

    def test_what_is_exported_holds_for_the_next(self):
        self.assertEqual(self.shell.run('export A="1\n2"; unset REMOVED; B=3; mkdir b; cd b'), (0, ""))
        self.assertEqual(self.shell.run('echo "$A$B${REMOVED-}"; pwd; ls'), (0, f"1\n2\n{self.folder}/b\n"))

    def test_another_folder_is_for_one_command(self):
        os.mkdir(os.path.join(self.folder, "c"))
        self.assertEqual(self.shell.run("pwd", os.path.join(self.folder, "c")), (0, f"{self.folder}/c\n"))
        self.assertEqual(self.shell.run("pwd"), (0, f"{self.folder}\n"))

    def test_exit_codes_and_both_streams(self):
        self.assertEqual(self.shell.run("echo a; echo b >&2; false"), (1, "a\nb\n"))
        self.assertEqual(self.shell.run("exit 3"), (3, ""))
        self.assertEqual(self.shell.run("read line"), (1, ""))

    def test_a_limit(self):
        start = time.monotonic()
        self.assertEqual(self.shell.run("echo begins; sleep 100 & wait", limit_s=1), (None, "begins\n"))
        self.assertLess(time.monotonic() - start, 60)


if __name__ == "__main__":
    unittest.main(verbosity=2)
