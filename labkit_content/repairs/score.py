"""The score of a lesson of ten repairs, out of 100: the best of each repair, less the hints that were taken for it.

It is kept in the learner's progress file, in two lists to which entries are only ever added (``"tagger 5"``: five
points reached; ``"tagger 2"``: the second hint taken), so the best stays and hints stay counted, whatever is run again.
"""

from __future__ import annotations

from labkit_course import progress

from .problem import WORTH, problems

# The cost of each hint in points; the last hint is the repaired code.
COSTS = (1, 2, 3, 4)

# The score of this process while progress is not kept in a file (LABKIT_PROGRESS=off).
_here: dict[str, set[str]] = {progress.REACHED: set(), progress.HINTED: set()}


def note_points(name: str, points: int) -> None:
    """Note that a repair of ``name`` has reached ``points``."""
    _add(progress.REACHED, f"{name} {points}")


def note_hints(name: str, number: int) -> None:
    """Note that the hints 1 to ``number`` of ``name`` were taken."""
    for taken in range(1, number + 1):
        _add(progress.HINTED, f"{name} {taken}")


def best_points(name: str) -> int | None:
    """Return the best points so far, out of 10; None if no repair was tried."""
    found = _numbers(progress.REACHED, name)
    return min(max(found), WORTH) if found else None


def hints_taken(name: str) -> int:
    """Return the number of hints taken for ``name``."""
    return len({number for number in _numbers(progress.HINTED, name) if 1 <= number <= len(COSTS)})


def cost(name: str) -> int:
    """Return the points that the hints taken have cost."""
    numbers = _numbers(progress.HINTED, name)
    return sum(cost for number, cost in enumerate(COSTS, 1) if number in numbers)


def points(name: str) -> int:
    """Return the points that count for ``name``, 0 to 10."""
    return max((best_points(name) or 0) - cost(name), 0)


def total(lesson: str) -> int:
    """Return the points of ``lesson``, out of 100."""
    return sum(map(points, problems(lesson)))


def is_begun(lesson: str) -> bool:
    """Return whether a repair was tried or a hint taken in ``lesson``."""
    return any(best_points(name) is not None or hints_taken(name) for name in problems(lesson))


def _add(listed: str, entry: str) -> None:
    # Ask each time: a test, or a learner with two files, may change where progress is kept.
    if progress.is_on():
        progress.add(listed, entry)
    else:
        _here[listed].add(entry)
        progress.refresh_watchers()


def _numbers(listed: str, name: str) -> set[int]:
    entries = progress.entries(listed) if progress.is_on() else _here[listed]
    found = (entry.rpartition(" ") for entry in entries)
    return {int(number) for of, _, number in found if of == name and number.isdigit()}
