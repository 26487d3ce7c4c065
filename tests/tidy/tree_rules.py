"""Rules about the project as a whole. Each takes a Tree and yields (path, line, message)."""

import fnmatch
import json
import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from cpp_text import code_only, includes

_TORCH = re.compile(r"(torch|ATen|c10|caffe2)/")


@dataclass
class Tree:
    """The files of the project: path -> text. `folders` are those of lockstep/CMakeLists.txt in dependency order."""

    files: dict
    folders: list = field(default_factory=list)
    torch_free: set = field(default_factory=set)

    @staticmethod
    def of(files):
        text = files["lockstep/CMakeLists.txt"]
        core = re.search(r"set\(folders ([^)]*)\)", text)[1].split()
        with_torch = " ".join(re.findall(r"list\(APPEND folders ([^)]*)\)", text)).split()
        return Tree(files, core + with_torch, set(core))

    def cpp(self):
        return {path: text for path, text in self.files.items() if path.endswith((".h", ".cpp"))}


# Of which wings a wing of lockstep/ may include headers, besides its own.
_WINGS = {"base": (), "comm": ("base",), "formats": ("base",), "train": ("base", "comm", "formats"),
          "job": ("base", "comm")}


def _folder_of(tree, path):
    """The innermost folder of lockstep/CMakeLists.txt that holds it, else the first below lockstep/; None outside."""
    parts = path.split("/")
    if parts[0] != "lockstep" or len(parts) <= 2:
        return None
    holding = ["/".join(parts[1:end]) for end in range(len(parts) - 1, 1, -1)]
    return next((folder for folder in holding if folder in tree.folders), parts[1])


def _is_torch_free(tree, included):
    """Whether a header is of a folder without torch, or of the part without torch that a folder has."""
    folder = _folder_of(tree, included)
    if folder in tree.torch_free:
        return True
    cmake = tree.files.get(f"lockstep/{folder}/CMakeLists.txt", "")
    options = r"(?:OPTIMIZE \d\s+)?(?:QUICK\s+)?"
    library = os.path.basename(folder) + "_core"
    core = re.search(rf"lockstep_library\({library}\s+{options}SOURCES([^)]*?)(?:LINKS|\))", cmake)
    return core is not None and included.split("/")[-1].replace(".h", ".cpp") in core[1].split()


def include_direction(tree):
    """A folder of lockstep/ includes only itself and folders above it; tools only what is without torch."""
    for path, text in tree.cpp().items():
        folder = _folder_of(tree, path)
        if folder is not None and folder not in tree.folders:
            yield path, 1, f"the folder {folder} is not in lockstep/CMakeLists.txt"
            continue
        for line, included, quoted in includes(text):
            target = _folder_of(tree, included)
            if quoted and included.startswith("lockstep/") and included not in tree.files:
                yield path, line, f"{included} does not exist"
            if target in tree.folders and folder is not None:
                wing, other = folder.split("/")[0], target.split("/")[0]
                if tree.folders.index(target) > tree.folders.index(folder):
                    yield path, line, f"{folder} is above {target} in lockstep/CMakeLists.txt and may not include it"
                elif wing in _WINGS and other != wing and other not in _WINGS[wing]:
                    yield path, line, f"{wing} may include nothing of {other}; see lockstep/CMakeLists.txt"
            if path.startswith("tools/") and target in tree.folders and not _is_torch_free(tree, included):
                yield path, line, f"tools may include only what is without torch, not {included}"
            if folder is not None and included == "lockstep/lockstep.h":
                yield path, line, "the library does not include the header that collects it"


def rooms(tree):
    """In a folder whose CMakeLists.txt has set(rooms ...), a room includes itself, rooms before it, nothing beside."""
    for folder in tree.folders:
        listed = re.search(r"set\(rooms ([^)]*)\)", tree.files.get(f"lockstep/{folder}/CMakeLists.txt", ""))
        order = listed[1].split() if listed else []
        home = f"lockstep/{folder}/"
        for path, text in tree.cpp().items():
            room, _, rest = path.removeprefix(home).partition("/")
            if not order or not path.startswith(home) or not rest:
                continue
            if room not in order:
                yield path, 1, f"the room {room} is not in {home}CMakeLists.txt"
                continue
            for line, included, _ in includes(text):
                target, _, rest = included.removeprefix(home).partition("/")
                if not included.startswith(home):
                    continue
                if not rest or target not in order or order.index(target) > order.index(room):
                    yield path, line, f"{room} is above {target if rest else folder}, and may not include it"


