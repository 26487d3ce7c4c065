"""What a tutorial page says, and whether it is true. text -> blocks -> offences (line, message).

Nothing is run here: tutorial_test.py does that, and describes the marks that blocks have.
"""

import difflib
import os
import re
from dataclasses import dataclass

from console import commands_of

FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^`]*)$")
GAP = re.compile(r"^\s*(?://|#)?\s*\.\.\.$")  # a line that stands for any number of lines
MARKS = {(), ("run",), ("run", "unordered"), ("elsewhere",)}


@dataclass
class Block:
    """info: what follows the backticks, as words. line: that of its first backticks."""

    line: int
    info: list
    lines: list

    def language(self):
        return self.info[0] if self.info else ""


def blocks_of(text):
    blocks, current, indent = [], None, ""
    for number, line in enumerate(text.split("\n"), 1):
        fence = FENCE.match(line)
        if current is None and fence:
            current, indent = Block(number, fence["info"].split(), []), fence["indent"]
        elif current is not None and line.strip() == "```":
            blocks.append(current)
            current = None
        elif current is not None:
            current.lines.append(line.removeprefix(indent).rstrip())
    if current is not None:
        raise ValueError(f"line {current.line}: a block without end")
    return blocks


def parts_of(lines):
    """The lines between gaps."""
    parts = [[]]
    for line in lines:
        if GAP.match(line):
            parts.append([])
        else:
            parts[-1].append(line)
    return [part for part in parts if any(part)]


def _indented_alike(part, source):
    """Whether the lines are equal but for one indentation that all of them have more or less."""
    differences = set()
    for ours, theirs in zip(part, source):
        if ours.strip() != theirs.strip():
            return False
        if ours.strip():
            differences.add(len(theirs) - len(theirs.lstrip()) - (len(ours) - len(ours.lstrip())))
    return len(differences) <= 1


def missing_part(lines, source):
    """The first line of a part that the source does not have, in this order; None if it has all of them."""
    position = 0
    for part in parts_of(lines):
        while part and not part[0]:
            part.pop(0)
        while part and not part[-1]:
            part.pop()
        last = len(source) - len(part)
        places = range(position, last + 1)
        found = next((at for at in places if _indented_alike(part, source[at : at + len(part)])), None)
        if found is None:
            return part[0]
        position = found + len(part)
    return None


def diff_of(before, after):
    """What `diff -U 0` shows, without places; lines of one change stay together."""
    return list(difflib.unified_diff(before, after, n=0, lineterm=""))[2:]


def changes_of(lines):
    """How many lines a diff changes: of each change the larger one of both sides."""
    changed, removed, added = 0, 0, 0
    for line in [*lines, "@@"]:
        if line.startswith("@@"):
            changed, removed, added = changed + max(removed, added), 0, 0
        removed += line.startswith("-")
        added += line.startswith("+")
    return changed


def _diff_offences(block, read):
    before, after, *most = block.info[1:]
    diff = diff_of(read(before).split("\n"), read(after).split("\n"))
    shown = [line for line in block.lines if line[:1] in ("-", "+")]
    if shown != [line.rstrip() for line in diff if not line.startswith("@@")]:
        yield block.line, f"the difference of {before} and {after} is\n" + "\n".join(diff)
    if most and changes_of(diff) > int(most[0]):
        yield block.line, f"{changes_of(diff)} lines change from {before} to {after}; at most {most[0]} are allowed"


def offences(text, read):
    """read(path): the text of a file of the project; FileNotFoundError if it has none."""
    for block in blocks_of(text):
        marks = block.info[1:]
        try:
            if block.language() == "diff":
                yield from _diff_offences(block, read)
            elif block.language() == "console":
                if tuple(marks) not in MARKS:
                    yield block.line, f"a console block is not marked by '{' '.join(marks)}'"
                elif not marks and any(command.output for command in commands_of(block.lines, block.line + 1)):
                    yield block.line, "output is shown, and nothing checks it: mark the block 'run' or 'elsewhere'"
            elif marks:
                missing = missing_part(block.lines, read(marks[0]).split("\n"))
                if missing is not None:
                    yield block.line, f"{marks[0]} has no such lines as those from '{missing.strip()}' on"
        except FileNotFoundError as error:
            yield block.line, f"there is no file {os.path.basename(str(error.filename or error))}"
        except ValueError as error:
            yield block.line, str(error)
