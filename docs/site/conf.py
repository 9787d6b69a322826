"""How Sphinx makes the pages of one language; ``build.py`` beside it gathers them, and names the language."""

import re
import sys
from pathlib import Path

import sphinx.search
from docutils import nodes
from sphinx.search.zh import SearchChinese

import labkit

sys.path.insert(0, str(Path(__file__).parent))
import build  # noqa: E402

project = "labkit"
author = "the labkit authors"
copyright = "2026, the labkit authors"
version = release = labkit.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc"]

# Lessons are shown as they were stored: a test runs them and compares.
nb_execution_mode = "off"
nb_render_markdown_format = "myst"
myst_enable_extensions = ["deflist", "dollarmath"]
myst_heading_anchors = 3
nb_code_prompt_show = "{type}"  # replaced for each language by build.py

html_theme = "furo"
templates_path = ["templates"]
html_static_path = ["static"]
html_css_files = ["site.css"]
html_favicon = "static/icon.svg"
html_copy_source = html_show_sourcelink = False
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "sidebar/language.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
autodoc_typehints = "none"  # they stand in the signature
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
suppress_warnings = ["myst.header", "misc.highlighting_failure"]

# ``rows   of the batch``: a row of a table of names, as labkit's docstrings have them.
_ROW = re.compile(r"^(\S(?:[^ ]| (?! ))*?) {2,}(\S.*)$")
_ROLE = re.compile(r":(?:class|mod|func|data):`~?\.?([\w.]+)`")


def _as_fields(app, what, name, obj, options, lines):
    """A docstring's aligned rows as a definition list; what it refers to as code."""
    made, rows = [], None
    for line in (_ROLE.sub(r"``\1``", line) for line in lines):
        found = _ROW.match(line)
        if found and (rows or not made or not made[-1].strip()):
            made += [found[1] if "`" in found[1] else f"``{found[1]}``", f"    {found[2]}"]
            rows = True
        elif rows and line.startswith("    "):
            made.append(f"    {line.strip()}")
        else:
            if rows and line.strip():
                made.append("")
            rows = None
            made.append(line)
    lines[:] = made


class _Search(SearchChinese):
    """Sphinx 9.0 loads the English stemmer for Chinese pages and then asks for a Chinese one, which nobody has."""

    language_name = "English"


def _for_sharing(app, pagename, templatename, context, doctree):
    """What a shared link to the page shows: its title, its first paragraph, the site's picture."""
    if doctree is None:
        return
    texts = (
        node.astext() for node in doctree.findall(nodes.paragraph) if not isinstance(node[0], nodes.emphasis)
    )
    language = app.config.language[:2]
    sentences = (" ".join(text.split()) for text in texts if len(text) > 30 and "<" not in text)
    first = next(sentences, build.PURPOSE[language])
    text = first if len(first) <= 200 else first[:200].rpartition(" ")[0] + " …"
    title = re.sub("<.*?>", "", context["title"])
    if pagename == "index":  # the heading is only the name
        title = context["docstitle"] = f"{title}: {build.SHORT[language]}"
    context["metatags"] = context.get("metatags", "") + build.sharing(language, title, text)


def setup(app):
    sphinx.search.languages["zh"] = _Search
    app.connect("html-page-context", _for_sharing)
    app.connect("autodoc-process-docstring", _as_fields)
