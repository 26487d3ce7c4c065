"""The fenced blocks of a Markdown page, and what a comment right above one says about it.

    <!-- program: desync -->               a C++ block: all of a program, which console blocks start as ./desync
    <!-- resumes: slurm -->                a C++ block: a training that goes on after it was stopped (resume_test.py)
    <!-- compiled -->                      a C++ block, on a page whose other ones are not compiled
    <!-- not run: needs Slurm -->          a console block that nobody runs here, and why
    <!-- in any order -->                  a console block whose lines come in no fixed order
    <!-- exit code 3 -->                   of the last command of a console block; without it, 0
"""

import re

_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NOTE = re.compile(r"<!-- (.*?) -->\n")


class Block:
    def __init__(self, page, match, text):
        self.page, self.language, self.body = page, match[1], match[2]
        self.line = text.count("\n", 0, match.start()) + 2  # of the first line of the body
        self.notes = []
        above = text[: match.start()]
        while (note := re.search(_NOTE.pattern + r"\Z", above)) is not None:
            self.notes.insert(0, note[1])
            above = above[: note.start()]

    def note(self, beginning):
        """What stands behind "beginning" in a comment above; None without one."""
        for note in self.notes:
            if note == beginning or note.startswith((beginning + ":", beginning + " ")):
                return note[len(beginning):].lstrip(": ")
        return None


def blocks(page, text):
    return [Block(page, match, text) for match in _FENCE.finditer(text)]


def blocks_of(path, page):
    with open(path, encoding="utf-8") as file:
        return blocks(page, file.read())
