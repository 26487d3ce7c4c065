"""Sphinx's settings. docs/site/build.py has put the pages together and says where they are."""

import os

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
highlight_language = "text"
pygments_style = "default"

myst_enable_extensions = []
myst_heading_anchors = 6

breathe_projects = {"lockstep": os.environ["LOCKSTEP_DOCS_XML"]}
breathe_default_project = "lockstep"
breathe_show_include = False
primary_domain = "cpp"
# What stands before names in the reference, so that they are found without it.
cpp_index_common_prefix = ["lockstep::"]
