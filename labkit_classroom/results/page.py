"""Make the classroom's HTML pages: a page is one file without scripts, for light and dark screens and for print.

The texts are in ``page.txt``, the style is in ``page.css``.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

from labkit.base.language import get_language
from labkit.base.texts import text_function

from ..grade.marks import StudentMark

_STYLE = Path(__file__).with_suffix(".css").read_text("utf-8")
text = text_function(__file__)  # returns a text of page.txt in the current language


def page(title: str, *parts: str) -> str:
    """Return a page of these parts, without empty parts, in the current language."""
    body = "\n".join(filter(None, parts))
    return (
        f'<!DOCTYPE html>\n<html lang="{get_language()}">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{_STYLE}</style>\n<body>\n{body}\n</body>\n</html>\n"
    )


def section(key: str, *inner: str) -> str:
    """Return a section with the heading ``key``, or "" if it is empty."""
    found = "".join(inner)
    return f"<h2>{text(key)}</h2>{found}" if found else ""


def prose(words: str) -> str:
    """Return a text as HTML: escaped, with `code` in monospace and **emphasis** in bold."""
    words = re.sub(r"`([^`\n]+)`", r"<code>\1</code>", escape(words, quote=False))
    return re.sub(r"\*\*([^*\n<>]+)\*\*", r"<b>\1</b>", words)


def points(value: float) -> str:
    """Format points with at most two decimals, without trailing zeros."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def format_question_points(mark: StudentMark, question: str) -> str:
    """Format a question's points, "" without an answer."""
    graded = mark.questions.get(question)
    judged = question in mark.by_hand or (graded is not None and graded.state != "unanswered")
    return points(mark.counted_points[question]) if judged else ""


def meter(share: float) -> str:
    return f'<div class="meter" role="img" aria-label="{share:.0%}"><i style="width:{share:.1%}"></i></div>'


def table(heads: list[str], rows: list[list[str]], numeric: set[int]) -> str:
    """Return a table, "" without rows. Cells are HTML; columns in ``numeric`` are aligned to the right."""

    def line(kind: str, row: list[str]) -> str:
        cells = [
            f"<{kind}{' class=n' if at in numeric else ''}>{cell}</{kind}>" for at, cell in enumerate(row)
        ]
        return f"<tr>{''.join(cells)}</tr>"

    body = "".join(line("td", row) for row in rows)
    head = f"<thead>{line('th', heads)}</thead>"
    return f'<div class="wide"><table>{head}<tbody>{body}</tbody></table></div>' if rows else ""


def bullet_list(texts: list[str]) -> str:
    """Return a list of remarks as HTML, "" if there is none."""
    return f"<ul>{''.join(f'<li>{prose(text)}</li>' for text in texts)}</ul>" if texts else ""


def share_of(got: float, most: float) -> str:
    """Return ``5 / 8`` as HTML, with words for screen readers."""
    spoken = text("got", got=points(got), most=points(most))
    return f'<span aria-label="{spoken}">{points(got)} / {points(most)}</span>'
