"""Every exercise of the course, a module for each lesson: how an answer is judged, a hint for each misconception."""

from . import beyond, dataset, split, start, wrap  # noqa: F401 (each declares its own)
