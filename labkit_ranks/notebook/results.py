"""Show the values that ranks returned side by side, equal values once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any, NamedTuple

from labkit.base.language import say

from ..calls.faults.report import align_columns, format_numbers, format_ranks
from .shell import display_forms
from .tables import table_html

# MIME type -> a value in this form.
Bundle = dict[str, Any]
Form = Callable[[Any], Bundle]

_PICTURES = ("image/png", "image/jpeg")
_BOX = "border-left:3px solid #8c959f;padding:0 0 0 10px;max-width:100%;overflow-x:auto"
_HEAD = "font-size:85%;opacity:.7"
_PLAIN = "margin:0;padding:0;border:0;background:none;color:inherit;font-family:monospace;white-space:pre"


# The longest text for a cell of a table.
_MOST = 100


class MergedValue(NamedTuple):
    """A value as a notebook shows it, and the ranks that have it."""

    ranks: tuple[int, ...]
    bundle: Bundle

    @property
    def head(self) -> str:
        """Return ``ranks 0–1, 3``."""
        return format_ranks(self.ranks, "–")

    @property
    def text(self) -> str:
        return str(self.bundle.get("text/plain", ""))

    @property
    def html(self) -> str:
        """Return the value as HTML."""
        if "text/html" in self.bundle:
            return str(self.bundle["text/html"])
        for kind in _PICTURES:
            if kind in self.bundle:
                return f'<img style="max-width:100%" src="data:{kind};base64,{self.bundle[kind].strip()}">'
        if "image/svg+xml" in self.bundle:
            return str(self.bundle["image/svg+xml"])
        return f'<pre style="{_PLAIN}">{escape(self.text)}</pre>'


def merge_equal(bundles: Iterable[tuple[int, Bundle]], gpus: Sequence[int]) -> list[MergedValue]:
    """Merge equal values, in the order of the first rank with each.

    Tensors that differ only in their rank's GPU (``gpus[rank]``) count as equal; their GPUs become ``cuda:0–3``.
    """
    found: dict[object, tuple[list[int], Bundle]] = {}
    for rank, bundle in bundles:
        own = re.compile(rf"(?<=cuda:){gpus[rank]}(?!\d)")
        neutral = {k: own.sub("\0", v) if k.startswith("text/") else v for k, v in bundle.items()}
        found.setdefault(repr(sorted(neutral.items())), ([], neutral))[0].append(rank)
    shown = []
    for ranks, neutral in found.values():
        name = format_numbers({gpus[rank] for rank in ranks}, "–")
        named = {k: v.replace("\0", name) if isinstance(v, str) else v for k, v in neutral.items()}
        shown.append(MergedValue(tuple(ranks), named))
    return shown


def as_text(shown: Sequence[MergedValue]) -> str:
    """Return a block of lines for each value: the ranks, and beside them the value."""
    rows = [
        ("" if at else one.head, line)
        for one in shown
        for at, line in enumerate(one.text.splitlines() or [""])
    ]
    return "\n".join(align_columns(rows))


def as_html(shown: Sequence[MergedValue]) -> str:
    """Return a box for each value, side by side where there is room."""
    head = f'<div style="{_BOX}"><div style="{_HEAD}">'
    boxes = "".join(f"{head}{one.head}</div>{one.html}</div>" for one in shown)
    return f'<div class="labkit-ranks" style="display:flex;flex-wrap:wrap;gap:8px 28px">{boxes}</div>'


def bundle_of(shown: Sequence[MergedValue]) -> Bundle:
    """Return all values as a single output."""
    return {"text/plain": as_text(shown), "text/html": as_html(shown)}


class Results(list[Any]):
    """The values that ranks returned, in order. The list shows itself side by side, equal values once.

    Dicts with the same keys become a table: a row for each rank, and below each column the number of different values.
    """

    def __init__(
        self, values: Iterable[Any], gpus: Sequence[int], ask: Callable[[Form], list[Bundle]]
    ) -> None:
        super().__init__(values)
        self._gpus, self._ask = gpus, ask

    def table(self) -> list[list[str]] | None:
        """Return the table as lines of words: head, ranks, foot; None for values that make no table."""
        if not self or not all(type(one) is dict and one and one.keys() == self[0].keys() for one in self):
            return None
        cells = self._ask(lambda value: {str(key): " ".join(repr(one).split()) for key, one in value.items()})
        found = [["rank", *cells[0]]]
        found += [[str(rank), *one.values()] for rank, one in enumerate(cells)]
        if any(len(word) > _MOST for line in found for word in line):
            return None
        if len(self) > 1:
            names = {1: say(en="all the same", zh="全部相同")}
            names[len(self)] = say(en="all different", zh="各不相同")
            counts = [len({one[key] for one in cells}) for key in cells[0]]
            found.append(["", *(names.get(n) or say(en=f"{n} different", zh=f"{n} 种") for n in counts)])
        return found

    def merged(self, form: Form) -> list[MergedValue]:
        """Return the values in the form that ``form`` makes, equal values once."""
        return merge_equal(enumerate(self._ask(form)), self._gpus)

    def __repr__(self) -> str:
        if table := self.table():
            return "\n".join(align_columns(table))
        return as_text(self.merged(lambda value: {"text/plain": repr(value)}))

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Bundle:
        if table := self.table():
            return {"text/plain": "\n".join(align_columns(table)), "text/html": table_html(table)}
        return bundle_of(self.merged(display_forms))
