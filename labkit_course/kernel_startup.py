"""Runs as a kernel of ``labkit lab`` starts, so that a lesson's cell that runs alone says which cell to run first."""

import labkit_course.names as _names

_names.watch_before_begin()
del _names
