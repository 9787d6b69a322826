"""The former path of :mod:`labkit_classroom.judging`."""

import sys

import labkit_classroom.judging

sys.modules[__name__] = labkit_classroom.judging
