"""Who else sees an operator: the machine's own mode, other dispatch modes, kernels that are written in Python."""

from .features.dispatch.libraries import is_defined_in_python as is_defined_in_python
from .ops.mode import MachineMode as MachineMode
from .stack import others_dispatch as others_dispatch
