"""The former path of :mod:`labkit_classroom.checking`."""

import sys

import labkit_classroom.checking

sys.modules[__name__] = labkit_classroom.checking
