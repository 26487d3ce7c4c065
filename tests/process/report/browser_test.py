"""The page of `lockstep report` in Chromium: browser_test.py <lockstep>"""

import functools
import html
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest

import runs

SKIPPED = 77
LOCKSTEP = ""
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
# Nothing beside the page is loaded, and shared memory lies in the temporary directory.
OPTIONS = ["--headless", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-sync",
           "--disable-background-networking", "--disable-component-update", "--enable-logging=stderr",
           "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
# Opens the report in frames of several widths, and writes down what it looks like.
MEASURE = """<!DOCTYPE html><meta charset="utf-8"><body><pre id="found"></pre><script>
const found = [];
function measure(frame) {
  const inside = frame.contentDocument, root = inside.documentElement;
  const style = element => frame.contentWindow.getComputedStyle(element);
  found.push({width: frame.width, overflow: root.scrollWidth - root.clientWidth, title: inside.title,
              background: style(inside.body).backgroundColor,
              strokes: [...inside.querySelectorAll("path.line")].map(line => style(line).stroke),
              labels: Math.min(...[...inside.querySelectorAll("figure svg text")]
                  .map(text => text.getBoundingClientRect().height).filter(height => height > 0)),
              flat: [...inside.querySelectorAll("svg")].filter(svg => svg.getBoundingClientRect().height < 4).length,
              figures: inside.querySelectorAll("figure svg[role=img]").length});
  if (found.length == 4) document.getElementById("found").textContent = JSON.stringify(found);
}
for (const width of [320, 420, 800, 1400]) {
  const frame = document.createElement("iframe");
  frame.width = width;
  frame.height = 600;
  frame.onload = () => measure(frame);
  frame.src = "report.html";
  document.body.append(frame);
}
</script>"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


class BrowserTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(self.folder.cleanup)

    def path(self, *names):
        return os.path.join(self.folder.name, *names)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)

    def report(self, *directories):
        subprocess.run([LOCKSTEP, "report", *directories, "--out", self.path("report.html")], check=True, timeout=60)

    def chromium(self, *words):
        """What it prints, and the lines of its console."""
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        done = subprocess.run([CHROMIUM, *OPTIONS, *sandbox, "--user-data-dir=" + self.path("profile"), *words],
                              capture_output=True, text=True, timeout=120, check=True,
                              env={**os.environ, "HOME": self.folder.name, "TMPDIR": self.folder.name})
        return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]

    def open(self, name="report.html"):
        return self.chromium("--dump-dom", "file://" + self.path(name))

    def measure(self, *words):
        self.write("measure.html", MEASURE)
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=self.folder.name))
        self.addCleanup(server.server_close)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(server.shutdown)
        page, console = self.chromium("--virtual-time-budget=20000", *words, "--dump-dom",
                                      f"http://127.0.0.1:{server.server_port}/measure.html")
        found = re.search('<pre id="found">(.+?)</pre>', page)
        self.assertTrue(found, page[:2000])
        return json.loads(html.unescape(found[1])), console

    def test_the_console_is_heard(self):
        self.write("bad.html", "<!DOCTYPE html><meta charset=utf-8><meta http-equiv=Content-Security-Policy "
                               "content=\"default-src 'none'\"><style>p{color:red}</style><script>x()</script>")
        self.assertEqual(len(self.open("bad.html")[1]), 2)

    def test_the_page_opens_without_a_word_in_the_console(self):
        self.report(runs.write(self.path("a"), runs.whole(3)), runs.write(self.path("b"), runs.whole(2)))
        page, console = self.open()
        self.assertEqual(console, [])
        self.assertIn("</footer>", page)
        self.assertGreater(page.count("<svg"), 9)

    def test_hostile_values_run_nothing(self):
        lines = runs.whole(2, runs.HOSTILE) + [runs.epoch(5, **{runs.HOSTILE: 1.0})]
        self.report(runs.write(self.path("<script>a"), lines))
        page, console = self.open()
        self.assertEqual(console, [])
        self.assertNotIn("broken", re.search("<title>(.*?)</title>", page)[1])

    def test_it_fits_any_width_in_light_and_dark(self):
        self.report(runs.write(self.path("a"), runs.whole(3)),
                    runs.write(self.path("a-name-so-long-that-it-has-to-be-broken-on-a-telephone"), runs.whole(2)))
        light, console = self.measure()
        self.assertEqual(console, [])
        self.assertEqual([found["width"] for found in sorted(light, key=lambda each: int(each["width"]))],
                         ["320", "420", "800", "1400"])
        for found in light:
            self.assertEqual((found["overflow"], found["flat"]), (0, 0), found["width"])
            self.assertTrue(found["title"].startswith("Training report: a, a-name"))
            self.assertGreater(found["figures"], 8)
            self.assertGreater(found["labels"], 9, found["width"])  # pixels
            self.assertNotIn("none", found["strokes"])
            self.assertGreater(len(set(found["strokes"])), 1)
        dark, _ = self.measure("--blink-settings=preferredColorScheme=0")
        self.assertEqual({found["background"] for found in light}, {"rgb(255, 255, 255)"})
        self.assertEqual({found["background"] for found in dark}, {"rgb(18, 22, 28)"})

    def test_it_prints(self):
        self.report(runs.write(self.path("a"), runs.whole(3)))
        self.chromium("--no-pdf-header-footer", "--print-to-pdf=" + self.path("report.pdf"),
                      "file://" + self.path("report.html"))
        with open(self.path("report.pdf"), "rb") as file:
            pdf = file.read()
        self.assertTrue(pdf.startswith(b"%PDF"))
        self.assertLessEqual(len(re.findall(rb"/Type\s*/Page\b", pdf)), 6)


if __name__ == "__main__":
    if not CHROMIUM:
        print("skipped: there is no Chromium here; Debian's package is chromium")
        sys.exit(SKIPPED)
    LOCKSTEP = os.path.abspath(sys.argv[1])
    unittest.main(argv=sys.argv[:1])
