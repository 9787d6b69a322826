"""Kinds of findings, read once from the text files of this folder: each has a name, a severity, a lesson that teaches it, and its texts.

    %% sparse_input error batch
    en: An input is a sparse tensor, which scatter cannot cut: {problem}.
    zh: 有一个输入是稀疏张量，分发（scatter）无法切分它：{problem}。
    fix en: Pass it dense, `x.to_dense()`.
    fix zh: 以稠密形式传入：`x.to_dense()`。

``KINDS["sparse_input"]("input 0", problem=text)`` is then the finding, in the language in use. One fault may show
itself in several ways: ``fails_on_many.piece`` and ``fails_on_many.replicas`` are two kinds of the name
``fails_on_many``. ``%% batch topic 06_batch_dim`` declares a lesson and the heading of a section there, ``%% glued
phrase`` a part of a sentence, which is filled in as a fact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isinf
from pathlib import Path

from labkit.base.language import say, series
from labkit.base.texts import Text, fill_texts, parse

from ..errors import line_of, short_text
from ..result import SEVERITIES, Finding


@dataclass(frozen=True)
class Topic:
    """Where the course teaches a fault: the notebook's name and the heading of the section there."""

    lesson: str
    heading: Text


# Of what no lesson teaches.
UNTAUGHT = Topic("", Text("", ""))


@dataclass(frozen=True, eq=False)
class FindingKind:
    """One thing that a check-up may find; called with where it is and the facts, it makes the :class:`Finding`."""

    key: str
    severity: str
    topic: Topic
    reason: Text
    fix: Text

    @property
    def name(self) -> str:
        """The name that users see: what the key begins with."""
        return self.key.partition(".")[0]

    @property
    def facts(self) -> frozenset[str]:
        """The names of the facts that its texts want."""
        return self.reason.facts | self.fix.facts

    def __call__(self, where: str = "", /, **facts: object) -> Finding:
        try:
            reason, fix = fill_texts((self.reason, self.fix), **facts)
        except TypeError as error:
            raise TypeError(f"{self.key}: {error}") from None
        return Finding(self.name, self.severity, where, reason, fix, self.topic.lesson, self.topic.heading())

    def at_error(self, error: Exception, **facts: object) -> Finding:
        """The finding where ``error`` was raised in the user's code; what it says is the fact ``problem``."""
        return self(line_of(error), problem=short_text(error), **facts)


def read_findings(*files: Path) -> tuple[dict[str, FindingKind], dict[str, Text]]:
    """The kinds and the phrases that ``files`` declare, by their keys. A topic stands before its kinds.

    A kind that names no topic has that which is called as it is, if there is one.
    """
    topics, kinds, phrases = dict[str, Topic](), dict[str, FindingKind](), dict[str, Text]()
    for file in files:
        for entry in parse(file.read_text("utf-8")):
            key, what, *more = entry.words
            if "" not in entry.texts:
                raise ValueError(f"{key!r} must say everything in English and in Chinese")
            text = entry.texts[""]
            if what == "topic":
                topics[key] = Topic(more[0], text)
            elif what == "phrase":
                phrases[key] = text
            elif what in SEVERITIES and key not in kinds:
                topic = topics[more[0]] if more else topics.get(key.partition(".")[0], UNTAUGHT)
                kinds[key] = FindingKind(key, what, topic, text, entry.texts["fix"])
            else:
                raise ValueError(f"{file.name}: {' '.join(entry.words)!r} is no severity, or declared twice")
    return kinds, phrases


def read_topics(file: Path) -> dict[str, Topic]:
    """The topics that ``file`` declares, by their names."""
    return {
        entry.words[0]: Topic(entry.words[2], entry.texts[""]) for entry in parse(file.read_text("utf-8"))
    }


def list_some(names: Sequence[str]) -> str:
    """Some of the names, and how many there are."""
    more = say(en=f"… ({len(names)})", zh=f"……（共 {len(names)} 个）")
    return series([*names[:5], *[more] * (len(names) > 5)])


_FILES = ("topics", "compared", "failures", "inputs", "memory", "modules", "outputs")
KINDS, PHRASES = read_findings(*(Path(__file__).with_name(f"{name}.txt") for name in _FILES))


def gap_text(gap: float) -> str:
    """A relative difference in words."""
    percent = f"{100 * gap:.2g}" if gap < 1 else f"{100 * gap:.0f}"
    return PHRASES["gap.other_kind"]() if isinf(gap) else PHRASES["gap"](percent=percent)
