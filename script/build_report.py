"""What a build costs: script/build --report [preset]

Prints the twenty sources (or batches of sources) that took longest to compile, of those that the last builds compiled,
and the twenty public headers that bring most lines into a source, ATen/core/Tensor.h apart where they include it.
"""

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests/tidy"))

import tidy  # noqa: E402
import tree_rules  # noqa: E402

SHOWN = 20


def compile_seconds(directory):
    """[(seconds, object)] of the newest compilation of each object in ninja's log, dearest first."""
    newest = {}
    with open(os.path.join(directory, ".ninja_log"), encoding="utf-8") as log:
        for line in log:
            fields = line.rstrip("\n").split("\t")
            if len(fields) == 5 and fields[3].endswith((".o", ".gch")):
                newest[fields[3]] = (int(fields[1]) - int(fields[0])) / 1000
    return sorted(((seconds, name) for name, seconds in newest.items()), reverse=True)


def sources_of(directory, name):
    """The sources of a batch that is compiled together."""
    batch = os.path.join(directory, name.removesuffix(".o"))
    if "/Unity/" not in name or not os.path.exists(batch):
        return ""
    with open(batch, encoding="utf-8") as file:
        paths = [line.split('"')[1] for line in file if line.startswith('#include "')]
    return " ".join(os.path.basename(path) for path in paths)


def main():
    directory = os.path.join(ROOT, sys.argv[1])
    if not os.path.exists(os.path.join(directory, ".ninja_log")):
        sys.exit(f"build: nothing is built in {directory}; run script/build first")
    print("Seconds to compile, beside others:")
    for seconds, name in compile_seconds(directory)[:SHOWN]:
        print(f"{seconds:8.1f}  {name}  {sources_of(directory, name)}".rstrip())
    tree = tree_rules.Tree.of(tidy.read_project(ROOT))
    with open(os.path.join(directory, "CMakeCache.txt"), encoding="utf-8") as cache:
        torch = next((line.strip().split("=")[1] for line in cache if line.startswith("Torch_DIR:")), "")
    flags = tidy.torch_flags(os.path.join(torch, "../../../include"))
    print("\nLines that a public header brings:")
    costs = sorted(tree_rules.header_lines(tree, ROOT, os.environ.get("CXX", "g++"), flags), reverse=True)
    for lines, path, beyond in costs[:SHOWN]:
        print(f"{lines:8}  {path}" + (f"  (beyond {beyond})" if beyond else ""))


if __name__ == "__main__":
    main()
