"""Measured runs, to two thirds of which the constants of :mod:`labkit.cost.plan` were fitted.

``fitted.csv`` and ``kept_back.csv`` are facts from public tables; their column ``source`` names the repository, the
commit and the file. Whole problems were kept back by a hash of the problem before any was looked at (:mod:`.part`).
"""
