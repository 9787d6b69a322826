"""Measured runs. The constants of :mod:`labkit.cost.plan` were fitted to two thirds of them.

``fitted.csv`` and ``kept_back.csv`` come from public tables; the column ``source`` names repository, commit and file.
Seven rows in float8, and one of BLOOM's whose numbers contradict each other, are left out. What a source leaves open,
such as a vocabulary, its trainer's code says.
Whole problems were kept back, chosen before looking at them: those with a SHA-256 divisible by 3. A problem is the
text, joined by "/", of vTrain's ``set, layers, hidden, seq, gbs_seqs, gpus``, MosaicML's ``set, gpu, model``, or
InternEvo's ``set, note, seq, gpus``.

``bloom.csv`` is another site's table, BLOOM's prequel. Nothing was fitted to it, but its rows were seen when terms were
added. Its authors repaired their machines on 25 February and say that earlier and later times must not be compared.
"""
