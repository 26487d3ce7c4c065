"""The Markdown pages of the repository as Sphinx reads them: the same texts, with links that lead to pages of the site.

A link to a header of the API leads to its page in the reference; one to another file shows the file; one to a folder
lists it. README.md is the first page, and gets the site's contents.
"""

import os
import re
import shutil
import subprocess

import headers
from reference import page_of, write_if_changed

# Of the contents: a caption, and what belongs there, in this order; of a folder its README.md is the first, and the
# others follow in the order in which that links to them. A page stands where it is named first.
CONTENTS = (
    ("Tutorials", ["docs/tutorials/*.md"]),
    ("How to", ["docs/howto/*.md"]),
    ("Guides", ["docs/DDP.md", "docs/DATA.md", "docs/CHECKPOINTS.md", "docs/LAUNCHING.md", "docs/GPU.md",
                "python/README.md"]),
    ("Reference", ["reference/index", "docs/errors/*.md", "docs/VARIABLES.md", "docs/TORCHRUN.md"]),
    ("Background", ["docs/PERFORMANCE.md", "docs/ARCHITECTURE.md", "docs/EMBEDDING.md", "docs/FAILURE_DETECTION.md",
                    "docs/FAULTS.md", "SECURITY.md", "docs/HACKING.md", "*"]),
)
_LANGUAGES = {".h": "cpp", ".cpp": "cpp", ".py": "python", ".sh": "bash", ".yaml": "yaml", ".sbatch": "bash",
              ".txt": "text", ".cmake": "cmake"}
_IMAGE = re.compile(r"\.(?:png|svg|jpe?g|gif)$")


def tracked_files():
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    answer = subprocess.run(command, cwd=headers.ROOT, check=True, capture_output=True, text=True)
    return sorted(path for path in answer.stdout.split("\n") if os.path.isfile(os.path.join(headers.ROOT, path)))


def _outside_code(text):
    """(text, whether it is code) of each part of a page, where code is what stands between fences."""
    parts = re.split(r"^((?:```|~~~).*?^(?:```|~~~)[^\n]*\n?)", text, flags=re.MULTILINE | re.DOTALL)
    return [(part, number % 2 == 1) for number, part in enumerate(parts)]


def in_reading_order(folder, paths):
    """Pages of a folder."""
    names = ["README.md", *re.findall(r"\]\((\w+\.md)\)", headers.read(f"{folder}/README.md"))]
    order = [f"{folder}/{name}" for name in names]
    return sorted(paths, key=lambda path: order.index(path) if path in order else len(order))


class Pages:
    def __init__(self, stage):
        self.stage, self.files, self.public = stage, set(tracked_files()), set(headers.public_headers())
        self.folders = {os.path.dirname(path) for path in self.files}
        self.places = {}  # on the site, by path, of pages and of files and folders that pages link to
        self.waiting = []  # paths whose pages are to be written
        for path in sorted(self.files):
            if re.fullmatch(r"docs/.*\.md|[A-Z]+\.md|python/README\.md", path):
                self.document(path)

    def document(self, path):
        """What the site calls a file or folder of the repository; asks for its page. None if there is no such file."""
        if path in self.public:
            return page_of(path) + ".rst"
        if path not in self.files and path not in self.folders:
            return None
        if path not in self.places:
            place = path if path.endswith(".md") or _IMAGE.search(path) else f"source/{path}.md"
            self.places[path] = "index.md" if path == "README.md" else place
            self.waiting.append(path)
        return self.places[path]

    def rewritten(self, text, page, place):
        """The text of a page of the repository with the links that it has at its place on the site."""
        pattern = r"`[^`\n]*`|\]\(([^)\s]+)\)"
        return "".join(part if is_code else re.sub(pattern, lambda match: self._link(match, page, place), part)
                       for part, is_code in _outside_code(text))

    def _link(self, match, page, place):
        target, _, anchor = (match[1] or "").partition("#")
        if not target or re.match(r"[a-z]+:", target):
            return match[0]
        document = self.document(os.path.normpath(os.path.join(os.path.dirname(page), target)))
        if document is None:
            raise ValueError(f"{page}: the link {match[1]} leads nowhere")
        relative = os.path.relpath(document, os.path.dirname(place) or ".")
        return f"]({relative}{'#' + anchor if anchor and document.endswith('.md') else ''})"

    def page(self, path):
        text = self.rewritten(headers.read(path), path, self.places[path])
        return text + self.contents() if path == "README.md" else text

    def source(self, path):
        """A page that shows a file as it is, or lists a folder."""
        text = f"---\norphan: true\n---\n\n# {path}\n\n"
        if path in self.files:
            language = _LANGUAGES.get(os.path.splitext(path)[1], "text")
            return text + f"`````{{code-block}} {language}\n:force:\n\n{headers.read(path)}`````\n"
        for file in sorted(self.files):
            if os.path.dirname(file) == path:
                link = os.path.relpath(self.document(file), os.path.dirname(self.places[path]))
                text += f"- [{os.path.basename(file)}]({link})\n"
        return text

    def write_all(self):
        self.page("README.md")  # for its links; it is written last, since its contents have all other pages
        self.waiting.remove("README.md")
        while self.waiting:
            path = self.waiting.pop(0)
            if _IMAGE.search(path):
                self._copy(path)
            else:
                self._write(path, self.page(path) if path.endswith(".md") else self.source(path))
        self._write("README.md", self.page("README.md"))

    def _copy(self, path):
        target = os.path.join(self.stage, path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copy2(os.path.join(headers.ROOT, path), target)

    def _write(self, path, text):
        write_if_changed(os.path.join(self.stage, self.places[path]), text)

    def contents(self):
        """The site's table of contents, which every page has at its side."""
        left = [path for path in sorted(self.places) if path.endswith(".md") and path != "README.md"]
        text = ""
        for caption, patterns in CONTENTS:
            entries = []
            for pattern in patterns:
                regular = re.escape(pattern).replace(r"\*", ".*" if pattern == "*" else "[^/]*")
                found = [path for path in left if re.fullmatch(regular, path)]
                if pattern.endswith("/*.md"):
                    found = in_reading_order(pattern.removesuffix("/*.md"), found)
                entries += [self.places[path] for path in found] if "/index" not in pattern else [pattern]
                left = [path for path in left if path not in found]
            lines = "\n".join(entries)
            text += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{lines}\n```\n"
        return text

    def remove_others(self, reference):
        """Pages of files that are gone. reference: where its pages are."""
        known = {os.path.join(self.stage, place) for place in [*self.places.values(), *reference]}
        for folder, _, files in os.walk(self.stage):
            for name in files:
                if os.path.join(folder, name) not in known:
                    os.remove(os.path.join(folder, name))
