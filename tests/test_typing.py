"""Type checkers and editors see the names and types that labkit has."""

import ast
import builtins
import dataclasses
import inspect
import subprocess
import sys
import typing
from pathlib import Path

import labkit

ROOT = Path(__file__).parent.parent

RIGHT = """
import torch
import labkit

plan: labkit.Split = labkit.split(30, 8)
found: labkit.Diagnosis = labkit.diagnose(torch.nn.Linear(5, 2), torch.ones(4, 5), gpus=2)
with labkit.simulate(gpus=2, memory="1 GiB") as machine, labkit.record() as trace:
    outputs = labkit.DataParallel(torch.nn.Linear(5, 2).cuda())(torch.ones(4, 5))
first: labkit.Event = trace.events[0]
used: int = machine.memory(1)
"""
WRONG = """
import labkit

labkit.diagnose(3, gpus="x")
labkit.nonsense()
plan: int = labkit.split(30, 8)
"""


def test_a_type_checker_finds_the_mistakes_in_a_script_and_no_others(tmp_path):
    scripts = {"right.py": RIGHT, "wrong.py": WRONG}
    for name, text in scripts.items():
        (tmp_path / name).write_text(text.lstrip())
    # With the settings and the cache of `make lint`, which has then read torch already.
    command = [sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml", "--no-error-summary"]
    command += [*(tmp_path / name for name in scripts), ROOT / "labkit" / "__init__.pyi"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    # (From its cache mypy may say a path of the last run.)
    found = [line.rpartition("/")[2] for line in done.stdout.splitlines()]
    assert [line for line in found if line.startswith(tuple(scripts))] == [
        'wrong.py:3: error: Argument 1 to "diagnose" has incompatible type "int"; expected Module  [arg-type]',
        'wrong.py:3: error: Argument "gpus" to "diagnose" has incompatible type "str"; expected "int | None"'
        "  [arg-type]",
        'wrong.py:4: error: Module has no attribute "nonsense"  [attr-defined]',
        'wrong.py:5: error: Incompatible types in assignment (expression has type "Split", variable has type "int")'
        "  [assignment]",
    ], done.stdout + done.stderr


def test_type_checkers_see_the_names_that_are_loaded_on_first_use():
    """They read __init__.pyi as Python, the package reads its lines: both must find the same."""
    tree = ast.parse(Path(labkit.__file__).with_suffix(".pyi").read_text("utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    seen = {alias.asname: "." * node.level + str(node.module) for node in imports for alias in node.names}
    assert seen == labkit._names.modules()
    assert sorted(["__version__", *seen]) == sorted(labkit.__all__) == dir(labkit)


def _annotations(value):
    """The types that a function returns; of a class of results, those of its fields, properties and methods."""
    if dataclasses.is_dataclass(value):
        yield from ((value.__module__, note) for note in inspect.get_annotations(value).values())
        for name, member in vars(value).items():
            if not name.startswith("_"):
                yield from _annotations(member)
    elif isinstance(value, property):
        yield from _annotations(value.fget)
    elif inspect.isfunction(value):
        yield value.__module__, inspect.get_annotations(value).get("return", "None")


class _Names(dict):
    """The names of a module; one that only type checkers import stands for no type of labkit."""

    def __missing__(self, name):
        return getattr(builtins, name, typing.Any)


def _types(note):
    yield note
    for part in typing.get_args(note):
        yield from _types(part)


def _returned(value):
    for module, note in _annotations(value):
        note = eval(note, {}, _Names(vars(sys.modules[module]))) if isinstance(note, str) else note
        yield from (kind for kind in _types(note) if inspect.isclass(kind))


def test_every_type_that_is_given_back_can_be_imported_from_labkit():
    missing = {
        f"{kind.__qualname__}, from {name}"
        for name in labkit.__all__
        for kind in _returned(getattr(labkit, name))
        if kind.__module__.startswith("labkit.") and getattr(labkit, kind.__name__, None) is not kind
    }
    assert not missing
