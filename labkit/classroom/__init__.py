"""The public path of :mod:`labkit_classroom`, for students' notebooks."""

from labkit_classroom import __all__ as __all__
from labkit_classroom import __getattr__ as __getattr__