VARIABLE_TABLE = "lockstep/base/environment.cpp"
VARIABLE_PAGE = "docs/VARIABLES.md"


def _values_of(kind, arguments):
    """How the page writes a row's values: number(1, 64) -> 1 to 64, duration(2, 600) -> 2 to 600 seconds."""
    if kind == "duration":
        return "{} to {} seconds".format(*arguments.split(", "))
    if kind != "number":
        return arguments.strip('"')
    least, most = arguments.split(", ")
    return f"{least} to {most}" if most.isdigit() else f"a number from {least}"


def variables(tree):
    """The code's table of variables and the page that explains them agree; nothing else reads the environment."""
    source = tree.files.get(VARIABLE_TABLE, "")
    rows = re.findall(r'\{"(LOCKSTEP_\w+)",\s+(\w+)\(([^)]*)\),\s+"([^"]*)"\}', source)
    table = {name: (_values_of(kind, arguments), fallback) for name, kind, arguments, fallback in rows}
    others = re.search(r"kOfOthers =(.*?);", source, re.DOTALL)
    others = re.findall(r"\w+", others[1]) if others else []
    page = tree.files.get(VARIABLE_PAGE, "").replace("`", "")
    explained = {}
    for name, values, fallback in re.findall(r"^\| (LOCKSTEP_\w+) \|([^|]*)\|([^|]*)\|", page, re.MULTILINE):
        explained[name] = (values.strip(), fallback.strip())
    patterns = []
    for names in re.findall(r"^\| ([A-Z][A-Z0-9_*, ]*) \|[^|]*\|$", page, re.MULTILINE):
        patterns += names.split(", ")
    read = set()
    for path, text in tree.cpp().items():
        if not path.startswith(("lockstep/", "tools/", "python/", "examples/")) or path == VARIABLE_TABLE:
            continue
        for number, line in enumerate(text.split("\n"), 1):
            if re.search(r"\bgetenv\(\"?\w", line) and not path.startswith("examples/"):
                yield path, number, f"only {VARIABLE_TABLE} reads the environment: use EnvironmentReader"
            for name in re.findall(r'"(LOCKSTEP_[A-Z_]+)=?"', line):
                read.add(name)
                if name not in table:
                    yield path, number, f"{name} is missing in kVariables of {VARIABLE_TABLE}"
    for name in sorted(table.keys() - read):
        yield VARIABLE_TABLE, 1, f"nothing reads {name}"
    for name in sorted(table.keys() | explained.keys()):
        if table.get(name) != explained.get(name):
            yield VARIABLE_PAGE, 1, f"{name}: the page says {explained.get(name)}, {VARIABLE_TABLE} {table.get(name)}"
    for name in others:
        if not any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            yield VARIABLE_PAGE, 1, f"{name} is not explained"
    for pattern in patterns:
        if not fnmatch.filter(others, pattern):
            yield VARIABLE_PAGE, 1, f"{pattern} is explained, but is not in kOfOthers of {VARIABLE_TABLE}"


EMBEDDING_PAGE = "docs/EMBEDDING.md"
_PROCESS_WIDE = re.compile(
    r"::(?:signal|nice)\s*\("
    r"|(?<![\w.>])(?:sigaction|sigprocmask|pthread_sigmask|sigaltstack|signalfd|set_terminate|set_new_handler|atexit"
    r"|at_quick_exit|pthread_atfork|setvbuf|setbuf|sched_setaffinity|pthread_setaffinity_np|setenv|unsetenv|putenv"
    r"|clearenv|prctl|umask|setrlimit|prlimit|chdir|fchdir|setlocale|sync_with_stdio|mallopt|setpriority|setpgid|setsid"
    r"|personality|SetAllocator|SetCPUAllocator|set_default_engine_stub|set_num_threads|set_num_interop_threads"
    r"|omp_set_num_threads|TORCH_LIBRARY_IMPL)\s*\("
)


