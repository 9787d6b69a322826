"""Who else sees an operator: the machine's own mode, other dispatch modes, kernels that are written in Python."""

from .features.dispatch.libraries import by_python as by_python
from .ops.mode import MachineMode as MachineMode
from .stack import others_dispatch as others_dispatch
