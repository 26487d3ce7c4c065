"""Runs the commands of the documentation's pages and compares what they print.

commands_test.py <root> <folder with the programs> <executable of snippets.py> <page>...

A page is a test. Its console blocks run one after the other in a folder of their own, with the programs on the PATH and
the page's own programs beside them; Python has to be Python. Expected output is read as in console.py.
"""

import os
import re
import subprocess
import sys
import tempfile
import unittest

from console import commands_of, is_output
from page_blocks import blocks, blocks_of

_OF_LAUNCHERS = re.compile(r"^(LOCKSTEP|SLURM|OMPI|PMIX?|MPI|FLUX|TORCHELASTIC|PET)_|^(OMP_NUM_THREADS|MASTER_ADDR)$"
                           r"|^(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|MASTER_PORT|XDG_.*|TERM|COLUMNS)$")
_LIMIT_S = 120
ROOT, PROGRAMS, SNIPPETS = "", "", ""


class Page(unittest.TestCase):
    def prepare(self, page_blocks):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = os.path.join(folder.name, "work")
        home = os.path.join(folder.name, "home")
        for path in (self.folder, home, os.path.join(self.folder, "build")):
            os.mkdir(path)
        os.symlink(PROGRAMS, os.path.join(self.folder, "build", "bin"))
        for block in page_blocks:
            if block.note("program") is not None:
                os.symlink(SNIPPETS, os.path.join(self.folder, block.note("program")))
        self.environment = {name: value for name, value in os.environ.items() if not _OF_LAUNCHERS.search(name)}
        self.environment.update(HOME=home, TMPDIR=folder.name, PATH=f"{PROGRAMS}:{os.environ['PATH']}", LANG="C.UTF-8")

    def run_block(self, block):
        commands = commands_of(block.body.rstrip("\n").split("\n"), block.line)
        for number, (line, command, expected) in enumerate((each.line, each.text, each.output) for each in commands):
            is_last = number + 1 == len(commands)
            code = int(block.note("exit code") or 0) if is_last else 0
            done = subprocess.run(["bash", "-c", command], cwd=self.folder, env=self.environment, timeout=_LIMIT_S,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True)
            printed = [each.rstrip() for each in done.stdout.splitlines()]
            place = f"{block.page}:{line}: $ {command}\n"
            if expected and not is_output(expected, printed, in_order=block.note("in any order") is None):
                self.fail(f"{place}printed\n{done.stdout}and not\n" + "\n".join(expected))
            if done.returncode != code:
                self.fail(f"{place}ended with {done.returncode} and not with {code}, and printed\n{done.stdout}")

    def run_page(self, path):
        page_blocks = blocks_of(path, os.path.relpath(path, ROOT))
        self.prepare(page_blocks)
        for block in page_blocks:
            reason = block.note("not run")
            if block.language == "console" and reason is None:
                self.run_block(block)
            if block.language == "python":
                compile(block.body, f"{block.page}:{block.line}", "exec")
            self.assertNotEqual(reason, "", f"{block.page}:{block.line}: a reason is missing")


class Blocks(unittest.TestCase):
    def test_blocks(self):
        text = "x\n<!-- exit code 3 -->\n<!-- in any order -->\n```console\n$ a \\\n  b\n1\n$ c\n```\n"
        (block,) = blocks("page", text)
        self.assertEqual((block.line, block.note("exit code"), block.note("in any order")), (5, "3", ""))
        self.assertIsNone(block.note("not run"))


def add_test(path):
    name = "test_" + re.sub(r"\W", "_", os.path.relpath(path, ROOT).removesuffix(".md"))
    setattr(Page, name, lambda self: self.run_page(path))


if __name__ == "__main__":
    ROOT, PROGRAMS, SNIPPETS = map(os.path.abspath, sys.argv[1:4])
    for page in sys.argv[4:]:
        add_test(os.path.abspath(page))
    unittest.main(argv=sys.argv[:1], verbosity=2)
