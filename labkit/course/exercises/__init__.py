"""Every exercise of the course, a module for each lesson: how an answer is judged, a hint for each misconception."""

from ..exercise import EXERCISES
from . import batch_dim, beyond, broken, dataset, devices, primitives, split, start, training, wrap  # noqa: F401 (each fills it)

__all__ = ["EXERCISES"]
