"""A tutorial page is true: tutorial_test.py <page> <program> ...

Code blocks are compared with the sources, and the commands of console blocks are run, in order, by bash in one empty
folder, in which build/bin holds the given programs; `lockstep` is found in PATH, as any program there. What follows the
backticks marks a block:

    ```cpp examples/basic_ddp/main.cpp   the block is a piece of this file: lines that stand there together, indented
                                         as one likes. A line `...` or `// ...` leaves out any number of lines. Any
                                         language, any file of the project.
    ```diff A B 6                        the lines that differ between the files A and B, all of them; 6: at most so
                                         many lines may change. Lines without + or - in front are for the reader.
    ```console                           commands that are not run, each after `$ `; no output is shown
    ```console run                       The commands are run. Each has to exit with 0, and to print what the page shows
                                         below it, on both streams. `...` stands for any characters, and on a line of
                                         its own for any lines. A command goes on in the next line after a backslash.
                                         One that fails on purpose says so: `$ cmd || echo "exit code $?"`.
    ```console run unordered             the same, for lines that ranks print in any order
    ```console elsewhere                 output of what a test machine lacks: other hosts, a cluster, GPUs
    ```cpp, ```                          any other block: ideas of what to try, not checked

CMake makes a test tutorial_<page> of every page in docs/tutorials, with the programs that the page names as
build/bin/<program>. The folder is also HOME, OMP_NUM_THREADS is 1, and no variable of Lockstep is set.
Warnings of late ranks, which depend on the load of the machine, need not be on the page.
"""

import os
import pathlib
import subprocess
import sys
import tempfile

import console
import tutorial

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LIMIT_SECONDS = 500


def read(path):
    return (ROOT / path).read_text(encoding="utf-8")


def run(command, folder, path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LOCKSTEP_")}
    environment |= {"PATH": f"{path}:{os.environ['PATH']}", "HOME": str(folder), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(["bash", "-c", command], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_SECONDS)
    return result.returncode, [line.rstrip() for line in result.stdout.splitlines()]


def run_blocks(text, folder, path):
    for block in tutorial.blocks_of(text):
        if block.language() != "console" or block.info[1:2] != ["run"]:
            continue
        for command in console.commands_of(block.lines, block.line + 1):
            code, printed = run(command.text, folder, path)
            if code != 0:
                yield command.line, f"the command exits with {code} and prints\n" + "\n".join(printed)
            elif not console.is_output(command.output, printed, "unordered" not in block.info):
                yield command.line, "the command prints\n" + "\n".join(printed)


def main():
    path, *programs = sys.argv[1:]
    text = pathlib.Path(path).read_text(encoding="utf-8")
    found = list(tutorial.offences(text, read))
    with tempfile.TemporaryDirectory() as folder:
        binaries = pathlib.Path(folder) / "build" / "bin"
        binaries.mkdir(parents=True)
        for program in programs:
            (binaries / os.path.basename(program)).symlink_to(program)
        if not found:
            found = run_blocks(text, folder, binaries)
        failed = False
        for line, message in found:
            print(f"{path}:{line}: {message}")
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
