"""The former path of :mod:`labkit_ranks.diagnosis`."""

import sys

import labkit_ranks.diagnosis

sys.modules[__name__] = labkit_ranks.diagnosis
