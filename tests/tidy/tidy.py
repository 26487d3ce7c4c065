"""Checks the project's style rules and prints offenders as file:line: message. Needs only the standard library.

tidy.py rules [--build DIR]             lengths, names, words, calls, includes, links; with a build, also dead files
                                        and examples that no test runs
tidy.py headers [--compiler CXX] [--torch DIR]
                                        every header of a torch-free folder compiles alone, and what public headers
                                        cost those who include them; DIR is the include folder of libtorch
tidy.py format [--clang-format PATH]    what clang-format would change
"""

import argparse
import os
import re
import shutil
import subprocess
import sys

import proof_table
import public_names
import text_rules
import tree_rules
import word_rules

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FOLDERS = ("lockstep", "tools", "examples", "bench", "python", "tests", "cmake", "script", "docs", "share", ".ci")
CODE = (".h", ".hpp", ".hh", ".cpp", ".cc", ".cxx", ".py", ".cmake", ".in", "CMakeLists.txt")
SKIPPED_FOLDERS = {"__pycache__", "build"}
SKIPPED = 77  # the exit status that ctest takes as "skipped"


def is_code(path):
    return path.endswith(CODE) or path.startswith(("script/", ".ci/"))


def read_project(root):
    """path -> text of every file of the project that people write."""
    paths = [name for name in os.listdir(root) if name.endswith(".md") or name in ("CMakeLists.txt", "LICENSE")]
    for folder in FOLDERS:
        for directory, names, files in os.walk(os.path.join(root, folder)):
            names[:] = [name for name in names if name not in SKIPPED_FOLDERS]
            paths += [os.path.relpath(os.path.join(directory, file), root) for file in files]
    texts = {}
    for path in sorted(paths):
        try:
            with open(os.path.join(root, path), encoding="utf-8") as file:
                texts[path] = file.read()
        except UnicodeDecodeError:
            texts[path] = ""  # a picture, or recorded data of a test
    return texts


def check_rules(builds):
    tree = tree_rules.Tree.of(read_project(ROOT))
    for path, text in tree.files.items():
        rules = text_rules.TEXT_RULES if is_code(path) else (text_rules.banned_words,)
        for rule in rules:
            if rule is text_rules.banned_words and path.startswith("tests/tidy/"):
                continue  # it has to name them
            for line, message in rule(path, text):
                yield path, line, message
    for rule in (tree_rules.include_direction, tree_rules.rooms, tree_rules.torch_wall, tree_rules.variables,
                 tree_rules.process_wide, tree_rules.document_links, tree_rules.dear_includes,
                 proof_table.check_tables, word_rules.plain_words, public_names.check_public_names):
        yield from rule(tree)
    if builds and all(os.path.exists(os.path.join(build, "compile_commands.json")) for build in builds):
        compiled = set().union(*(tree_rules.compiled_files(build, ROOT) for build in builds))
        yield from tree_rules.dead_files(tree, compiled)
        yield from tree_rules.examples_are_tests(tree, tree_rules.test_commands(builds[0]))


def torch_flags(include):
    return ["-isystem", include, "-isystem", os.path.join(include, "torch/csrc/api/include")]


def check_format(clang_format):
    sources = [path for path in read_project(ROOT) if path.endswith((".h", ".cpp"))]
    yield from format_offenders(clang_format, ROOT, sources)


def format_offenders(clang_format, root, sources):
    command = [clang_format, "--dry-run", "--Werror", *sources]
    output = subprocess.run(command, cwd=root, capture_output=True, text=True).stderr
    found = re.findall(r"^(.+?):(\d+):\d+: error: ", output, re.MULTILINE)
    for path, line in dict.fromkeys(found):
        yield path, int(line), "clang-format would write this differently; script/format does it"


def report(offenders):
    count = 0
    for path, line, message in offenders:
        print(f"{path}:{line}: {message}")
        count += 1
    if count:
        print(f"{count} offence{'s' if count > 1 else ''}")
    return int(count > 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("check", choices=("rules", "headers", "format"))
    parser.add_argument("--build", nargs="+", default=[], help="builds that together compile everything, release first")
    parser.add_argument("--compiler", default="g++")
    parser.add_argument("--torch", help="the include folder of libtorch")
    parser.add_argument("--clang-format", default=os.path.join(ROOT, ".venv/bin/clang-format"))
    arguments = parser.parse_args()
    if arguments.check == "format":
        if not shutil.which(arguments.clang_format):
            print(f"skipped: {arguments.clang_format} is missing; script/bootstrap installs it")
            return SKIPPED
        return report(check_format(arguments.clang_format))
    if arguments.check == "headers":
        tree = tree_rules.Tree.of(read_project(ROOT))
        offences = list(tree_rules.lone_headers(tree, ROOT, arguments.compiler))
        if arguments.torch:
            offences += tree_rules.header_costs(tree, ROOT, arguments.compiler, torch_flags(arguments.torch))
        return report(offences)
    return report(check_rules(arguments.build))


if __name__ == "__main__":
    sys.exit(main())
