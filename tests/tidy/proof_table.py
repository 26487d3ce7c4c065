"""docs/FAULTS.md and docs/FEATURES.md: what we promise, and the tests that prove it.

The rows are in faults.txt and features.txt beside this file. A test is marked by a comment above it, in a
CMakeLists.txt above the call that adds it:

    // fault: 16, S3
    # feature: A-01, B-02

A row of features.txt may have a third column: "open: what is missing", "declined: why", "GPU" for what only a machine
with a GPU shows (the tests are skipped on others), or "GPU open: what is missing". All other rows need a mark.

python3 tests/tidy/proof_table.py writes the pages; the test tidy_rules fails while they are out of date.
"""

import dataclasses
import itertools
import os
import re

_TEST = re.compile(r'^\s*(?:TEST_CASE\w*\((?:\w+, )?"(?P<title>(?:[^"\\]|\\.)*)"|def test_(?P<name>\w+)'
                   r'|\w*(?:test|example)\w*\((?:NAME )?(?P<entry>\w+))')
_STATUS = re.compile(r"(?:GPU|(?:GPU )?open: \S.*|declined: \S.*)?$")


@dataclasses.dataclass(frozen=True)
class Table:
    mark: str  # the word of its marks in tests
    rows: str
    page: str
    head: str  # of the page
    columns: tuple[str, ...]  # the texts of a row between its number and its proof
    has_status: bool


@dataclasses.dataclass(frozen=True)
class Row:
    number: str
    texts: tuple[str, ...]
    status: str = ""

    @property
    def is_gpu(self):
        return self.status.startswith("GPU")

    @property
    def missing(self):
        return self.status.partition("open: ")[2]

    @property
    def declined(self):
        return self.status.startswith("declined: ")


FAULTS = Table("fault", "tests/tidy/faults.txt", "docs/FAULTS.md", """\
# Faults

What can go wrong, what must happen then, and the tests that prove it. Written by `tests/tidy/proof_table.py` from
marks in the tests; change those, or [the rows](../tests/tidy/faults.txt), and run it. S1 to S11 are the rules of
[SECURITY.md](../SECURITY.md).

""", ("What goes wrong", "What must happen"), False)

FEATURES = Table("feature", "tests/tidy/features.txt", "docs/FEATURES.md", """\
# Features

What Lockstep promises, and the tests that prove it. Written by `tests/tidy/proof_table.py` from marks in the tests;
change those, or [the rows](../tests/tidy/features.txt), and run it. *K* is the number of ranks and *N* that of
samples. A test that needs a GPU is skipped on a machine without one. What must happen when something fails is in
[Faults](FAULTS.md).

""", ("What it is",), True)

TABLES = (FAULTS, FEATURES)


def read_rows(table, text):
    """A list for each part of the table: its title ("" for a table without parts), then its rows."""
    parts = [[""]]
    for line in filter(str.strip, text.splitlines()):
        if line.startswith("# "):
            parts.append([line[2:].strip()])
            continue
        number, *texts = [part.strip() for part in line.split("|")]
        width = len(table.columns)
        if len(texts) < width or len(texts) > width + table.has_status:
            raise ValueError(f"{table.rows}: this row has {len(texts) + 1} columns: {line}")
        parts[-1].append(Row(number, tuple(texts[:width]), *texts[width:]))
    return [part for part in parts if part != [""]]


def find_marks(table, path, text):
    """(line, numbers, test's title or None) of each of a table's marks in a file."""
    lines = text.split("\n")
    pattern = re.compile(rf"^\s*(?://|#) {table.mark}: (.+)$")
    for number, line in enumerate(lines, 1):
        mark = pattern.match(line)
        if not mark:
            continue
        below = itertools.dropwhile(lambda line: re.match(r"\s*(?:@|#|//)", line), lines[number:])
        test = _TEST.match(next(below, ""))
        title = test and (test["title"] or (test["entry"] or test["name"].replace("_", " ")).rstrip("_"))
        yield number, [each.strip() for each in mark[1].split(",")], title


