"""Words of the course as HTML, and the frame around a verdict."""

from __future__ import annotations

import re
from html import escape


def as_html(text: str) -> str:
    """Text as HTML: `code` in its own letters, a fenced block as a block."""
    text = escape(text, quote=False)
    text = re.sub(r"```\n(.*?)\n```", lambda found: block(found[1]), text, flags=re.DOTALL)
    return re.sub(r"`([^`\n]+)`", r"<code>\1</code>", text)


def block(escaped: str) -> str:
    """Lines of code or of a report, in which ``<`` and ``&`` are escaped, as HTML."""
    # A row of a report, indented by two, goes on further right than the next one begins.
    row = r'<span style="display:inline-block;padding-left:6ch;text-indent:-6ch">\g<0></span>'
    lines = re.sub(r"^  (?! ).+$", row, escaped, flags=re.MULTILINE)
    # JupyterLab breaks the lines of a <pre> in the middle of a word.
    return f'<pre style="white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere">{lines}</pre>'


# The line beside a verdict: right, wrong, or none yet.
COLOURS = {True: "#1a7f37", False: "#bc4c00", None: "#8c959f"}
SIGNS = {True: "✓", False: "✗", None: "…"}


def framed(html: str, right: bool | None = None) -> str:
    """HTML with a line at its left in the colour of the verdict."""
    return f'<div style="border-left:4px solid {COLOURS[right]};padding:2px 0 2px 12px">{html}</div>'
