"""Tables below a cell: lines of words, as text and as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ...base.texts import columns

Lines = Sequence[Sequence[str]]


def table_text(lines: Lines, sides: Sequence[str] | None = None) -> str:
    """The words of each column one below the other, at its side, "left" or "right"; None: all at the left."""
    sides = sides or ["left"] * len(lines[0])
    wide = [max(map(columns, words)) for words in zip(*lines, strict=True)]

    def padded(words: Sequence[str]) -> str:
        found = []
        for word, most, side in zip(words, wide, sides, strict=True):
            blank = " " * (most - columns(word))
            found.append(word + blank if side == "left" else blank + word)
        return "  ".join(found).rstrip()

    return "\n".join(map(padded, lines))


def table_html(lines: Lines, sides: Sequence[str] | None = None) -> str:
    """The same as a table."""
    sides = sides or ["left"] * len(lines[0])

    def cells(words: Sequence[str]) -> str:
        both = zip(sides, words, strict=True)
        return "".join(f'<td style="text-align:{side}">{escape(word)}</td>' for side, word in both)

    return f"<table>{''.join(f'<tr>{cells(words)}</tr>' for words in lines)}</table>"
