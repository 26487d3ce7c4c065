"""Builds the documentation: build.py [--output FOLDER]. A warning is an error. script/docs runs it.

pages and headers -> work/stage and Doxygen's XML -> Sphinx -> <output>/site. Nothing is asked of any network.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys

import headers
import reference
from pages import Pages


def sphinx(stage, work, site, xml):
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-j", "2",
               "-c", os.path.dirname(os.path.abspath(__file__)), "-d", os.path.join(work, "trees"), stage, site]
    return subprocess.run(command, env={**os.environ, "LOCKSTEP_DOCS_XML": xml}).returncode


def foreign_contents(site):
    """What a page would load from elsewhere: scripts, styles, fonts and pictures."""
    address = r"(?:https?:)?//"
    pattern = re.compile(rf'<(?:script|img|iframe|source)[^>]+src="{address}[^"]+|<link[^>]+href="{address}[^"]+'
                         rf"|(?:@import|url\()\s*[\"']?{address}[^\"')]+")
    found = []
    for folder, _, files in os.walk(site):
        for name in files:
            if name.endswith((".html", ".css")):
                with open(os.path.join(folder, name), encoding="utf-8") as file:
                    found += [f"{name} loads {match}" for match in pattern.findall(file.read())]
    return found


def main():
    parser = argparse.ArgumentParser(description="Builds the documentation.")
    parser.add_argument("--output", default=os.path.join(headers.ROOT, "build", "docs"))
    output = os.path.abspath(parser.parse_args().output)
    work, stage, site = (os.path.join(output, name) for name in ("work", "stage", "site"))
    for folder in (work, stage):
        os.makedirs(folder, exist_ok=True)
    shutil.rmtree(os.path.join(work, "xml"), ignore_errors=True)
    xml, problems = reference.make(work, stage)
    pages = Pages(stage)
    pages.write_all()
    pages.remove_others()
    code = 0 if problems else sphinx(stage, work, site, xml)
    problems += foreign_contents(site) if not problems and code == 0 else []
    for problem in problems:
        print(f"docs: {problem}", file=sys.stderr)
    if code or problems:
        return code or 1
    print(f"docs: {os.path.join(site, 'index.html')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
