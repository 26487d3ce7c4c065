"""Types what the pages say, on a machine that has nothing: pages_test.py <root> <folder>

Clones the project into the folder, which is made anew, with an empty home, and runs every command of README.md,
python/README.md and docs/tutorials there, in their order: `script/bootstrap` makes the virtual environment, into which
pip then installs. Each has to end with the exit code that the page says, and those of both READMEs have to print what
is shown. The log lists every command with its result. It runs with LOCKSTEP_TEST_DOORS=1 or all; rules.py says what is
never run, and what only with all.

Two things differ from what is printed: /opt is a folder within <folder>, and the compiler's cache is the machine's.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field

ROOT = os.path.abspath(sys.argv[1])
FOLDER = os.path.abspath(sys.argv[2])
sys.path.insert(0, os.path.join(ROOT, "tests", "docs"))

import console  # noqa: E402
import page_blocks  # noqa: E402
import tutorial  # noqa: E402
from rules import is_asked_for, reason_to_skip  # noqa: E402
from shell import Shell  # noqa: E402

CLONE, PREFIX, PROJECT = (os.path.join(FOLDER, name) for name in ("clone", "opt/lockstep", "project"))
SKIPPED = 77
_FOREIGN = re.compile(r"^(LOCKSTEP|SLURM|OMPI|PMIX?|MPI|FLUX|TORCHELASTIC|PET|CTEST|CMAKE|PYTHON|TORCH|CCACHE)_"
                      r"|^(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT|OMP_NUM_THREADS)$"
                      r"|^(Torch_DIR|VIRTUAL_ENV|PYTHONPATH|XDG_.*|MAKEFLAGS)$")
_IN_A_TABLE = re.compile(r"`((?:script/|pip |build/bin/|lockstep |python3? |mpirun |bench/|[A-Z_]+=[^\s`]+ )[^`]+)`")


@dataclass
class Step:
    page: str
    line: int
    command: str
    output: list = field(default_factory=list)
    in_order: bool = True
    code: int = 0


def steps_of_blocks(page):
    """The commands of the page's console blocks."""
    with open(os.path.join(CLONE, page), encoding="utf-8") as file:
        text = file.read()
    marked = {block.line: block for block in page_blocks.blocks(page, text)}
    for block in tutorial.blocks_of(text):
        if block.language() != "console":
            continue
        commands = console.commands_of(block.lines, block.line + 1)
        mark = marked.get(block.line + 1)
        for command in commands:
            step = Step(page, command.line, command.text)
            if mark is not None and not page.startswith("docs/"):  # a tutorial's output is compared by its own test
                step.output, step.in_order = command.output, mark.note("in any order") is None
                step.code = int(mark.note("exit code") or 0) if command is commands[-1] else 0
            yield step


