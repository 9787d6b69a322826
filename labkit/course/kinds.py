"""The former path of :mod:`labkit_course.kinds`."""

import sys

import labkit_course.kinds

sys.modules[__name__] = labkit_course.kinds
