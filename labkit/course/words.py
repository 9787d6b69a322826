"""Words of the course as HTML, and the frame around a verdict."""

from __future__ import annotations

import re
from html import escape


def as_html(text: str) -> str:
    """Text as HTML: `code` in its own letters, a fenced block as a block."""
    text = escape(text, quote=False)
    # JupyterLab breaks the lines of a <pre> in the middle of a word.
    block = r'<pre style="white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere">\1</pre>'
    text = re.sub(r"```\n(.*?)\n```", block, text, flags=re.DOTALL)
    return re.sub(r"`([^`\n]+)`", r"<code>\1</code>", text)


# The line beside a verdict: right, wrong, or none yet.
COLOURS = {True: "#1a7f37", False: "#bc4c00", None: "#8c959f"}
SIGNS = {True: "✓", False: "✗", None: "…"}


def framed(html: str, right: bool | None = None) -> str:
    """HTML with a line at its left in the colour of the verdict."""
    return f'<div style="border-left:4px solid {COLOURS[right]};padding:2px 0 2px 12px">{html}</div>'