def _tests(files):
    return {path: text for path, text in files.items()
            if path.endswith((".cpp", ".py", "CMakeLists.txt"))
            and path.startswith(("tests/", "python/tests/", "bench/", "examples/"))
            and not path.startswith("tests/tidy/")}


def _find_proofs(table, files):
    """number -> [(path, title)] of every number that is marked anywhere"""
    proofs = {}
    for path, text in sorted(_tests(files).items()):
        for _, numbers, title in find_marks(table, path, text):
            for number in numbers if title else ():
                if (path, title) not in proofs.setdefault(number, []):
                    proofs[number].append((path, title))
    return proofs


def _proof_cell(row, tests):
    links = "<br>".join(f"[{_short_name(path)}](../{path}): {title.replace('|', '/')}" for path, title in tests)
    if row.declined:
        return row.status
    words = ["GPU"] if row.is_gpu else []
    if row.missing:
        words.append(f"not yet: {row.missing}")
    elif not links:
        words.append("none so far")
    return "<br>".join([*words, links] if links else words)


def _short_name(path):
    folder, name = os.path.split(path)
    return f"{os.path.basename(folder)}/{name}" if name == "CMakeLists.txt" else name


def _summary(rows, proofs):
    shown = [row for row in rows if row.number in proofs and not row.missing and not row.declined]
    on_gpus = sum(row.is_gpu for row in shown)
    declined = sum(row.declined for row in rows)
    return (f"{len(shown) - on_gpus} of {len(rows)} rows are proven"
            + f", {on_gpus} more on a machine with a GPU" * (on_gpus > 0)
            + f", {declined} are declined" * (declined > 0) + ".")


def make_page(table, files):
    parts = read_rows(table, files[table.rows])
    proofs = _find_proofs(table, files)
    lines = [_summary([row for _, *rows in parts for row in rows], proofs)]
    for title, *rows in parts:
        lines += ["", f"## {title}"] if title else []
        lines += ["", "| | " + " | ".join((*table.columns, "Proof")) + " |"]
        lines.append("|---" * (len(table.columns) + 2) + "|")
        for row in rows:
            cells = (row.number, *row.texts, _proof_cell(row, proofs.get(row.number, [])))
            lines.append("| " + " | ".join(cells) + " |")
    return table.head + "\n".join(lines) + "\n"


def _check_marks(table, files, known):
    for path, text in _tests(files).items():
        for line, numbers, title in find_marks(table, path, text):
            if title is None:
                yield path, line, "this mark stands above no test"
            for number in numbers:
                if number not in known:
                    yield path, line, f"there is no {table.mark} {number} in {table.rows}"


def _check_rows(table, rows, proofs):
    for row in rows:
        if not _STATUS.match(row.status):
            yield table.rows, 1, f"{row.number}: a status is open, declined, GPU or GPU open, each with its reason"
        elif row.declined and row.number in proofs:
            yield table.rows, 1, f"{row.number} is declined, but {proofs[row.number][0][0]} proves it"
        elif table.has_status and not (row.number in proofs or row.missing or row.declined):
            yield table.rows, 1, f"{row.number} is neither proven by a test, nor declined, nor listed as open"


def check_tables(tree):
    """Marks name rows that exist, and stand above tests; rows are proven or say why not; the pages are up to date."""
    for table in TABLES:
        if table.rows not in tree.files:
            continue
        rows = [row for _, *rows in read_rows(table, tree.files[table.rows]) for row in rows]
        if len({row.number for row in rows}) != len(rows):
            yield table.rows, 1, "two rows have the same number"
        yield from _check_marks(table, tree.files, {row.number for row in rows})
        yield from _check_rows(table, rows, _find_proofs(table, tree.files))
        if tree.files.get(table.page) != make_page(table, tree.files):
            yield table.page, 1, "is out of date; run tests/tidy/proof_table.py"


def main():
    import tidy

    files = tidy.read_project(tidy.ROOT)
    for table in TABLES:
        with open(os.path.join(tidy.ROOT, table.page), "w", encoding="utf-8") as file:
            file.write(make_page(table, files))


if __name__ == "__main__":
    main()
