"""Texts of the course as HTML, and the frame around a verdict."""

from __future__ import annotations

import re
from html import escape


def as_html(text: str) -> str:
    """Return text as HTML, with `code` and fenced blocks."""
    text = escape(text, quote=False)
    text = re.sub(r"```\n(.*?)\n```", lambda found: block(found[1]), text, flags=re.DOTALL)
    return re.sub(r"`([^`\n]+)`", r"<code>\1</code>", text)


def block(escaped: str) -> str:
    """Return escaped lines of code, or of a report, as HTML."""
    # Indent the continuation of a long row of a report, to set it apart from the next row.
    row = r'<span style="display:inline-block;padding-left:6ch;text-indent:-6ch">\g<0></span>'
    lines = re.sub(r"^  (?! ).+$", row, escaped, flags=re.MULTILINE)
    # By default, JupyterLab breaks lines of a <pre> within words.
    return f'<pre style="white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere">{lines}</pre>'


# Colours and signs of a verdict: right, wrong, or no answer yet.
COLOURS = {True: "#1a7f37", False: "#bc4c00", None: "#8c959f"}
SIGNS = {True: "✓", False: "✗", None: "…"}


def frame_html(html: str, right: bool | None = None) -> str:
    """Return HTML with a line at its left in the colour of the verdict."""
    return f'<div style="border-left:4px solid {COLOURS[right]};padding:2px 0 2px 12px">{html}</div>'
