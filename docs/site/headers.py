"""The headers of the API, with their plain `//` comments as Doxygen reads them.

A comment above a declaration, without an empty line between, describes it; so does one behind it on its line. The
comment at the top describes the header. Lines of a comment that are indented are code. A comment that an empty line
follows belongs to what comes after it in general, and is added to the header's.
"""

import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "tidy"))
from cpp_text import code_only, functions, includes  # noqa: E402

_FROM_INTERNAL = re.compile(r"^using internal::(\w+);$", re.MULTILINE)


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def all_headers(first="lockstep/lockstep.h"):
    """Every header of the library that a program gets with `first`, in the order of the folders' dependencies."""
    found, waiting = set(), [first]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += [name for _, name, quoted in includes(read(path)) if quoted]
    return sorted(found)


def _is_public(text):
    """Whether it declares something in namespace lockstep itself; a forward declaration is nothing."""
    code = _without_namespaces(code_only(text))
    inside = re.search(r"^namespace lockstep \{$(.*)^\}", code, re.MULTILINE | re.DOTALL)
    return bool(inside) and bool(re.sub(r"\b(?:class|struct|enum class) \w+;", "", inside[1]).strip())


def _without_namespaces(code):
    """Without what is in lockstep::internal and in namespaces of details, which are not for programs."""
    return re.sub(r"^namespace (?:internal|\w+_detail) \{$.*?^\}$", "", code, flags=re.MULTILINE | re.DOTALL)


def public_headers():
    """The headers that declare names of the API, and sync_batch_norm.h, which a program includes by itself."""
    chosen = {path for path in all_headers() if _is_public(read(path))} | {"lockstep/train/nn/sync_batch_norm.h"}
    return sorted(chosen)


def folders():
    """The library's folders in the order of their dependencies."""
    text = read("lockstep/CMakeLists.txt")
    return re.findall(r"[a-z_/]+", " ".join(re.findall(r"(?:set\(folders|APPEND folders) ([^)]*)\)", text)))


def _escaped(text):
    """Words of a comment without any meaning to Doxygen, which leaves alone what is between quotes."""
    parts = re.split(r'("[^"]*")', text.replace("`", ""))
    parts[::2] = [re.sub(r"([\\@<>#%&$])|(?<!\w)::(?=\w)", r"\\\g<0>", part) for part in parts[::2]]
    return "".join(parts)


def _as_code(lines):
    is_cpp = any(re.search(r"[;{}](?: *//.*| *\.\.\..*)?$|lockstep::", line) for line in lines)
    indent = min(len(line) - len(line.lstrip()) for line in lines if line.strip())
    opening, closing = ("@code{.cpp}", "@endcode") if is_cpp else ("@verbatim", "@endverbatim")
    return ["", opening, *(line[indent:] for line in lines), closing, ""]


def doxygen_lines(comment):
    """The lines of a comment, without slashes and their first blank, as Doxygen takes them."""
    result, code = [], []
    for line in [*comment, None]:
        if line is not None and (line.startswith("  ") or (code and not line.strip())):
            code.append(line)
            continue
        while code and not code[-1].strip():
            code.pop()
        if code:
            result += _as_code(code)
            code = []
        if line is not None:
            result.append(_escaped(line))
    return result


def _block(indent, comment):
    return [f"{indent}/// {line}".rstrip() for line in doxygen_lines(comment)]


def _head(comment, path):
    return ["/** @file", *doxygen_lines(comment), "*/"] if comment else [f"/// @file {path}"]


def _with_named(text, headers):
    """`using internal::Name;` replaced by the comment and the enumeration that it names."""

    def replace(match):
        pattern = rf"^((?:// [^\n]*\n)*enum class {match[1]}[ :\w]* \{{[^}}]*\}};[^\n]*)$"
        for path in headers:
            found = re.search(pattern, read(path), re.MULTILINE)
            if found:
                return found[1] + "\n"
        raise ValueError(f"no header defines internal::{match[1]} as an enumeration")

    return _FROM_INTERNAL.sub(replace, text)


class _Comments:
    """What has been read of a header, line by line."""

    def __init__(self):
        self.result, self.head = [], []
        self.pending, self.indent = [], ""  # a comment that may be about what follows
        self.column = None  # of a comment behind code, in the line before
        self.begun = False  # behind #pragma once

    def end_comment(self, before):
        """before: the code in the next line."""
        if before.strip() and self.begun:
            self.result += _block(self.indent, self.pending)
        elif self.pending:
            self.head += self.pending if not self.begun else ["", *self.pending]
        self.pending = []

    def add(self, line, code, in_function):
        comment = re.match(r"( *)// ?(.*)$", line)
        if in_function:
            self.end_comment(code)
            self.result.append(line if not comment else "")
        elif comment and self.column == len(comment[1]):
            self.result.append(f"{comment[1]}///< {_escaped(comment[2])}")
        elif comment:
            self.column = None
            self.indent = comment[1]
            self.pending.append(comment[2])
        else:
            self.end_comment(code)
            self._add_code(line, code)

    def _add_code(self, line, code):
        self.column = None
        self.begun = self.begun or line == "#pragma once"
        behind = re.match(r"(.*?\S) +// (.*)$", line) if len(code.rstrip()) < len(line) else None
        if behind and re.match(r"template <|enum class ", code):
            self.result += [f"/// {_escaped(behind[2])}", behind[1]]  # behind an enumeration it is of its last value
        elif behind and len(behind[1]) == len(code.rstrip()) and not code.startswith("}"):
            self.column = line.index("// ", len(behind[1]))
            self.result.append(f"{behind[1]}  ///< {_escaped(behind[2])}")
        else:
            self.result.append(line)


def filtered(path, text, headers=()):
    """The header as Doxygen gets it."""
    text = re.sub(r"^ *friend (?:class )?\w+;\n", "", _with_named(text, headers), flags=re.MULTILINE)
    code = code_only(text).split("\n")
    bodies = {line for first, last in functions(text) for line in range(first + 1, last)}
    comments = _Comments()
    for number, line in enumerate(text.split("\n"), 1):
        comments.add(line, code[number - 1], number in bodies)
    return "\n".join(_head(comments.head, path) + comments.result)