def process_wide(tree):
    """What the library changes in a whole process is in files that the page for embedding programs links to."""
    page = tree.files.get(EMBEDDING_PAGE, "")
    named = set(re.findall(r"\]\(\.\./((?:lockstep|python)/[\w/]+\.(?:h|cpp))\)", page))
    for path, text in tree.cpp().items():
        if not path.startswith(("lockstep/", "python/")):
            continue
        code = code_only(text)
        for match in _PROCESS_WIDE.finditer(code):
            if path not in named:
                line, call = code.count("\n", 0, match.start()) + 1, match[0].strip(":( ")
                yield path, line, f"{call} changes the whole process: {EMBEDDING_PAGE} has to name this file"


def torch_wall(tree):
    """Torch stays out of the torch-free folders and tools; Debian's fmt and spdlog out of files that see torch."""
    for path, text in tree.cpp().items():
        folder = _folder_of(tree, path)
        is_free = folder in tree.torch_free or path.startswith("tools/")
        for line, included, _ in includes(text):
            if is_free and _TORCH.match(included):
                yield path, line, f"{included}: torch may not be included here"
            if folder is not None and not is_free and included.startswith(("fmt/", "spdlog/")):
                yield path, line, f"{included} clashes with torch's own fmt; use lockstep/base/format.h"


def dead_files(tree, compiled):
    """Every source is compiled by some target. Some may be conditional, but CMake must know them."""
    for path in tree.cpp():
        if path.endswith(".cpp") and path not in compiled and not path.startswith("tests/package/"):
            commands = tree.files.get(os.path.dirname(path) + "/CMakeLists.txt", "")
            conditional = path.startswith(("bench/", "lockstep/comm/adapters/", "lockstep/train/data/no_torch_",
                                           "tests/races/"))
            if not (conditional and re.search(rf"\b{re.escape(os.path.basename(path))}\b", commands)):
                yield path, 1, "no target compiles this file"
    # A program may write sources that include a header.
    every_text = "\n".join(text for path, text in tree.files.items() if path.endswith((".h", ".cpp", ".py")))
    commands = "\n".join(text for path, text in tree.files.items() if path.endswith((".cmake", "CMakeLists.txt")))
    precompiled = re.findall(r"lockstep_precompiled\([^)]*?/([\w/]+\.h)\b", commands)
    for path in tree.cpp():
        if path.endswith(".h") and path != "lockstep/lockstep.h" and f'"{path}"' not in every_text:
            if not re.search(rf'"(?:\w+/)*{re.escape(os.path.basename(path))}"', every_text) \
                    and not any(path.endswith(name) for name in precompiled):
                yield path, 1, "nothing includes this header"


def _anchors(text):
    """The anchors of a page's headings, made as code hosts make them."""
    without_code = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ +(.*?)\s*$", without_code, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def document_links(tree):
    """Relative links of pages lead to files and headings that exist; so does every mention of docs/ in the project."""
    directories = {os.path.dirname(path) for path in tree.files}
    for path, text in tree.files.items():
        for number, line in enumerate(text.split("\n"), 1):
            for mention in re.findall(r"(?<![\w/])docs/[\w/]+\.md", line):
                if mention not in tree.files and not path.startswith("tests/tidy/"):
                    yield path, number, f"{mention} does not exist"
            if not path.endswith(".md"):
                continue
            for link in re.findall(r"\]\(([^)\s]+)\)", line):
                if re.match(r"[a-z]+:", link):
                    continue
                target, _, anchor = link.partition("#")
                resolved = os.path.normpath(os.path.join(os.path.dirname(path), target)) if target else path
                if resolved not in tree.files and resolved not in directories:
                    yield path, number, f"the link {link} leads nowhere"
                elif anchor and anchor not in _anchors(tree.files.get(resolved, "")):
                    yield path, number, f"{resolved} has no heading for #{anchor}"


def examples_are_tests(tree, commands):
    """Every example program is run by some ctest. `commands`: the command lines of all tests, as lists."""
    words = {os.path.basename(word) for command in commands for word in command}
    for path, text in tree.files.items():
        if re.fullmatch(r"examples/(\w+/)?\w+\.cpp", path) and re.search(r"^int main\(", text, re.MULTILINE):
            name = os.path.basename(path)[: -len(".cpp")]
            if name not in words and os.path.basename(os.path.dirname(path)) not in words:
                yield path, 1, f"no ctest runs {name}"


