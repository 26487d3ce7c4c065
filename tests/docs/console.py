"""Commands of console blocks, and whether what they print is what a page shows."""

import re
from dataclasses import dataclass

OF_LOAD = re.compile(r"\[lockstep\] rank \d+: .* (?:delays the others|is no longer a straggler)")


@dataclass
class Command:
    """A command of a console block, and the output that the page shows below it."""

    line: int
    text: str
    output: list


def commands_of(lines, first):
    """`$ ` begins a command, which goes on in the next line after a backslash; all other lines are output. first: the
    number of the first line."""
    commands, goes_on = [], False
    for number, line in enumerate(lines, first):
        if line.startswith("$ "):
            commands.append(Command(number, line[2:], []))
        elif goes_on:
            commands[-1].text += "\n" + line
        elif not commands:
            raise ValueError(f"line {number}: output without a command; one begins with '$ '")
        else:
            commands[-1].output.append(line)
        goes_on = line.endswith("\\") and (line.startswith("$ ") or goes_on)
    return commands


def _fits(pattern, line):
    return re.fullmatch(".*".join(map(re.escape, pattern.split("..."))), line) is not None


def _fits_in_order(expected, printed):
    """Parts between gaps, each as far up as it fits."""
    gaps = [index for index, line in enumerate(expected) if line == "..."]
    if not gaps:
        return len(expected) == len(printed) and all(map(_fits, expected, printed))
    head, tail = expected[: gaps[0]], expected[gaps[-1] + 1 :]
    if len(head) + len(tail) > len(printed) or not all(map(_fits, head, printed)):
        return False
    end = len(printed) - len(tail)
    position = len(head)
    for begin, behind in zip(gaps, gaps[1:]):
        part = expected[begin + 1 : behind]
        places = range(position, end - len(part) + 1)
        found = next((at for at in places if all(map(_fits, part, printed[at:end]))), None)
        if found is None:
            return False
        position = found + len(part)
    return all(map(_fits, tail, printed[end:]))


def is_output(expected, printed, in_order=True):
    """Whether the lines that a page shows are those that were printed. Three dots stand for any characters, and on a
    line of their own for any lines. Without order each printed line fits one that is shown, and the other way round.
    Whether a rank is late depends on the load of the machine: a page that is not about it need not show who is."""
    if not any(map(OF_LOAD.search, expected)):
        printed = [line for line in printed if not OF_LOAD.search(line)]
    if in_order:
        return _fits_in_order(expected, printed)
    left = list(printed)
    for pattern in sorted(expected, key=lambda line: "..." in line):
        if pattern == "...":
            continue
        found = next((line for line in left if _fits(pattern, line)), None)
        if found is None:
            return False
        left.remove(found)
    return not left or "..." in expected
