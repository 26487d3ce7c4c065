"""Sphinx's settings. docs/site/build.py has put the pages together and says where they are."""

import os
import re
import xml.etree.ElementTree as ElementTree

from docutils import nodes
from sphinx import addnodes

project = "Lockstep"
author = "The Lockstep authors"
html_title = "Lockstep"
extensions = ["breathe", "myst_parser"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
root_doc = "index"
html_theme = "furo"
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["lockstep.css"]
highlight_language = "text"
suppress_warnings = ["misc.highlighting_failure"]  # of blocks that leave something out with "..."
pygments_style = "default"

myst_enable_extensions = []
myst_heading_anchors = 6

breathe_projects = {"lockstep": os.environ["LOCKSTEP_DOCS_XML"]}
breathe_default_project = "lockstep"
breathe_show_include = False
primary_domain = "cpp"
# What stands before names in the reference, so that they are found without it.
cpp_index_common_prefix = ["lockstep::"]


def _ambiguous_names():
    """Functions of several headers, such as the join() of ranks and that of batches."""
    places = {}
    file = os.path.join(breathe_projects["lockstep"], "namespacelockstep.xml")
    for member in ElementTree.parse(file).iter("memberdef"):
        name = member.findtext("name").removeprefix("lockstep::")
        places.setdefault(name, set()).add(member.find("location").get("file"))
    return {name for name, files in places.items() if len(files) > 1}


_AMBIGUOUS = _ambiguous_names()


def link_names(app, doctree):
    """Makes `DistributedSampler`, `lockstep::join()` in a page's text a link, if it is one of
    the reference's names as it stands there or with namespace lockstep before it."""
    for literal in list(doctree.findall(nodes.literal)):
        name = re.fullmatch(r"(?:lockstep::)?((?:[A-Z]\w*::)*[A-Za-z]\w*)(?:\(\))?", literal.astext())
        if name is None or isinstance(literal.parent, (nodes.reference, addnodes.pending_xref)):
            continue
        if name[1] in _AMBIGUOUS or not (name[1][0].isupper() or literal.astext().endswith("()")):
            continue
        link = addnodes.pending_xref("", refdomain="cpp", reftype="any", reftarget="lockstep::" + name[1],
                                     refexplicit=True, refwarn=False, refdoc=app.env.docname)
        literal.replace_self(link)
        link += literal


_trees = {}


def share_navigation(app, page, template, context, doctree):
    """Sources are not in the navigation, so for all that lie as deep it is the same. To make it takes longer than a
    page."""
    make = context.get("toctree")
    if not page.startswith("source/") or make is None:
        return

    def made_once(**options):
        key = (page.count("/"), *sorted(options.items()))
        if key not in _trees:
            _trees[key] = make(**options)
        return _trees[key]

    context["toctree"] = made_once


def setup(app):
    app.connect("doctree-read", link_names)
    app.connect("html-page-context", share_navigation, priority=400)  # the theme asks for it at 500
    return {"parallel_read_safe": True}
