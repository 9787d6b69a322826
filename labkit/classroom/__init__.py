"""What students' notebooks import: the public path of :mod:`labkit_classroom`."""

from labkit_classroom import __all__ as __all__
from labkit_classroom import __getattr__ as __getattr__
