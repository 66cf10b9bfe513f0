"""The site, by Sphinx from what scripts/stage_site.py lays into build/site-source."""

import logging
import os
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

project = "relpos"
author = "the relpos authors"
version = release = os.environ["RELPOS_DOCS_VERSION"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "breathe"]

html_theme = "furo"
html_title = f"relpos {version}"
html_static_path = [str(ROOT / "docs/site/static")]
html_css_files = ["relpos.css"]
html_copy_source = False
html_show_copyright = False
html_show_search_summary = False  # a page that is opened as a file may not fetch others
html_permalinks_icon = "#"
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#a8431a", "color-brand-content": "#a8431a"},
    "dark_css_variables": {"color-brand-primary": "#f08a5d", "color-brand-content": "#f08a5d"},
}
smartquotes = False  # '...' in the text are code, too
highlight_language = "none"  # a block says its language
suppress_warnings = ["misc.highlighting_failure"]

myst_heading_anchors = 6
myst_links_external_new_tab = False

autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
cpp_maximum_signature_line_length = 100
add_module_names = False
napoleon_custom_sections = [("Options", "params_style")]
default_role = "code"  # of `names` in docstrings

breathe_projects = {"relpos": str(ROOT / "build/site-source/xml")}
breathe_default_project = "relpos"
breathe_default_members = ("members",)
breathe_show_include = False

_SECTION = re.compile(r"(?:Args|Returns|Raises|Attributes|Options|Yields):$")
_LISTED = re.compile(r"(?:Args|Attributes|Options):$")
_ENTRY = re.compile(r"  [^.:]+:")


def docstring_as_rest(app, what, name, obj, options, lines):
    """Plain docstrings as reST reads them: an indented block is code, a sentence among arguments is
    a paragraph, and no sign is markup but backticks."""
    made, section, code = [], "", False
    for n, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if _SECTION.match(line):
            section = line
        elif line and not indent:
            section = ""
        elif _LISTED.match(section) and indent == 2 and not _ENTRY.match(line):
            made.append("")
            section = "a paragraph"
        if section == "a paragraph":
            line = line[2:]
        elif line and not section:
            if indent >= 4 and not code and (n == 0 or not lines[n - 1]):
                made += ["::", ""]
                code = True
            elif indent < 4:
                code = False
        made.append(line if code else _escaped(line))
    # Of a first line with a colon, napoleon takes what is before it for the type of a property.
    lines[:] = ["", *made] if what in ("property", "attribute") else made


def _escaped(line):
    """All but what stands between backticks."""
    parts = line.split("`")
    parts[::2] = [re.sub(r"([\\*|]|(?<=\w)_(?!\w))", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def _is_new(record):
    """Not a word about the namespace, which every header declares again."""
    return "Declaration is '.. cpp:type:: relpos'." not in record.getMessage()


def setup(app):
    for handler in logging.getLogger("sphinx").handlers:
        handler.filters.insert(0, _is_new)
    app.connect("autodoc-process-docstring", docstring_as_rest, priority=400)
