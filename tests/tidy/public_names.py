"""The names of the API: what the headers that lockstep.h includes declare in namespace lockstep itself.

public_names.py    writes public_names.txt
"""

import os
import re
import sys

from cpp_text import code_only, includes

UMBRELLA = "lockstep/lockstep.h"
# Headers of the API that a program includes by itself.
ALONE = ("lockstep/train/nn/sync_batch_norm.h",)
LIST = "tests/tidy/public_names.txt"

_NAMESPACE = re.compile(r"\bnamespace\s+([\w:]*)\s*$")
_TYPE = re.compile(r"\b(?:class|struct|union|enum class|enum struct|enum)\s+(\w+)\s*(?:final\s*)?(?::|$)")
_NAMED = re.compile(r"\b(?:using|concept)\s+(\w+)\s*=|\busing\s+[\w:]+::(\w+)\s*$")
_FUNCTION = re.compile(r"(?:^|[\s*&>])(\w+|operator\W+)\s*\(")
_VARIABLE = re.compile(r"(\w+)\s*(?:=|$)")


def _without_angles(head):
    """Without template arguments and parameters, the condition of a requires clause and attributes."""
    head = re.sub(r"\[\[.*?\]\]|\balignas\s*\([^()]*\)", " ", head, flags=re.DOTALL)
    head = head.replace("->", " ").replace("<<", "").replace(">>", "> >")
    previous = None
    while previous != head:
        previous, head = head, re.sub(r"<[^<>]*>", " ", head)
    return head


def _name_of(head, opens):
    """The name that a declaration in namespace lockstep introduces; None if it introduces none."""
    head = " ".join(_without_angles(head).split())
    head = re.sub(r"^(template )+", "", head)
    if not head or head.startswith(("namespace", "friend", "static_assert", "#", "extern")):
        return None
    named = _NAMED.search(head)
    if named:
        return named[1] or named[2]
    is_type = _TYPE.search(head) if "(" not in re.split(r"\brequires\b", head)[0] else None
    if is_type:
        return is_type[1] if opens else None  # a forward declaration is nothing
    head = re.sub(r"^requires\b.*?(?=\b(?:auto|void|bool|int|double|std|inline|constexpr|struct|class)\b)", "", head)
    is_type = re.match(r"(?:class|struct) (\w+)", head)
    if is_type:
        return is_type[1] if opens else None
    function = _FUNCTION.search(head)
    if function and function[1] == "TORCH_MODULE":
        return re.search(r"TORCH_MODULE\((\w+)", head)[1]
    if function:
        return None if function[1].startswith("operator") or "::" in head[: function.start(1)].split(" ")[-1] \
            else function[1]
    variable = _VARIABLE.search(head)
    return variable[1] if variable and len(head.split()) > 1 else None


def names_in(text):
    """The names that a header declares in namespace lockstep itself."""
    code = re.sub(r"^[ \t]*#(?:.*\\\n)*.*", "", code_only(text), flags=re.MULTILINE)
    found, stack, begin, parentheses = set(), [], 0, 0
    for position, character in enumerate(code):
        parentheses += {"(": 1, ")": -1}.get(character, 0)
        if character not in "{};" or parentheses:
            continue
        head = code[begin:position]
        begin = position + 1
        if character == "}":
            stack = stack[:-1]
            continue
        namespace = _NAMESPACE.search(head)
        if stack == ["lockstep"] and not namespace:
            name = _name_of(head, character == "{")
            if name is not None:
                found.add(name)
        if character == "{":
            stack.append(namespace[1] if namespace else "")
    return found


def public_names(files):
    """By name: the headers that declare it. files: path -> text of the project."""
    waiting, seen, names = [UMBRELLA, *ALONE], set(), {}
    while waiting:
        path = waiting.pop()
        if path in seen or path not in files:
            continue
        seen.add(path)
        waiting += [included for _, included, quoted in includes(files[path]) if quoted]
        for name in names_in(files[path]):
            names.setdefault(name, []).append(path)
    return names


def check_public_names(tree):
    """The committed list has all names of the API, and no others: so that each new one is seen in a review."""
    listed = set(tree.files.get(LIST, "").split())
    declared = public_names(tree.files)
    for name in sorted(declared.keys() - listed):
        advice = "move it to lockstep::internal, or add it with tests/tidy/public_names.py"
        yield sorted(declared[name])[0], 1, f"{name} is a new public name: {advice}"
    for name in sorted(listed - declared.keys()):
        yield LIST, 1, f"no public header declares {name}: run tests/tidy/public_names.py, and note it in CHANGELOG.md"


if __name__ == "__main__":
    from tidy import ROOT, read_project

    with open(os.path.join(ROOT, LIST), "w", encoding="utf-8") as out:
        out.write("".join(f"{name}\n" for name in sorted(public_names(read_project(ROOT)))))
    sys.exit(0)
