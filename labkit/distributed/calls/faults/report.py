"""What is said of a fault: a report, of which the text of the error is made, and the finding of a check-up."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ....base.language import say
from ....base.texts import filled, parse

E = TypeVar("E", bound=Exception)

_TEXTS = {
    entry.words[0]: (entry.texts[""], entry.texts["do"])
    for entry in parse(Path(__file__).with_name("faults.txt").read_text("utf-8"))
}


@dataclass(frozen=True)
class Report:
    """What went wrong among ranks, in the language in use; ``str(report)`` is the whole text.

    fault   its name in a check-up: "deadlock", "calls_differ", …
    lines   what was seen of each rank, and what it means.
    advice  what to do.
    places  the lines of the user's code where the ranks were.
    real    in which words real GPUs fail.
    """

    fault: str
    lines: tuple[str, ...]
    advice: str
    places: tuple[str, ...]
    real: str = ""

    def __str__(self) -> str:
        advice = say(en=f"Do: {self.advice}", zh=f"怎么办：{self.advice}")
        return "\n".join(filter(None, [*self.lines, advice, self.real]))

    def on(self, error: E) -> E:
        """``error``, which carries this report from now on."""
        error.report = self  # type: ignore[attr-defined]
        return error


def explained(key: str, **facts: object) -> tuple[str, str]:
    """What the fault ``key`` means, and what to do, from ``faults.txt``."""
    meaning, advice = filled(_TEXTS[key], **facts)
    return meaning, advice
