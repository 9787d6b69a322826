"""What lessons import: the public path of :mod:`labkit_course`."""

from labkit_course import __all__ as __all__
from labkit_course import __getattr__ as __getattr__
