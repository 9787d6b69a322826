"""The ten, in the order of the lesson."""

from __future__ import annotations

from .graphs import CLICKS, ROADS
from .images import PAIRS, PHOTOS
from .judging import Problem
from .memory import SURPRISE, WAVES
from .text import TAGGER, TYPIST
from .training import EXPERTS, WORDS

PROBLEMS: dict[str, Problem] = {
    problem.name: problem
    for problem in (TAGGER, TYPIST, PHOTOS, PAIRS, ROADS, CLICKS, WORDS, EXPERTS, WAVES, SURPRISE)
}
