"""Builds the documentation's site by script/docs: site_test.py <output>. Skipped where its tools cannot be installed.

Then it changes what must not pass, and expects the build to say so.
"""

import os
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SKIPPED = 77
OUTPUT = ""
sys.path.insert(0, os.path.join(ROOT, "docs", "site"))
sys.path.insert(0, os.path.join(ROOT, "tests", "tidy"))
import headers  # noqa: E402
import pages  # noqa: E402
import public_names  # noqa: E402
import reference  # noqa: E402


def read(*parts):
    with open(os.path.join(OUTPUT, "site", *parts), encoding="utf-8") as file:
        return file.read()


def setUpModule():
    done = subprocess.run(["script/docs", "--output", OUTPUT], cwd=ROOT, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise AssertionError(done.stdout)


class Site(unittest.TestCase):
    def test_every_page_is_there(self):
        for path in pages.tracked_files():
            if re.fullmatch(r"docs/.*\.md|[A-Z]+\.md", path) and path != "README.md":
                self.assertIn("</h1>", read(path.removesuffix(".md") + ".html"), path)
        self.assertIn('href="docs/DDP.html', read("index.html"))

    def test_the_reference_has_the_names_of_the_api(self):
        with open(os.path.join(ROOT, public_names.LIST), encoding="utf-8") as file:
            listed = set(file.read().split())
        shown = {name.name for name in reference.public_names(os.path.join(OUTPUT, "work", "xml"))}
        shown = {name.removeprefix("lockstep::") for name in shown if not name.startswith("operator")}
        self.assertEqual(shown - {"TORCH_MODULE"}, listed - {"SyncBatchNorm"}, "SyncBatchNorm is made by TORCH_MODULE")

    def test_names_show_their_comments(self):
        page = re.sub(r"<[^>]+>", "", read("reference", "comm", "group", "world.html"))
        self.assertIn("A World is the group of all ranks of the job", page)
        self.assertIn("World init_process_group(const InitOptions", page)
        self.assertNotIn("watch_", page, "a private member")
        page = read("reference", "comm", "collective", "call_sites.html")
        self.assertIn("must_match", page, "the meaning of an enumerator")

    def test_tutorials_stand_in_reading_order(self):
        page = read("index.html")
        places = [page.index(f'href="docs/tutorials/{name}.html"') for name in ("README", "data_parallel", "basic_ddp",
                                                                               "sampler", "elastic_ddp", "char_gpt")]
        self.assertEqual(places, sorted(places))

    def test_wide_code_is_not_cut_without_a_sign(self):
        self.assertIn("_static/lockstep.css", read("docs", "LAUNCHING.html"))
        self.assertIn("::-webkit-scrollbar", read("_static", "lockstep.css"))

    def test_nothing_is_shown_escaped(self):
        for path in headers.public_headers():
            found = re.search(r".{,40}\\(?:&[lg]t;|&amp;|[%#@$]|::)", read(reference.page_of(path) + ".html"))
            self.assertIsNone(found, path)

    def test_a_link_to_a_header_leads_to_its_page(self):
        self.assertIn('href="../reference/train/ddp/options.html"', read("docs", "DDP.html"))


class Comments(unittest.TestCase):
    """What the build refuses."""

    def missing_in(self, text):
        with tempfile.TemporaryDirectory() as folder:
            path = "lockstep/comm/group/sample.h"
            filtered = headers.filtered(path, text)
            reference.write_if_changed(os.path.join(folder, "headers", path), filtered)
            xml = reference.run_doxygen_on([path], folder)
            names = reference.public_names(xml)
            return {name.name for name in names if not reference.is_documented(name, filtered)}

    def test_a_name_without_a_comment(self):
        text = ("// About Told.\n#pragma once\n\nnamespace lockstep {\n\n// Does.\nvoid told_a();\nvoid told_b();\n\n"
                "void untold();\n\nclass Told {};\n\nclass Untold {\n public:\n  int x = 0;\n};\n\n"
                "struct Members {\n  int x = 0;  // counts\n};\n\nenum class Kind { a, b };  // of it\n\n"
                "namespace internal {\nvoid hidden();\n}  // namespace internal\n}  // namespace lockstep\n")
        self.assertEqual(self.missing_in(text), {"untold", "Untold"})

    def test_code_in_a_comment(self):
        lines = headers.doxygen_lines(["It does.", "  a<b> c;", 'Then <this> is "<that>".'])
        self.assertEqual([line for line in lines if line], ["It does.", "@code{.cpp}", "a<b> c;", "@endcode",
                                                            r'Then \<this\> is "<that>".'])

    def test_a_heading_that_is_missing(self):
        with tempfile.TemporaryDirectory() as folder:
            reference.write_if_changed(os.path.join(folder, "stage", "index.md"), "# A\n\n[b](#nowhere)\n")
            arguments = [os.path.join(folder, name) for name in ("stage", "work", "site")]
            script = f"import build; exit(build.sphinx(*{arguments!r}, {os.path.join(OUTPUT, 'work', 'xml')!r}))"
            command = [os.path.join(ROOT, ".venv-docs", "bin", "python"), "-B", "-c", script]
            for attempt in ("first", "second"):  # the second has nothing new to read, and must not pass for that
                done = subprocess.run(command, cwd=os.path.join(ROOT, "docs", "site"), stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, text=True)
                self.assertEqual((done.returncode, "'nowhere'" in done.stdout), (1, True), attempt + done.stdout)

    def test_a_folders_pages_follow_its_readme(self):
        paths = [f"docs/howto/{name}.md" for name in ("README", "aaa", "from_mpi", "from_pytorch", "slurm")]
        order = [os.path.basename(path) for path in pages.in_reading_order("docs/howto", paths)]
        self.assertEqual(order, ["README.md", "from_pytorch.md", "from_mpi.md", "slurm.md", "aaa.md"])

    def test_pictures_and_sources_have_places(self):
        with tempfile.TemporaryDirectory() as folder:
            site = pages.Pages(folder)
            site.files |= {"docs/images/a.png"}
            links = (("images/a.png", "images/a.png"), ("../lockstep/base/error.h", "../reference/base/error.rst"),
                     ("../script/docs", "../source/script/docs.md"), ("../tests/docs", "../source/tests/docs.md"))
            for link, expected in links:
                self.assertEqual(site.rewritten(f"[a]({link})", "docs/DDP.md", "docs/DDP.md"), f"[a]({expected})")

    def test_a_link_that_leads_nowhere(self):
        with tempfile.TemporaryDirectory() as folder:
            site = pages.Pages(folder)
            with self.assertRaisesRegex(ValueError, "docs/DDP.md: the link nowhere.md leads nowhere"):
                site.rewritten("[a](nowhere.md)", "docs/DDP.md", "docs/DDP.md")
            self.assertEqual(site.rewritten("[a](../README.md#more) `[b](c)`\n```\n[d](e)\n```\n", "docs/DDP.md",
                                            "docs/DDP.md"), "[a](../index.md#more) `[b](c)`\n```\n[d](e)\n```\n")


if __name__ == "__main__":
    OUTPUT = os.path.abspath(sys.argv[1])
    tools = subprocess.run(["script/bootstrap", "--docs"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           text=True)
    if tools.returncode != 0:
        print(tools.stdout + "the tools for the documentation cannot be installed here: skipped")
        sys.exit(SKIPPED)
    unittest.main(argv=sys.argv[:1], verbosity=2)
