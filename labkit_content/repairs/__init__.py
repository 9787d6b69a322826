"""Lessons of ten repairs: 09, broken models, and 19, broken scripts. A repair is judged by running it.

``problems("09")["tagger"].judge(MyTagger, Random(seed))`` is the pure function below :func:`repair`: a class in, points
and a hint out, nothing noted. The broken code and the way to run and compare it are in ``labkit_content/broken`` and
``labkit_content/hung``; the score, the hints and the display are here.
"""

from .problem import Judgement, RepairProblem, problems
from .repairs import batch, hint, repair, torchrun

__all__ = ["Judgement", "RepairProblem", "batch", "hint", "problems", "repair", "torchrun"]
