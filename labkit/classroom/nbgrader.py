"""The former path of :mod:`labkit_classroom.nbgrader`."""

import sys

import labkit_classroom.nbgrader

sys.modules[__name__] = labkit_classroom.nbgrader
