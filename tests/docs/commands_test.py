"""Runs the commands of the documentation's pages and compares what they print.

commands_test.py <root> <folder with the programs> <executable of snippets.py> <page>...

A page is a test. Its console blocks run one after the other in a folder of their own, with the programs on the PATH and
the page's own programs beside them; Python has to be Python. In expected output "..." stands for any text of a line,
and a line of its own for any lines.
"""

import os
import re
import subprocess
import sys
import tempfile
import unittest

from page_blocks import blocks, blocks_of

_OF_LAUNCHERS = re.compile(r"^(LOCKSTEP|SLURM|OMPI|PMIX?|MPI|FLUX|TORCHELASTIC|PET)_|^(OMP_NUM_THREADS|MASTER_ADDR)$"
                           r"|^(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|MASTER_PORT|XDG_.*|TERM|COLUMNS)$")
_LIMIT_S = 120
ROOT, PROGRAMS, SNIPPETS = "", "", ""


def commands_of(body):
    """[(command, expected lines)] of a console block."""
    found = []
    continues = False
    for line in body.rstrip("\n").split("\n"):
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif continues:
            found[-1] = (found[-1][0] + "\n" + line, [])
        elif not found:
            raise ValueError(f"a console block begins with a command, not with {line!r}")
        else:
            found[-1][1].append(line)
        continues = not found[-1][1] and found[-1][0].endswith("\\")
    return found


def _line_pattern(line):
    return re.compile(".*?".join(re.escape(part) for part in line.rstrip().split("...")))


def fits(expected, printed):
    """Whether the printed lines are the expected ones, in this order."""
    if not expected:
        return not printed
    if expected[0].strip() == "...":
        return any(fits(expected[1:], printed[start:]) for start in range(len(printed) + 1))
    matches = bool(printed) and _line_pattern(expected[0]).fullmatch(printed[0].rstrip()) is not None
    return matches and fits(expected[1:], printed[1:])


def fits_in_any_order(expected, printed):
    left = list(printed)
    for line in expected:
        if line.strip() == "...":
            continue
        found = next((each for each in left if _line_pattern(line).fullmatch(each.rstrip())), None)
        if found is None:
            return False
        left.remove(found)
    return not left or any(line.strip() == "..." for line in expected)


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
        commands = commands_of(block.body)
        for number, (command, expected) in enumerate(commands):
            is_last = number + 1 == len(commands)
            code = int(block.note("exit code") or 0) if is_last else 0
            done = subprocess.run(["bash", "-c", command], cwd=self.folder, env=self.environment, timeout=_LIMIT_S,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True)
            printed = done.stdout.splitlines()
            same = fits_in_any_order if block.note("in any order") is not None else fits
            place = f"{block.page}:{block.line}: $ {command}\n"
            if expected and not same(expected, printed):
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


class Comparison(unittest.TestCase):
    """The test's own parts: what must not fit does not."""

    def test_lines(self):
        self.assertTrue(fits(["a ... c", "...", "d"], ["a b c", "x", "y", "d"]))
        self.assertTrue(fits(["a", "..."], ["a"]))
        self.assertFalse(fits(["a ... c"], ["a b d"]))
        self.assertFalse(fits(["a"], ["a", "b"]))
        self.assertFalse(fits(["a", "b"], ["b", "a"]))
        self.assertFalse(fits(["a"], []))

    def test_any_order(self):
        self.assertTrue(fits_in_any_order(["a", "b..."], ["b2", "a"]))
        self.assertTrue(fits_in_any_order(["a", "..."], ["b", "a"]))
        self.assertFalse(fits_in_any_order(["a"], ["b", "a"]))
        self.assertFalse(fits_in_any_order(["a", "a"], ["a"]))

    def test_blocks(self):
        text = "x\n<!-- exit code 3 -->\n<!-- in any order -->\n```console\n$ a \\\n  b\n1\n$ c\n```\n"
        (block,) = blocks("page", text)
        self.assertEqual((block.line, block.note("exit code"), block.note("in any order")), (5, "3", ""))
        self.assertIsNone(block.note("not run"))
        self.assertEqual(commands_of(block.body), [("a \\\n  b", ["1"]), ("c", [])])


def add_test(path):
    name = "test_" + re.sub(r"\W", "_", os.path.relpath(path, ROOT).removesuffix(".md"))
    setattr(Page, name, lambda self: self.run_page(path))


if __name__ == "__main__":
    ROOT, PROGRAMS, SNIPPETS = map(os.path.abspath, sys.argv[1:4])
    for page in sys.argv[4:]:
        add_test(os.path.abspath(page))
    unittest.main(argv=sys.argv[:1], verbosity=2)
