"""Words of the course as HTML."""

from __future__ import annotations

import re
from html import escape


def as_html(text: str) -> str:
    """Text as HTML: `code` in its own letters, a fenced block as a block."""
    text = escape(text, quote=False)
    text = re.sub(r"```\n(.*?)\n```", r"<pre>\1</pre>", text, flags=re.DOTALL)
    return re.sub(r"`([^`\n]+)`", r"<code>\1</code>", text)
