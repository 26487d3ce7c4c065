"""Rules about one file's text. Each takes (path, text) and yields (line, message)."""

import ast
import re

from cpp_text import code_only, functions, includes, without_comments

# Lines, of files whose paths begin and end so; the first that fits counts.
MAX_FILE_LINES = [("lockstep/", ".h", 150), ("lockstep/", ".cpp", 400), ("", "", 600)]
MAX_FUNCTION_LINES = [("lockstep/", "", 60), ("", "", 70)]
MAX_COLUMNS = 120

_CPP = (".h", ".cpp")
_BANNED = re.compile(
    r"\b(?:TODO|FIXME|XXX|HACK)\b"
    r"|(?i:\bnot (?:yet )?implemented\b|\bunimplemented\b|\bstub(?:s|bed)?\b|\bplaceholder\b|\bissues? #)"
)
_FORBIDDEN = {
    "torch::load": r"\btorch\s*::\s*load\s*\(",
    "pickle_load": r"\bpickle_load\b",
    "jit::load": r"\bjit\s*::\s*load\b",
    "system()": r"(?<![\w.>])(?:std\s*::\s*)?system\s*\(",
    "popen()": r"\bpopen\s*\(",
    "dlopen()": r"\bdlopen\s*\(",
}


def _most(path, limits):
    return next(lines for begin, end, lines in limits if path.startswith(begin) and path.endswith(end))


def length(path, text):
    lines, most = text.count("\n"), _most(path, MAX_FILE_LINES)
    if lines > most:
        yield most + 1, f"the file has {lines} lines; at most {most} are allowed"
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > MAX_COLUMNS:
            yield number, f"the line has {len(line)} columns; at most {MAX_COLUMNS} are allowed"


def function_length(path, text):
    if path.endswith(".py"):
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        spans = [(node.lineno, node.end_lineno) for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]
    elif path.endswith(_CPP):
        spans = functions(text)
    else:
        return
    most = _most(path, MAX_FUNCTION_LINES)
    for first, last in spans:
        if last - first + 1 > most:
            yield first, f"the function has {last - first + 1} lines; at most {most} are allowed"


def banned_words(path, text):
    for number, line in enumerate(text.split("\n"), 1):
        match = _BANNED.search(line)
        if match:
            yield number, f"'{match[0]}' says that something is unfinished or refers to a tracker"


def forbidden_calls(path, text):
    if not path.endswith(_CPP) or path.startswith("tests/"):
        return
    for number, line in enumerate(code_only(text).split("\n"), 1):
        for name, pattern in _FORBIDDEN.items():
            if re.search(pattern, line):
                yield number, f"{name} may execute what it is given; it is not allowed here"


# What may open files for writing: the one way; memory of another rank, which has no name of its own; settings of the
# kernel's groups of processes, which nobody else can put there.
_WRITERS = ("lockstep/base/open_for_writing.cpp", "lockstep/comm/transport/shared_arena.cpp",
            "lockstep/job/launch/rank_cgroups.cpp")
_WRITES = re.compile(
    r"\bopen(?:at2?)?\s*\([^;]*?\bO_(?:WRONLY|RDWR|CREAT|TRUNC|APPEND|TMPFILE)\b"
    r"|\b(?:creat|fopen|freopen|fdopen|mkstemps?|mkostemps?|tmpfile)\s*\("
    r"|\b(?:std\s*::\s*)(?:basic_)?o?fstream\b"
    r"|\bfilesystem\s*::\s*copy(?:_file)?\s*\("
)


def opens_for_writing(path, text):
    """Files are written through AtomicFile and open_for_writing.h only, which follow no links and wait for no FIFO."""
    if not path.endswith(_CPP) or path in _WRITERS or not path.startswith(("lockstep/", "tools/", "python/")):
        return
    code = without_comments(text)
    for match in _WRITES.finditer(code):
        statement = code[match.start() : (code + ";").index(";", match.start())]
        if '"/dev/null"' not in statement:
            line, name = code.count("\n", 0, match.start()) + 1, re.match(r"[\w:\s]*\w", match[0])[0]
            yield line, f"{name}: files are written by AtomicFile or open_for_writing.h"


def file_name(path, text):
    name = path.rsplit("/", 1)[-1]
    if re.search(r"\.(h|hpp|hh|cpp|cc|cxx|py)$", name) and not re.fullmatch(r"[a-z0-9_]+\.(h|cpp|py)", name):
        yield 1, f"'{name}' is not snake_case with the ending .h, .cpp or .py"


def header_shape(path, text):
    if not path.endswith(".h"):
        return
    if not text.startswith("//"):
        yield 1, "a header opens with a comment that states its contract"
    if not re.search(r"^#pragma once$", text, re.MULTILINE):
        yield 1, "#pragma once is missing"
    for number, included, _ in includes(text):
        if included == "lockstep/base/format.h" or included.startswith(("fmt/", "spdlog/")):
            if path not in ("lockstep/base/format.h", "cmake/precompiled_std.h"):
                yield number, f"{included} may be included by .cpp files only"
        if path.startswith("lockstep/") and re.match(r"cuda|nccl|(c10|ATen|torch/csrc)/cuda/", included):
            yield number, f"{included} may be included by .cpp files only: programs are compiled without CUDA's headers"


def own_header_first(path, text):
    """A source that has a header of its own includes it first, which proves that it needs nothing before it."""
    if not (path.startswith("lockstep/") and path.endswith(".cpp")):
        return
    own = path[: -len(".cpp")] + ".h"
    for position, (number, included, _) in enumerate(includes(text)):
        if included == own and position > 0:
            yield number, f"{own} is to be included first"


TEXT_RULES = (
    length, function_length, banned_words, forbidden_calls, opens_for_writing, file_name, header_shape, own_header_first
)
