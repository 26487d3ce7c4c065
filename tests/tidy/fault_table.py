"""docs/FAULTS.md: what can go wrong, what must happen then, and the tests that prove it.

The rows are in faults.txt beside this file. A test is marked by a comment of its own, above it or above its TEST_CASE:

    // fault: 16, S3
    # fault: 9

python3 tests/tidy/fault_table.py writes the page; the test tidy_rules fails while it is out of date.
"""

import itertools
import os
import re

ROWS = "tests/tidy/faults.txt"
PAGE = "docs/FAULTS.md"
_MARK = re.compile(r"^\s*(?://|#) fault: (.+)$")
_TEST = re.compile(r'^\s*(?:TEST_CASE\w*\((?:\w+, )?"(?P<title>(?:[^"\\]|\\.)*)"|def test_(?P<name>\w+))')
_HEAD = """\
# Faults

What can go wrong, what must happen then, and the tests that prove it. Written by `tests/tidy/fault_table.py` from
marks in the tests; change those, or [the rows](../tests/tidy/faults.txt), and run it. S1 to S11 are the rules of
[SECURITY.md](../SECURITY.md).

"""


def read_rows(text):
    """[(number, fault, promise)]"""
    return [tuple(part.strip() for part in line.split("|")) for line in text.splitlines() if line.strip()]


def find_marks(path, text):
    """(line, numbers, test's title or None) of each mark in a file."""
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        mark = _MARK.match(line)
        if not mark:
            continue
        below = itertools.dropwhile(lambda line: re.match(r"\s*(?:@|#|//)", line), lines[number:])
        test = _TEST.match(next(below, ""))
        title = test and (test["title"] or test["name"].replace("_", " "))
        yield number, [each.strip() for each in mark[1].split(",")], title


def _tests(files):
    return {path: text for path, text in files.items()
            if path.endswith((".cpp", ".py")) and path.startswith(("tests/", "python/tests/", "bench/", "examples/"))
            and not path.startswith("tests/tidy/")}


def make_page(files):
    rows = read_rows(files[ROWS])
    proofs = {number: [] for number, _, _ in rows}
    for path, text in sorted(_tests(files).items()):
        for _, numbers, title in find_marks(path, text):
            for number in numbers:
                if title and number in proofs:
                    proofs[number].append((path, title))
    proven = sum(1 for tests in proofs.values() if tests)
    lines = [f"{proven} of {len(rows)} rows are proven.", "", "| | What goes wrong | What must happen | Proof |",
             "|---|---|---|---|"]
    for number, fault, promise in rows:
        tests = "<br>".join(f"[{os.path.basename(path)}](../{path}): {title.replace('|', '/')}"
                            for path, title in proofs[number])
        lines.append(f"| {number} | {fault} | {promise} | {tests or 'none so far'} |")
    return _HEAD + "\n".join(lines) + "\n"


def faults(tree):
    """Marks name rows that exist, and stand above tests; the page is up to date."""
    if ROWS not in tree.files:
        return
    known = {number for number, _, _ in read_rows(tree.files[ROWS])}
    for path, text in _tests(tree.files).items():
        for line, numbers, title in find_marks(path, text):
            if title is None:
                yield path, line, "this mark stands above no test"
            for number in numbers:
                if number not in known:
                    yield path, line, f"there is no fault {number} in {ROWS}"
    if tree.files.get(PAGE) != make_page(tree.files):
        yield PAGE, 1, "is out of date; run tests/tidy/fault_table.py"


def main():
    import tidy

    root = tidy.ROOT
    files = tidy.read_project(root)
    with open(os.path.join(root, PAGE), "w", encoding="utf-8") as file:
        file.write(make_page(files))


if __name__ == "__main__":
    main()
