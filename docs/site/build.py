"""Builds the documentation: build.py [--output FOLDER]. A warning is an error. script/docs runs it.

pages and headers -> work/stage and Doxygen's XML -> Sphinx -> <output>/site. Nothing is asked of any network.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys

import headers
import reference
from pages import Pages


HERE = os.path.dirname(os.path.abspath(__file__))


def forget(*folders):
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def forget_if_changed(work, site):
    """What Sphinx has kept of another version of these scripts is of no use."""
    digest = hashlib.sha256()
    for name in [*sorted(os.listdir(HERE)), os.path.join("static", "lockstep.css")]:
        if name.endswith((".py", ".css")):
            with open(os.path.join(HERE, name), "rb") as file:
                digest.update(file.read())
    marker = os.path.join(work, f"made_by_{digest.hexdigest()}")
    if not os.path.exists(marker):
        forget(os.path.join(work, "trees"), site)
        for name in os.listdir(work):
            if name.startswith("made_by_"):
                os.remove(os.path.join(work, name))
        reference.write_if_changed(marker, "")


def sphinx(stage, work, site, xml):
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-j", "2",
               "-c", HERE, "-d", os.path.join(work, "trees"), stage, site]
    code = subprocess.run(command, env={**os.environ, "LOCKSTEP_DOCS_XML": xml}).returncode
    if code:  # otherwise Sphinx would not read again, and not warn again of, what it has read
        forget(os.path.join(work, "trees"))
    return code


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
    forget(os.path.join(work, "xml"))
    xml, places, problems = reference.make(work, stage)
    pages = Pages(stage)
    try:
        pages.write_all()
    except ValueError as error:
        problems.append(str(error))
    pages.remove_others(places)
    forget_if_changed(work, site)
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
