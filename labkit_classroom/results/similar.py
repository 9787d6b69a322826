"""Find answers that are similar to each other or to the solution, for the teacher to compare.

Answers are compared by short runs of tokens without names, so that renaming and reordering do not hide a copy. Runs of
the given code do not count, and a run counts less, the more students have it.
"""

from __future__ import annotations

import ast
import io
import keyword
import math
import tokenize
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from ..source import first_line, names_bound_by, parse_source

_RUN = 6  # tokens
# The least weight of common runs. In a class of twenty, a run of two students weighs 2.4.
_LEAST = 12.0
_SHARE = 0.8  # of the weight of the shorter answer
_AS_SOLUTION = 0.9  # of the solution's runs, and of the answer's
_IGNORED = {tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER}

_Run = tuple[str, ...]


@dataclass(frozen=True)
class Group:
    """Students whose answers to ``question`` are similar, or with ``as_solution``, similar to the published solution.

    share   0 to 1: the least share of an answer that two of them have in common.
    lines   the common lines, in the first student's answer.
    """

    question: str
    students: tuple[str, ...]
    share: float
    lines: tuple[str, ...]
    as_solution: bool = False


def similar(
    answers: Mapping[str, Mapping[str, str | None]],
    stubs: Mapping[str, Sequence[str]],
    solutions: Mapping[str, Mapping[str, Sequence[str]]],
    defines: Mapping[str, Sequence[str]],
) -> list[Group]:
    """Return the groups of all questions: copies of the solution first, then by their share.

    answers    student -> question -> source.
    stubs      question -> the untouched cells.
    solutions  student -> question -> the solution with this student's numbers, and with the default ones.
    defines    question -> the names that its answer defines.
    """
    found = []
    for question in sorted({question for mine in answers.values() for question in mine}):
        foreign = {name for other, names in defines.items() if other != question for name in names}
        sources = {
            student: _own_statements(source, foreign)
            for student, mine in answers.items()
            if (source := mine.get(question))
        }
        given = set().union(*(_runs(source) for source in stubs.get(question, [])))
        runs = {student: _runs(source).keys() - given for student, source in sources.items()}
        copied: dict[str, float] = {}
        for student, mine in runs.items():
            for text in solutions.get(student, {}).get(question, ()):
                solution = _runs(text).keys() - given
                share = len(mine & solution) / max(len(mine), len(solution), 1)
                if share >= _AS_SOLUTION and len(solution) >= 2 * _RUN:
                    copied[student] = max(share, copied.get(student, 0.0))
        if copied:
            who = tuple(sorted(copied))
            everything = _common(sources[who[0]], runs[who[0]])
            found.append(Group(question, who, min(copied.values()), everything, as_solution=True))
        others = {student: mine for student, mine in runs.items() if student not in copied}
        found += _groups(question, sources, others)
    found.sort(key=lambda group: (not group.as_solution, -group.share, group.question, group.students))
    return found


def _own_statements(source: str, others: set[str]) -> str:
    """Return ``source`` without imports, calls, and definitions of ``others``, the names of other questions.

    A student may paste all solutions into one cell, which is then the answer to each question.
    """
    tree = parse_source(source)
    lines = source.splitlines()
    for node in tree.body if tree else ():
        names = names_bound_by(node)
        if isinstance(node, (ast.Expr, ast.Import, ast.ImportFrom)) or (names and others.issuperset(names)):
            for at in range(first_line(node) - 1, node.end_lineno or node.lineno):
                lines[at] = ""
    return "\n".join(lines)


def _groups(question: str, sources: Mapping[str, str], runs: Mapping[str, set[_Run]]) -> list[Group]:
    counts = Counter(run for mine in runs.values() for run in mine)
    weights = {run: math.log((len(runs) + 2) / count) for run, count in counts.items()}
    whole = {student: sum(map(weights.__getitem__, mine)) for student, mine in runs.items()}
    group_of: dict[str, list[str]] = {}
    shares: dict[str, float] = {}
    for one, other in combinations(sorted(runs), 2):
        common = sum(map(weights.__getitem__, runs[one] & runs[other]))
        share = common / (min(whole[one], whole[other]) or 1.0)
        if common >= _LEAST and share >= _SHARE:
            joined = sorted({*group_of.get(one, [one]), *group_of.get(other, [other])})
            least = min(share, *(shares.get(student, 1.0) for student in joined))
            for student in joined:
                group_of[student], shares[student] = joined, least
    found = []
    for who in {tuple(group) for group in group_of.values()}:
        common_runs = set.intersection(*(runs[student] for student in who))
        found.append(Group(question, who, shares[who[0]], _common(sources[who[0]], common_runs)))
    return found


def _common(source: str, common: set[_Run]) -> tuple[str, ...]:
    """Return the lines of ``source`` with these runs of tokens."""
    numbers = {line for run, lines in _runs(source).items() if run in common for line in lines}
    return tuple(line for at, line in enumerate(source.splitlines(), 1) if at in numbers)


def _runs(source: str) -> dict[_Run, set[int]]:
    """Return every run of tokens with its lines, up to the first syntax error."""
    tokens: list[tuple[str, int]] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type in _IGNORED:
                continue
            name = token.type == tokenize.NAME and not keyword.iskeyword(token.string)
            word = "name" if name else token.string.strip() or tokenize.tok_name[token.type]
            tokens.append((word, token.start[0]))
    except (tokenize.TokenError, SyntaxError, ValueError):
        pass
    found: dict[_Run, set[int]] = {}
    for at in range(len(tokens) - _RUN + 1):
        words, lines = zip(*tokens[at : at + _RUN], strict=True)
        found.setdefault(words, set()).update(lines)
    return found
