"""Learn, debug and teach multi-GPU data parallelism in PyTorch, on any machine.

Names are loaded on first use, so that ``import labkit`` costs next to nothing.
"""

from importlib import import_module

from .base import display

__version__ = "0.1.0"

# Each public name and the module it lives in.
_HOME = {
    "split": "plans.split",
    "batches": "plans.split",
    "ring_all_reduce": "plans.ring",
    "set_language": "base.language",
    "get_language": "base.language",
    "Trace": "trace.events",
    "Footprint": "plans.footprint",
    "data_parallel_memory": "plans.footprint",
    "Hardware": "cost",
    "Workload": "cost",
    "scaling": "cost",
    "simulate": "machine",
    "use_gpus": "machine",
    "record": "trace.recording",
    "replicate": "engine",
    "scatter": "engine",
    "parallel_apply": "engine",
    "gather": "engine",
    "data_parallel": "engine",
    "DataParallel": "engine",
    "draw_split": "view",
    "draw_batches": "view",
    "draw_all_reduce": "view",
    "draw_flow": "view",
    "draw_memory": "view",
    "draw_scaling": "view",
    "draw_shapes": "view",
    "draw_timeline": "view",
    "SplitExplorer": "explore",
    "CallExplorer": "explore",
    "ShapesExplorer": "explore",
    "TimelineExplorer": "explore",
    "MemoryExplorer": "explore",
    "ScalingExplorer": "explore",
    "diagnose": "diagnosis",
    "Diagnosis": "diagnosis",
}

display.load = lambda: import_module(f"{__name__}.view")

__all__ = ["__version__", *_HOME]


def __getattr__(name):
    if name not in _HOME:
        raise AttributeError(f"module 'labkit' has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted(__all__)