def compiled_files(build, root):
    """Paths, relative to the root, of all sources in the build's compile_commands.json, also of those in one unit."""
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        paths = [os.path.join(entry["directory"], entry["file"]) for entry in json.load(file)]
    sources = []
    for path in paths:
        if not os.path.basename(path).startswith("unity_"):
            sources.append(path)
            continue
        with open(path, encoding="utf-8") as together:
            sources += re.findall(r'^#include "(.*)"', together.read(), re.MULTILINE)
    return {os.path.relpath(path, root) for path in sources}


def test_commands(build):
    answer = subprocess.run(
        ["ctest", "--test-dir", build, "--show-only=json-v1"], check=True, capture_output=True, text=True
    )
    return [test.get("command", []) for test in json.loads(answer.stdout)["tests"]]


def _is_proven_by_source(tree, header):
    """True if the header's own source includes it first: then the build shows that it compiles alone."""
    own = includes(tree.files.get(header[: -len(".h")] + ".cpp", ""))
    return bool(own) and own[0][1] == header


# What a public header may bring into each source that includes it, in lines after preprocessing: of its own, and beyond
# ATen/core/Tensor.h if it sees torch. In 2026 <string> has 19,000 and <filesystem> 41,000.
HEADER_BUDGETS = {"": 67_000, "ATen/core/Tensor.h": 22_000}
_DEAR = re.compile(r"(fmt/|nlohmann/json\.hpp|CLI/|toml\+\+/|torch/torch\.h|ATen/ATen\.h|torch/nn/module\.h|regex$)")


def dear_includes(tree):
    """Headers of the library leave to sources what takes seconds to parse."""
    for path, text in tree.files.items():
        if not path.startswith("lockstep/") or not path.endswith(".h") or path == "lockstep/base/format.h":
            continue
        for line, included, _ in includes(text):
            if _DEAR.match(included):
                yield path, line, f"{included} is dear: include it in sources, and declare here what is needed"


def header_lines(tree, root, compiler, flags, umbrella="lockstep/lockstep.h", budgets=None):
    """(lines, path, beyond) of each public header: lines after preprocessing, without those of the header beyond."""

    def lines_of(header):
        command = [compiler, "-std=c++20", "-E", "-P", "-I", root, *flags, "-x", "c++", "-"]
        result = subprocess.run(command, input=f"#include <{header}>\n", capture_output=True, text=True, check=True)
        return result.stdout.count("\n"), "namespace at {" in result.stdout

    base = {header: lines_of(header)[0] if header else 0 for header in budgets or HEADER_BUDGETS}
    headers = [umbrella] + [included for _, included, quoted in includes(tree.files[umbrella]) if quoted]
    with ThreadPoolExecutor(2) as pool:
        for path, (lines, sees_torch) in zip(headers, pool.map(lines_of, headers)):
            beyond = max(base) if sees_torch else ""
            yield lines - base[beyond], path, beyond


def header_costs(tree, root, compiler, flags, umbrella="lockstep/lockstep.h", budgets=None):
    """No public header costs its users more than HEADER_BUDGETS."""
    budgets = budgets or HEADER_BUDGETS
    for lines, path, beyond in header_lines(tree, root, compiler, flags, umbrella, budgets):
        if lines > budgets[beyond]:
            where = f" beyond {beyond}" if beyond else ""
            yield path, 1, f"brings {lines} lines{where}; the budget is {budgets[beyond]}"


def lone_headers(tree, root, compiler):
    """Every header of a torch-free folder compiles alone."""

    def compile_alone(path):
        command = [compiler, "-std=c++20", "-fsyntax-only", "-I", root, "-x", "c++", "-"]
        source = f'#include "{path}"\n'
        result = subprocess.run(command, input=source, capture_output=True, text=True)
        return path, result.returncode, result.stderr

    headers = [path for path in sorted(tree.files) if path.endswith(".h") and _folder_of(tree, path) in tree.torch_free]
    headers = [path for path in headers if not _is_proven_by_source(tree, path)]
    with ThreadPoolExecutor(2) as pool:
        for path, failed, text in pool.map(compile_alone, headers):
            if failed:
                first = next((line for line in text.split("\n") if "error" in line), text)
                yield path, 1, f"does not compile alone: {first}"
