"""Reading C++ well enough for style rules: comments and literals blanked out, and where functions begin and end."""

import re

_TOKEN = re.compile(
    r'//[^\n]*'
    r'|/\*.*?\*/'
    r'|(?:u8|[uUL])?R"(?P<tag>[^()\\ ]{0,16})\(.*?\)(?P=tag)"'
    r'|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])*'",  # 1'000 is a number
    re.DOTALL,
)


def _blank(text):
    return re.sub(r"[^\n]", " ", text)


def without_comments(text):
    """The text with comments blanked out; line numbers stay."""
    return _TOKEN.sub(lambda m: _blank(m[0]) if m[0].startswith("/") else m[0], text)


def code_only(text):
    """The text with comments and the contents of literals blanked out; line numbers stay."""

    def replace(match):
        token = match[0]
        if token.startswith("/"):
            return _blank(token)
        return token[0] + _blank(token[1:-1]) + token[-1]

    return _TOKEN.sub(replace, text)


def includes(text):
    """(line, path, is_quoted) of every #include."""
    found = []
    for number, line in enumerate(without_comments(text).split("\n"), 1):
        match = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
        if match:
            found.append((number, match[2], match[1] == '"'))
    return found


_NOISE = re.compile(r"\btemplate\s*<.*?>\s*(?=\w)|\balignas\s*\([^()]*\)|\[\[.*?\]\]", re.DOTALL)
_CONTAINER = re.compile(r"\b(namespace|class|struct|union|enum)\b|\bextern\s+\"")


def _opens_container(head):
    """True if the code before a brace makes it a namespace, a type or an enum rather than a function."""
    head = _NOISE.sub("", head)
    return bool(_CONTAINER.search(head)) and ")" not in head


def functions(text):
    """(first line, last line) of every function body, braces included. Nested lambdas belong to their function."""
    code = re.sub(r"^[ \t]*#(?:.*\\\n)*.*", lambda m: _blank(m[0]), code_only(text), flags=re.MULTILINE)
    found = []
    stack = []  # an entry for each open brace: "container", the line if it begins a function, or None
    head_start = 0
    line = 1
    for position, character in enumerate(code):
        if character == "\n":
            line += 1
        elif character == "{":
            head = code[head_start:position]
            inside_function = any(entry != "container" for entry in stack)
            if not inside_function and _opens_container(head):
                stack.append("container")
            elif not inside_function and ")" in head:
                stack.append(line)
            else:
                stack.append(None)
            head_start = position + 1
        elif character == "}":
            entry = stack.pop() if stack else None
            if isinstance(entry, int):
                found.append((entry, line))
            head_start = position + 1
        elif character == ";":
            head_start = position + 1
    return found
