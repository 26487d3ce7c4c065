"""Words that texts for users do without: error and help texts, pages, comments of public headers."""

import re

from cpp_text import code_only, includes, without_comments

# Each makes a reader stop: private or old-fashioned ways to say what a plain word says.
_ODD = {
    r"of (?:his|her|its|our|their|your|(?:a|the) [\w-]+'s|[\w-]+s') own(?=[^\w\s]|$| and | in )":
        "its own ...; separate",
    r"whoever": "the rank that; anybody who",
    r"so many": "that many; too many",
    r"anew": "again; new",
    r"alike": "in the same way; equal",
    r"in front of": "before",
    r"tells? of": "describes; reports",
    r"it is none": "it is not",
    r"cut short": "truncated; interrupted",
    r"once more": "again; repeat",
    r"holds? up": "delays",
    r"stands? for": "is; represents",
    r"floating types?": "floating-point type",
    r"does not know": "has no; cannot determine",
}
_ODD_WORDS = re.compile(r"(?<![\w`-])(?:" + "|".join(_ODD) + r")(?![\w`-])", re.IGNORECASE)
_GENERATED = ("docs/FAULTS.md", "docs/FEATURES.md")  # of the names of tests
_HISTORY = ("CHANGELOG.md",)


def _literals(text):
    """The text with everything blanked out but the contents of string literals; line numbers and columns stay."""
    code, blanked = without_comments(text), code_only(text)
    shown = "".join(a if a == "\n" or (a != b and b == " ") else " " for a, b in zip(code, blanked))
    return shown


def _comments(text):
    code = without_comments(text)
    return "".join(a if a == "\n" or (a != b and b == " ") else " " for a, b in zip(text, code))


def _public_headers(tree):
    """What lockstep.h includes, itself included."""
    own = "lockstep/lockstep.h"
    return {own} | {path for _, path, quoted in includes(tree.files.get(own, "")) if quoted}


def plain_words(tree):
    public = _public_headers(tree)
    for path, text in tree.files.items():
        texts = []
        if path.endswith(".md") and not path.startswith("tests/") and path not in _GENERATED + _HISTORY:
            texts = [text]
        elif path.endswith((".h", ".cpp")) and path.startswith(("lockstep/", "tools/", "examples/", "python/")):
            texts = [_literals(text)] + ([_comments(text)] if path in public else [])
        for shown in texts:
            for number, line in enumerate(shown.split("\n"), 1):
                match = _ODD_WORDS.search(line)
                if match:
                    rest = line[match.start() :]
                    instead = next(plain for odd, plain in _ODD.items() if re.match(odd, rest, re.IGNORECASE))
                    yield path, number, f"'{match[0]}' is hard to read; plain words: {instead}"
