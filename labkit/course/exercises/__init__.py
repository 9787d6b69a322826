"""Every exercise of the course, a module for each lesson: how an answer is judged, a hint for each misconception."""

from . import batch_dim, beyond, dataset, devices, primitives, split, start, training, wrap  # noqa: F401
