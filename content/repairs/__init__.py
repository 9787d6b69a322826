"""Lesson 09: ten broken models, to be found and repaired; a repair is judged by running it.

``judge(problems()["tagger"], MyTagger, Random(seed))`` is the pure function below :func:`repair`: a class in, points
and a hint out, nothing noted. A grader that must not run a student's class where the answers are takes it apart:
``cases`` draws, ``observe`` runs (plain data in, plain data out), and the rest compares.
"""

from .judging import Judgement, Problem, cases, judge, problems
from .repairs import batch, hint, repair
from .running import Case, Observed, observe

__all__ = [
    "Case", "Judgement", "Observed", "Problem", "batch", "cases", "hint", "judge", "observe", "problems", "repair",
]  # fmt: skip
