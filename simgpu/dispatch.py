"""The face's names around dispatch: the machine's mode, other dispatch modes, operators defined in Python."""

from .features.dispatch.libraries import is_defined_in_python as is_defined_in_python
from .ops.mode import MachineMode as MachineMode
from .stack import others_dispatch as others_dispatch
