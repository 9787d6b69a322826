"""Every exercise of the course, a module for each lesson: how an answer is judged, a hint for each misconception."""

from . import (  # noqa: F401 (each declares its own)
    batch_dim,
    beyond,
    dataset,
    devices,
    primitives,
    split,
    start,
    training,
    wrap,
)
