"""How the classroom's pages are made: one file each, no network, no script, light and dark, fit to print.

What they say stands in ``page.txt``.
"""

from __future__ import annotations

import re
from html import escape

from ...base.language import get_language
from ..words import texts_beside

_TEXTS = texts_beside(__file__)
_STYLE = """
:root { color-scheme: light dark; --good: light-dark(#1a7f37, #4ac26b); --part: light-dark(#9a6700, #d4a72c);
  --bad: light-dark(#bc4c00, #f0883e); --soft: light-dark(#59636e, #9198a1); --line: light-dark(#d1d9e0, #3d444d);
  --fill: light-dark(#f6f8fa, #161b22); --bar: light-dark(#0969da, #4493f8) }
body { font: 16px/1.6 system-ui, -apple-system, 'Segoe UI', 'Noto Sans', 'PingFang SC', 'Microsoft YaHei',
  'Noto Sans CJK SC', sans-serif; background: Canvas; color: CanvasText; max-width: 60rem; margin: 2rem auto;
  padding: 0 1rem }
h1, h2 { line-height: 1.25; text-wrap: balance }
h1 { margin-bottom: .2em } h2 { margin: 2em 0 .5em; font-size: 1.2rem }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .35em .8em .35em 0; border-top: 1px solid var(--line) }
thead th { border-top: 0; color: var(--soft); font-weight: 500 }
.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums }
.soft { color: var(--soft) } .good { color: var(--good) } .part { color: var(--part) } .bad { color: var(--bad) }
.total { font-size: 2rem; font-weight: 600; font-variant-numeric: tabular-nums }
.meter { background: var(--line); border-radius: 4px; height: 8px; overflow: hidden }
.meter > i { display: block; height: 100%; background: var(--bar) }
pre { background: var(--fill); border: 1px solid var(--line); border-radius: 6px; padding: .8em; overflow-x: auto;
  line-height: 1.4; font-size: .875rem }
code { font-family: ui-monospace, 'SF Mono', Consolas, 'Noto Sans Mono', monospace; font-size: .92em }
ul { padding-left: 1.2em }
.wide { overflow-x: auto }
@media print { details { display: none } body { margin: 0 } }
"""


def text(key: str, **facts: object) -> str:
    """The text of ``page.txt`` under ``key``, in the language in use."""
    return _TEXTS[key,](**facts)


def page(title: str, *parts: str) -> str:
    """A page in the language in use, of these parts; those that are empty are left out."""
    body = "\n".join(filter(None, parts))
    return (
        f'<!DOCTYPE html>\n<html lang="{get_language()}">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n<body>\n{body}\n</body>\n</html>\n"
    )


def section(key: str, *inner: str) -> str:
    """What is in a section, under the heading ``key``; "" if nothing is."""
    found = "".join(inner)
    return f"<h2>{text(key)}</h2>{found}" if found else ""


def prose(words: str) -> str:
    """A text of ours as HTML: escaped, `code` in its own letters, **what matters** in bold ones."""
    words = re.sub(r"`([^`\n]+)`", r"<code>\1</code>", escape(words, quote=False))
    return re.sub(r"\*\*([^*\n<>]+)\*\*", r"<b>\1</b>", words)


def points(value: float) -> str:
    """Points as they are written: at most two decimals, none that say nothing."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def meter(share: float) -> str:
    return f'<div class="meter" role="img" aria-label="{share:.0%}"><i style="width:{share:.1%}"></i></div>'


def table(heads: list[str], rows: list[list[str]], numeric: set[int]) -> str:
    """A table, "" without rows; cells are HTML already, those of the columns in ``numeric`` are set to the right."""

    def line(kind: str, row: list[str]) -> str:
        cells = [f"<{kind}{' class=n' * (at in numeric)}>{cell}</{kind}>" for at, cell in enumerate(row)]
        return f"<tr>{''.join(cells)}</tr>"

    body = "".join(line("td", row) for row in rows)
    head = f"<thead>{line('th', heads)}</thead>"
    return f'<div class="wide"><table>{head}<tbody>{body}</tbody></table></div>' if rows else ""


def listed(texts: list[str]) -> str:
    """A list of remarks, "" if there is none."""
    return f"<ul>{''.join(f'<li>{prose(text)}</li>' for text in texts)}</ul>" if texts else ""


def share_of(got: float, most: float) -> str:
    """``5 / 8``, with the words that a reader of the screen aloud needs."""
    spoken = text("got", got=points(got), most=points(most))
    return f'<span aria-label="{spoken}">{points(got)} / {points(most)}</span>'
