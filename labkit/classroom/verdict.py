"""The former path of :mod:`labkit_classroom.verdict`."""

import sys

import labkit_classroom.verdict

sys.modules[__name__] = labkit_classroom.verdict
