"""The former path of :mod:`simgpu`, also as ``python -m labkit.machine``."""

import runpy
import sys

import simgpu

if __name__ == "__main__":
    runpy.run_module("simgpu", run_name="__main__")
else:
    sys.modules[__name__] = simgpu
