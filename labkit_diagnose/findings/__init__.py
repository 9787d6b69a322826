"""The kinds of findings, read from the text files of this folder.

The example in :mod:`labkit.base.texts` declares a kind with its name, severity and topic:
``KINDS["sparse_input"]("input 0", problem=text)`` returns a finding in the current language. One name may have several
kinds, such as ``fails_on_many.piece`` and ``fails_on_many.replicas``. ``%% batch topic 06_batch_dim`` declares a topic:
a lesson and the heading of a section in it. ``%% glued phrase`` declares a part of a sentence, to be filled into a text
as a fact.
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
    """The lesson that teaches a fault, and the heading of the section."""

    lesson: str
    heading: Text


# The topic of kinds that no lesson teaches.
UNTAUGHT = Topic("", Text("", ""))


@dataclass(frozen=True, eq=False)
class FindingKind:
    """A kind of finding; a call with the place and the facts returns a :class:`Finding`."""

    key: str
    severity: str
    topic: Topic
    reason: Text
    fix: Text

    @property
    def name(self) -> str:
        """The name that users see: the key up to the first dot."""
        return self.key.partition(".")[0]

    @property
    def facts(self) -> frozenset[str]:
        """The names of the facts in the texts."""
        return self.reason.facts | self.fix.facts

    def __call__(self, where: str = "", /, **facts: object) -> Finding:
        try:
            reason, fix = fill_texts((self.reason, self.fix), **facts)
        except TypeError as error:
            raise TypeError(f"{self.key}: {error}") from None
        return Finding(self.name, self.severity, where, reason, fix, self.topic.lesson, self.topic.heading())

    def at_error(self, error: Exception, **facts: object) -> Finding:
        """Return the finding at the line of the user's code that raised ``error``, the fact ``problem``."""
        return self(line_of(error), problem=short_text(error), **facts)


def read_findings(*files: Path) -> tuple[dict[str, FindingKind], dict[str, Text], dict[str, Topic]]:
    """Return the kinds, phrases and topics declared in ``files`` by key. Topics must precede their kinds.

    A kind without a topic gets the topic of the same name, else the topic ``others``, if there is one.
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
                topic = (
                    topics[more[0]]
                    if more
                    else topics.get(key.partition(".")[0], topics.get("others", UNTAUGHT))
                )
                kinds[key] = FindingKind(key, what, topic, text, entry.texts["fix"])
            else:
                raise ValueError(
                    f"{file.name}: {' '.join(entry.words)!r} has an unknown severity, or is declared twice"
                )
    return kinds, phrases, topics


def list_some(names: Sequence[str]) -> str:
    """Return the first five names as text, with the total number if there are more."""
    more = say(en=f"… ({len(names)})", zh=f"……（共 {len(names)} 个）")
    return series([*names[:5], *[more] * (len(names) > 5)])


_FILES = ("topics", "compared", "failures", "inputs", "memory", "modules", "outputs")
KINDS, PHRASES, _ = read_findings(*(Path(__file__).with_name(f"{name}.txt") for name in _FILES))


def gap_text(gap: float) -> str:
    """Return a relative difference in words."""
    percent = f"{100 * gap:.2g}" if gap < 1 else f"{100 * gap:.0f}"
    return PHRASES["gap.other_kind"]() if isinf(gap) else PHRASES["gap"](percent=percent)
