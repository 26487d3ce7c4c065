"""`lockstep report`: report_test.py <lockstep>"""

import base64
import csv
import hashlib
import html.parser
import json
import os
import re
import stat
import struct
import subprocess
import sys
import tempfile
import unittest

import runs

LOCKSTEP = ""
VOID = {"meta", "path", "rect", "circle"}


def report(*words, expected=0, **options):
    done = subprocess.run([LOCKSTEP, "report", *map(str, words)], capture_output=True, text=True, timeout=60,
                          check=False, **options)
    assert done.returncode == expected, (words, done.returncode, done.stdout, done.stderr)
    return done


class Page(html.parser.HTMLParser):
    """Elements, their texts, and whether each is closed where it must be."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.texts = [], [], [], {}
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag, (tag, self.getpos())

    def handle_data(self, data):
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)


class ReportTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, *names):
        return os.path.join(self.folder.name, *names)

    def read(self, *names):
        with open(self.path(*names), encoding="utf-8", newline="") as file:
            return file.read()

    def page(self, *directories):
        report(*directories, "--out", self.path("report.html"))
        return self.read("report.html")


class PageTest(ReportTest):
    def test_one_file_that_loads_nothing_and_runs_nothing(self):
        text = self.page(runs.write(self.path("run"), runs.whole()))
        page = Page(text)
        self.assertEqual({"script", "link", "img", "iframe", "a", "object"} & set(page.tags), set())
        names = {name for name, _ in page.attributes}
        self.assertEqual({name for name in names if name.startswith("on") or name in ("style", "src", "href")}, set())
        self.assertNotRegex(text, r"https?:|url\(|@import")
        style = re.search("<style>(.*?)</style>", text, re.DOTALL)[1]
        policy = dict(page.attributes)["content"] and re.search('Content-Security-Policy" content="(.*?)"', text)[1]
        digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
        self.assertEqual(policy, f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; "
                                 "form-action 'none'")
        self.assertGreaterEqual(page.tags.count("figure"), 7)

    def test_tables_have_the_numbers_of_the_run(self):
        page = Page(self.page(runs.write(self.path("run"), runs.whole())))
        cells = page.texts["td"]
        for cell in ("0.3333 (lowest 0.3333, epoch 3)", "1002 (highest 1002, epoch 3)", "75.0 %",
                     "rank 1, in 3 of 30 lines", "rank 1 was killed by SIGKILL", "n1", "2.13.0", "5.00"):
            self.assertIn(cell, cells)
        self.assertIn("./train --name 'two words'", page.texts["pre"])

    def test_ten_epochs_of_four_ranks_are_less_than_a_megabyte(self):
        lines = [line for number in range(10) for line in
                 [runs.steps(number * 500 + 10 * i, ranks=4, late=0.001 * i) for i in range(1, 51)] +
                 [runs.epoch(number, train_loss=1.0, val_accuracy=0.5, samples_per_second=9.0)]]
        self.assertLess(len(self.page(runs.write(self.path("run"), lines))), 1_000_000)

    def test_several_runs_have_short_names(self):
        names = [runs.write(self.path(name, "out"), runs.whole(epochs)) for name, epochs in (("a", 2), ("b", 3))]
        names.append(runs.write(self.path("c"), [runs.epoch(0, train_loss=0.5)]))
        page = Page(self.page(*names))
        self.assertEqual(page.texts["h1"], ["Training report: a/out, b/out, c"])
        self.assertTrue(any(text.startswith("Left out for c: time of a step") for text in page.texts["p"]))

    def test_hostile_values_are_only_text(self):
        lines = runs.whole(text=runs.HOSTILE) + [runs.epoch(9, **{runs.HOSTILE: 1.0, runs.HOSTILE + "_loss": 2.0})]
        text = self.page(runs.write(self.path("<script>x"), lines))
        self.assertNotIn("<script", text)
        self.assertNotIn("<img", text)
        self.assertNotIn("\u202e", text)
        self.assertTrue(any("<script>" in cell for cell in Page(text).texts["td"]))

    def test_checkpoints_of_the_directory_are_listed_damaged_ones_too(self):
        folder = runs.write(self.path("run"), runs.whole(1))
        header = json.dumps({"__metadata__": {"step": "100", "choice.model": "mlp", "choice.lr": "<b>"},
                             "x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
        with open(self.path("run", "step-0000000100.safetensors"), "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header + b"1234")
        with open(self.path("run", "step-0000000050.safetensors"), "wb") as file:
            file.write(b"damaged")
        page = Page(self.page(folder))
        cells = page.texts["td"] + page.texts["th"]
        self.assertIn("step-0000000100.safetensors", cells)
        self.assertIn("0.25", cells)
        self.assertTrue(any(cell.startswith("DAMAGED: ") for cell in cells))
        self.assertIn("model", cells)
        self.assertIn("<b>", cells)

    def test_damaged_lines_are_warnings_with_file_and_line(self):
        folder = runs.write(self.path("run"), [runs.epoch(0, train_loss=1.0), "{\"epoch\": 1, \"tr\n",
                                               runs.epoch(1, train_loss=0.5)])
        done = report(folder, "--out", self.path("report.html"))
        self.assertEqual(done.stderr, f"lockstep: {folder}/metrics.jsonl:2: this line is left out: it is not JSON\n")
        text = self.read("report.html")
        self.assertIn("run/metrics.jsonl:2", text)
        self.assertIn("<td>0.5 (lowest 0.5, epoch 2)</td>", text)


class TableTest(ReportTest):
    def test_the_table_reads_back(self):
        names = [runs.write(self.path(name), runs.whole(epochs)) for name, epochs in (("a", 2), ("b,c", 3))]
        report(*names, "--csv", self.path("report.csv"))
        rows = list(csv.DictReader(self.read("report.csv").splitlines()))
        losses = [(row["run"], row["epoch"], row["train_loss"]) for row in rows if row["kind"] == "epoch"]
        self.assertEqual([(run, int(at), float(loss)) for run, at, loss in losses],
                         [("a", 0, 1.0), ("a", 1, 0.5), ("b,c", 0, 1.0), ("b,c", 1, 0.5), ("b,c", 2, 1 / 3)])
        steps = [row for row in rows if row["kind"] == "steps" and row["run"] == "a"]
        self.assertEqual(len(steps), 40)
        late = [row for row in steps if row["straggler"] == "1"]
        self.assertEqual([(row["step"], row["rank"], float(row["late_s"])) for row in late],
                         [("70", "1", 0.005), ("170", "1", 0.005)])
        self.assertFalse(os.path.exists(self.path("report.html")))

    def test_it_goes_to_standard_output_too(self):
        done = report(runs.write(self.path("a"), runs.whole(1)), "--csv", "/dev/stdout")
        self.assertEqual(done.stdout.splitlines()[0].split(",")[:3], ["run", "kind", "epoch"])
        self.assertTrue(stat.S_ISLNK(os.lstat("/dev/stdout").st_mode))


class OutputTest(ReportTest):
    def setUp(self):
        super().setUp()
        self.run_folder = runs.write(self.path("run"), runs.whole(1))

    def test_a_file_is_replaced_as_a_whole_with_permissions_of_its_own(self):
        out = self.path("report.html")
        report(self.run_folder, "--out", out, umask=0o027)
        self.assertEqual(stat.S_IMODE(os.stat(out).st_mode), 0o640)
        with open(out, "w", encoding="utf-8") as file:
            file.write("x" * 5_000_000)
        os.chmod(out, 0o606)
        os.symlink("report.html", self.path("link.html"))
        report(self.run_folder, "--out", self.path("link.html"), umask=0o022)
        self.assertEqual(stat.S_IMODE(os.stat(out).st_mode), 0o644)
        self.assertTrue(os.path.islink(self.path("link.html")))
        self.assertTrue(self.read("report.html").endswith("</html>\n"))
        self.assertEqual(sorted(os.listdir(self.folder.name)), ["link.html", "report.html", "run"])

    def test_what_cannot_be_read_or_written_is_named(self):
        out = self.path("report.html")
        empty = self.path("empty")
        os.mkdir(empty)
        metrics = self.path("run", "metrics.jsonl")
        before = self.read("run", "metrics.jsonl")
        for words, text in (((self.path("none"), "--out", out), "cannot find the run " + self.path("none")),
                            ((self.run_folder, empty, "--out", out), f"{empty} is not a run: it has no metrics.jsonl"),
                            ((metrics, "--out", out), "name the one that contains metrics.jsonl"),
                            ((self.run_folder, self.run_folder + "/.", "--out", out), "is given twice"),
                            ((self.run_folder, "--out", self.path("none", "x.html")), "does not exist"),
                            ((self.run_folder, "--out", metrics + "/x.html"), metrics),
                            ((self.run_folder, "--out", empty), f"{empty} is a directory; name a file"),
                            ((self.run_folder, "--csv", metrics), "is the record of a run"),
                            ((self.run_folder, "--tensorboard", metrics), metrics)):
            done = report(*words, expected=1)
            self.assertTrue(done.stderr.startswith("lockstep: "), done.stderr)
            self.assertIn(text, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertFalse(os.path.exists(out))
        self.assertEqual(self.read("run", "metrics.jsonl"), before)

    @unittest.skipIf(os.geteuid() == 0, "root may write anywhere")
    def test_a_directory_without_permission_is_named(self):
        os.mkdir(self.path("closed"), 0o500)
        done = report(self.run_folder, "--out", self.path("closed", "x.html"), expected=1)
        self.assertIn("Permission denied", done.stderr)

    def test_a_wrong_command_line_exits_with_2(self):
        for words in ((), (self.run_folder,), ("--out", "x.html"), (self.run_folder, "--out", "x", "--csv", "x"),
                      (self.run_folder, "--out", "x", "--csv", "./x"),
                      (self.run_folder, "--out", "/dev/null", "--csv", "/dev/null"),
                      (self.run_folder, "--out", "x", "--bogus"), tuple(f"r{i}" for i in range(17)) + ("--out", "x")):
            self.assertIn("Try 'lockstep report --help'", report(*words, expected=2).stderr)
        self.assertIn("name the directory of a run: the one that the program passed to lockstep::TrainingRun",
                      report("--out", self.path("x.html"), expected=2).stderr)
        self.assertIn("a run is the directory that a program passes to lockstep::TrainingRun",
                      report(self.path("none"), "--out", self.path("x.html"), expected=1).stderr)


if __name__ == "__main__":
    LOCKSTEP = os.path.abspath(sys.argv[1])
    unittest.main(argv=sys.argv[:1])
