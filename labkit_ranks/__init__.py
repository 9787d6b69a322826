"""Ranks: any torchrun script on the simulated machine."""

from . import pictures as pictures  # a trace of ranks is shown by what lies there
