"""Answers that resemble each other more than chance explains: a hint for the teacher, who decides what it means.

Names are set aside, so that renaming hides nothing; what many in the class have in common, or what the notebook gave
them, says nothing and is left out. What remains are runs of tokens that few share.
"""

from __future__ import annotations

import io
import keyword
import tokenize
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

_RUN = 6  # tokens
_LEAST = 8  # rare runs in common
_SHARE = 0.6  # of the rare runs of the shorter answer
_IGNORED = {tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER}


@dataclass(frozen=True)
class Pair:
    """Two students whose answers to ``question`` have ``share`` (0 to 1) of what is rare in them in common."""

    question: str
    one: str
    other: str
    share: float


def similar(answers: Mapping[str, Mapping[str, str | None]], given: Mapping[str, list[str]]) -> list[Pair]:
    """The most alike first.

    answers   student -> question -> source.
    given     question -> sources that everybody knows: the stub, the solution.
    """
    found = []
    questions = sorted({question for mine in answers.values() for question in mine})
    for question in questions:
        runs = {student: _runs(source) for student, mine in answers.items() if (source := mine.get(question))}
        known = set().union(*(_runs(source) for source in given.get(question, [])))
        counts = Counter(run for mine in runs.values() for run in mine)
        # Two who copied and one who copied from them are three: what more have in common is the usual way.
        usual = max(3, len(runs) // 8)
        rare = {
            student: {run for run in mine if counts[run] <= usual and run not in known}
            for student, mine in runs.items()
        }
        for one, other in combinations(sorted(rare), 2):
            common = len(rare[one] & rare[other])
            if common >= _LEAST:
                share = common / min(len(rare[one]), len(rare[other]))
                if share >= _SHARE:
                    found.append(Pair(question, one, other, share))
    return sorted(found, key=lambda pair: (-pair.share, pair.question, pair.one, pair.other))


def _runs(source: str) -> set[tuple[str, ...]]:
    """Every run of tokens; an answer that cannot be read to its end has those up to there."""
    tokens = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type in _IGNORED:
                continue
            name = token.type == tokenize.NAME and not keyword.iskeyword(token.string)
            tokens.append("name" if name else token.string.strip() or tokenize.tok_name[token.type])
    except (tokenize.TokenError, SyntaxError, ValueError):
        pass
    return {tuple(tokens[at : at + _RUN]) for at in range(len(tokens) - _RUN + 1)}
