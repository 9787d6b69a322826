"""Measured runs, to two thirds of which the constants of :mod:`labkit.cost.plan` were fitted.

``fitted.csv`` and ``kept_back.csv`` are facts from public tables; their column ``source`` names the repository, the
commit and the file. Whole problems were kept back before any was looked at: those whose SHA-256 is a multiple of 3. A
problem is, with "/" between, vTrain's ``set, layers, hidden, seq, gbs_seqs, gpus``, MosaicML's ``set, gpu, model``,
InternEvo's ``set, note, seq, gpus``.
"""
