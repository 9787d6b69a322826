"""Lessons of ten repairs: 09, broken models, and 19, broken scripts. A repair is judged by running it.

``problems("09")["tagger"].judge(MyTagger, Random(seed))`` is the pure function below :func:`repair`: a class in, points
and a hint out, nothing noted. What is broken, and how it is run and compared, stands in ``content/broken`` and
``content/hung``; the score, the hints and what is shown are here.
"""

from .problem import Judgement, Problem, problems
from .repairs import batch, hint, repair, torchrun

__all__ = ["Judgement", "Problem", "batch", "hint", "problems", "repair", "torchrun"]
