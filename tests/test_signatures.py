"""How labkit's functions are called: by names, order and defaults that scripts, lessons and others rely on."""

import inspect
from pathlib import Path

import labkit

# Those that a user makes, too; other classes come as results.
MADE = "DataParallel Hardware Plan Sizes Workload".split()


def signature(name: str) -> str:
    found = inspect.signature(getattr(labkit, name))
    plain = [parameter.replace(annotation=parameter.empty) for parameter in found.parameters.values()]
    return f"{name}{found.replace(parameters=plain, return_annotation=found.empty)}"


def test_names_order_and_defaults_are_those_that_are_written_down() -> None:
    functions = [name for name in labkit.__all__ if inspect.isfunction(getattr(labkit, name))]
    explorers = [name for name in labkit.__all__ if name.endswith("Explorer") and name != "Explorer"]
    written = Path(__file__).with_name("signatures.txt").read_text("utf-8").splitlines()
    assert sorted(map(signature, [*functions, *explorers, *MADE])) == written