def steps_of_tables(page):
    """The commands that the page's tables say to try."""
    with open(os.path.join(CLONE, page), encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.startswith("|"):
                yield from (Step(page, number, command) for command in _IN_A_TABLE.findall(line))


def tutorials():
    """In the order in which one reads them."""
    folder = os.path.join(CLONE, "docs", "tutorials")
    with open(os.path.join(folder, "README.md"), encoding="utf-8") as file:
        names = ["README.md", *re.findall(r"\]\((\w+\.md)\)", file.read())]
    names += sorted(name for name in os.listdir(folder) if name.endswith(".md"))
    return [f"docs/tutorials/{name}" for name in dict.fromkeys(names)]


def write_programs():
    """The files of which the pages show all: README's project, and the script of python/README."""
    os.makedirs(PROJECT)
    for page, language, path in (("README.md", "cpp", f"{PROJECT}/train.cpp"),
                                 ("README.md", "cmake", f"{PROJECT}/CMakeLists.txt"),
                                 ("python/README.md", "python", f"{CLONE}/train.py")):
        blocks = page_blocks.blocks_of(os.path.join(CLONE, page), page)
        with open(path, "w", encoding="utf-8") as file:
            file.write(next(block.body for block in blocks if block.language == language))


def folder_of(command):
    """Where a command is typed, if not in the root of the project."""
    if command.startswith("cmake -B"):
        return PROJECT
    return os.path.join(PROJECT, "build") if "./train" in command.split() else None


def make_clone():
    """A clone, with what is not committed yet."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    for name in ("home", "tmp"):
        os.makedirs(os.path.join(FOLDER, name))
    subprocess.run(["git", "clone", "-q", ROOT, CLONE], check=True)
    changed = subprocess.run(["git", "ls-files", "-z", "--modified", "--deleted", "--others", "--exclude-standard"],
                             cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for path in filter(None, changed.split("\0")):
        here, there = os.path.join(ROOT, path), os.path.join(CLONE, path)
        if os.path.isfile(here):
            os.makedirs(os.path.dirname(there), exist_ok=True)
            shutil.copy2(here, there)
        elif not os.path.exists(here) and os.path.exists(there):
            os.remove(there)


def environment():
    own = {name: value for name, value in os.environ.items() if not _FOREIGN.search(name)}
    own |= {"HOME": os.path.join(FOLDER, "home"), "TMPDIR": os.path.join(FOLDER, "tmp"), "OMP_NUM_THREADS": "1",
            "PATH": f"{PREFIX}/bin:{own['PATH']}", "LANG": "C.UTF-8", "CCACHE_BASEDIR": FOLDER, "CCACHE_NOHASHDIR": "1",
            "CCACHE_SLOPPINESS": "pch_defines,time_macros"}
    if shutil.which("ccache"):
        own["CCACHE_DIR"] = subprocess.run(["ccache", "--get-config", "cache_dir"], check=True, capture_output=True,
                                           text=True).stdout.strip()
    return own


class Log:
    """One line for each command, and at the end how many there were of each kind."""

    def __init__(self):
        self.counts = {"passed": 0, "skipped": 0, "failed": 0}

    def add(self, kind, step, note, text=""):
        self.counts[kind] += 1
        command = step.command.replace("\n", "\n    ")
        print(f"{kind:7} {step.page}:{step.line}: $ {command}\n        ({note})", flush=True)
        if text:
            print(text, flush=True)


def run(step, shell, log):
    reason = reason_to_skip(step.page, step.command)
    if reason is not None:
        log.add("skipped", step, reason)
        return
    folder = folder_of(step.command)
    if folder is not None and not os.path.isdir(folder):
        log.add("failed", step, "what it needs could not be built")
        return
    start = time.monotonic()
    code, printed = shell.run(step.command.replace("/opt/lockstep", PREFIX), folder)
    took = f"{time.monotonic() - start:.1f} s"
    lines = [line.rstrip() for line in printed.splitlines()]
    if code != step.code:
        log.add("failed", step, f"{took}; the exit code is {code} and not {step.code}", printed)
    elif step.output and not console.is_output(step.output, lines, step.in_order):
        log.add("failed", step, f"{took}; the page shows other output", printed)
    else:
        log.add("passed", step, took)


def run_pages(log):
    state = os.path.join(FOLDER, "state")
    shell = Shell(CLONE, environment(), state)
    # A program can be started once it is built, of which README speaks further down.
    readme = sorted(steps_of_blocks("README.md"), key=lambda step: not re.match("script/install|cmake", step.command))
    for step in readme:
        run(step, shell, log)

    shell = Shell(CLONE, environment(), state)
    for page in tutorials():
        for step in steps_of_blocks(page):
            run(step, shell, log)

    venv = os.path.join(CLONE, ".venv")  # script/bootstrap has made it
    in_venv = {"VIRTUAL_ENV": venv, "PATH": f"{venv}/bin:{os.environ['PATH']}", "PIP_REQUIRE_VIRTUALENV": "1"}
    shell = Shell(CLONE, environment() | in_venv, state)
    of_python = list(steps_of_blocks("python/README.md"))
    said = {re.sub(r"\s+#.*", "", step.command) for step in readme + of_python}
    tables = [step for step in steps_of_tables("README.md") if step.command not in said]
    for step in of_python + tables:
        run(step, shell, log)


def main():
    make_clone()
    write_programs()
    log = Log()
    run_pages(log)
    print(", ".join(f"{count} {kind}" for kind, count in log.counts.items()))
    shutil.rmtree(FOLDER)
    return int(log.counts["failed"] > 0)


if __name__ == "__main__":
    if not is_asked_for():
        print("skipped: it compiles the library twice; LOCKSTEP_TEST_DOORS=1 runs it")
        sys.exit(SKIPPED)
    if shutil.which("git") is None or not os.path.exists(os.path.join(ROOT, ".git")):
        print("skipped: needs git and a clone of the repository")
        sys.exit(SKIPPED)
    sys.exit(main())
