"""How a finding is declared: its name, how bad it is, where it is taught, and what it says in both languages, with facts to fill in.

    SPARSE_INPUT = error("sparse_input", BATCH)('''
        en: An input is a sparse tensor, which scatter cannot cut: {problem}.
        zh: 有一个输入是稀疏张量，分发（scatter）无法切分它：{problem}。
        fix en: Pass it dense, `x.to_dense()`.
        fix zh: 以稠密形式传入：`x.to_dense()`。
    ''')

``SPARSE_INPUT("input 0", problem=text)`` is then the finding, in the language in use. English lines are joined by a
space, Chinese ones without, so a Chinese line ends where no space is wanted. Several kinds may have one name: one
fault that shows itself in several ways.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from string import Formatter

from ...base.language import say
from ..errors import line_of, short_text
from ..result import Finding
from .topics import Topic

# Every kind that is declared, in the order of the declarations.
KINDS: list[Kind] = []

_LABELS = ("en", "zh", "fix en", "fix zh")
_LABEL = re.compile(rf"^ *({'|'.join(_LABELS)}): ", re.MULTILINE)


@dataclass(frozen=True, eq=False)
class Kind:
    """One thing that a check-up may find; called with where it is and the facts, it makes the :class:`Finding`."""

    name: str
    severity: str
    topic: Topic
    reason: tuple[str, str]
    fix: tuple[str, str]

    @property
    def facts(self) -> frozenset[str]:
        """The names of the facts that its texts want."""
        texts = "".join((*self.reason, *self.fix))
        return frozenset(name for _, name, _, _ in Formatter().parse(texts) if name)

    def __call__(self, where: str = "", /, **facts: object) -> Finding:
        if facts.keys() != self.facts:
            raise TypeError(f"{self.name} wants the facts {sorted(self.facts)}, got {sorted(facts)}")
        reason, fix = (say(en=en, zh=zh).format(**facts) for en, zh in (self.reason, self.fix))
        return Finding(self.name, self.severity, where, reason, fix, self.topic.lesson, self.topic.section)

    def of(self, error: Exception, **facts: object) -> Finding:
        """The finding where ``error`` was raised in the user's code; what it says is the fact ``problem``."""
        return self(line_of(error), problem=short_text(error), **facts)


def _declare(severity: str, kinds: list[Kind], name: str, topic: Topic, texts: str) -> Kind:
    empty, *pieces = _LABEL.split(texts)
    if empty.strip() or tuple(pieces[::2]) != _LABELS:
        raise ValueError(f"{name} must say {', '.join(_LABELS)}, it says {pieces[::2]}")
    en, zh, fix_en, fix_zh = (
        (" " if label.endswith("en") else "").join(map(str.strip, piece.strip().splitlines()))
        for label, piece in zip(_LABELS, pieces[1::2], strict=True)
    )
    kinds.append(Kind(name, severity, topic, (en, zh), (fix_en, fix_zh)))
    return kinds[-1]


Declares = Callable[[str, Topic], Callable[[str], Kind]]


def declaring(kinds: list[Kind]) -> tuple[Declares, Declares, Declares]:
    """What declares an error, a warning and a note among ``kinds``."""

    def declares(severity: str) -> Declares:
        return lambda name, topic: partial(_declare, severity, kinds, name, topic)

    return declares("error"), declares("warning"), declares("note")


error, warning, note = declaring(KINDS)


def gap_text(gap: float) -> str:
    """A relative difference in words."""
    if gap == float("inf"):
        return say(
            en="they have other shapes, other whole numbers, or values that are not numbers",
            zh="形状不同，整数值不同，或者出现 NaN",
        )
    return say(en=f"by up to {100 * gap:.2g} % of the largest value", zh=f"最多相差最大值的 {100 * gap:.2g}%")


def listed(names: Sequence[str]) -> str:
    """Some of the names, and how many there are."""
    return ", ".join(names[:5]) + (f", … ({len(names)})" if len(names) > 5 else "")
