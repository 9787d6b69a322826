"""The public path of :mod:`labkit_course`, for lessons."""

from labkit_course import __all__ as __all__
from labkit_course import __getattr__ as __getattr__
