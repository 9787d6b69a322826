"""Ranks in a notebook: ``labkit.ranks(4)`` and ``%%ranks 4``."""
