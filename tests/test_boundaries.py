"""Data moves one way, and imports follow it; no module of labkit waits for itself."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "labkit"

# Each room and the rooms that it imports, no fewer and no more: upper rooms stand on lower ones. A room is a folder of
# labkit, or of labkit/machine; the longest name that fits a module is its room. (trace is what happened, and
# trace.recording what watches the engine at work.)
TABLE = """
base              |
turns             | base
plans             | base
trace             | base
engine            | base turns
trace.recording   | base trace engine

children          | base
machine.handlers  |
machine.stack     |
machine.state     | base turns
machine.rules     | base machine.handlers machine.state
machine.ops       | base machine.handlers machine.stack machine.state machine.rules machine.features trace
machine.features  | base children machine.handlers machine.stack machine.state machine.rules machine.ops
machine.torch_api | base machine.state machine.rules machine.ops machine.features trace
machine           | base children machine.stack machine.state machine.ops machine.features machine.torch_api plans

distributed       | base turns children machine machine.features machine.ops machine.state trace

cost              | base plans trace
view              | base plans trace cost
explore           | base plans trace cost view
diagnosis         | base plans machine machine.features machine.state
distributed.diagnosis | base turns diagnosis distributed

content           |
course            | base plans machine diagnosis
classroom         | base plans machine content course

cli               | base children distributed distributed.diagnosis classroom course machine machine.features machine.state trace trace.recording view diagnosis
__init__          | base
__main__          | cli
"""
ROWS = [line.split("|") for line in TABLE.splitlines() if line]
ALLOWED = {room.strip(): set(others.split()) for room, others in ROWS}


def name_of(path: Path) -> str:
    """``labkit/machine/ops/mode.py`` as ``machine.ops.mode``, a folder's ``__init__`` as the folder."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


MODULES = {name_of(path): path for path in sorted(ROOT.rglob("*.py"))}
PACKAGES = {name for name, path in MODULES.items() if path.name == "__init__.py"}


def imported(source: str, module: str, modules=frozenset(MODULES), packages=frozenset(PACKAGES)) -> set[str]:
    """The modules of labkit that ``module`` imports anywhere in its code, but for what is only for type checkers."""
    found: set[str] = set()
    here = [] if module == "__init__" else module.split(".")
    base = here if module in packages else here[:-1]
    for node in _walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {
                a.name.partition(".")[2] or "__init__" for a in node.names if a.name.split(".")[0] == "labkit"
            }
        elif isinstance(node, ast.ImportFrom):
            path = node.module.split(".") if node.module else []
            if node.level:
                path = base[: len(base) - node.level + 1] + path
            elif path[:1] == ["labkit"]:
                path = path[1:]
            else:
                continue
            for alias in node.names:
                inner = ".".join([*path, alias.name])
                found.add(inner if inner in modules else ".".join(path) or "__init__")
    return found - {module}


def _walk(node: ast.AST):
    for child in ast.iter_child_nodes(node):
        if (
            isinstance(child, ast.If)
            and isinstance(child.test, ast.Name)
            and child.test.id == "TYPE_CHECKING"
        ):
            yield from (inner for other in child.orelse for inner in [other, *_walk(other)])
        else:
            yield child
            yield from _walk(child)


def room_of(module: str) -> str:
    parts = module.split(".")
    while parts and ".".join(parts) not in ALLOWED:
        parts.pop()
    return ".".join(parts)


def rooms_of(module: str, source: str) -> set[str]:
    """The other rooms that ``module`` imports."""
    found = {room_of(other) or other for other in imported(source, module)}
    return found - {room_of(module), "__init__"}


def violations(module: str, source: str) -> set[str]:
    return rooms_of(module, source) - ALLOWED[room_of(module)]


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Modules that import one another in a ring; [] if there are none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


@pytest.mark.parametrize("module", MODULES)
def test_imports_follow_the_data(module):
    assert room_of(module), f"{module} is in a new room: say in ALLOWED what it may import"
    wrong = violations(module, MODULES[module].read_text("utf-8"))
    assert not wrong, f"{module} may not import {', '.join(sorted(wrong))}"


def test_the_table_allows_nothing_that_is_not_needed():
    used: dict[str, set[str]] = {room: set() for room in ALLOWED}
    for module, path in MODULES.items():
        used[room_of(module)] |= rooms_of(module, path.read_text("utf-8"))
    assert {room: others - used[room] for room, others in ALLOWED.items() if others - used[room]} == {}


def test_the_table_is_in_order():
    """No room stands on one that stands on it."""
    assert not circle(ALLOWED)


def test_no_module_waits_for_itself():
    graph = {module: imported(path.read_text("utf-8"), module) for module, path in MODULES.items()}
    # What the package itself imports is not asked for by ``from .. import __version__`` within it.
    graph["__init__"] = set()
    assert not circle(graph)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("engine.replicate", "from ..machine import simulate"),
        ("engine.replicate", "def late():\n    from ..machine.state.gpu import Gpu"),
        ("machine.machine", "import labkit.engine"),
        ("machine.rules.operators", "from ..ops.mode import MachineMode"),
        ("machine.state.gpu", "from ..torch_api.cuda import CudaFunctions"),
        ("view.split", "from labkit.engine import scatter"),
        ("trace.events", "from ..engine import scatter"),
        ("cost.step", "from ..view import draw_scaling"),
        ("plans.split", "from ..trace import events"),
    ],
)
def test_the_check_sees_a_planted_violation(module, source):
    assert violations(module, source)


@pytest.mark.parametrize(
    "sources",
    [
        {"a": "from . import b", "b": "from .a import x"},
        {"a": "from .b import x", "b": "def late():\n    from .c import x", "c": "import labkit.a"},
    ],
)
def test_the_check_sees_a_planted_circle(sources):
    assert circle({name: imported(text, name, set(sources), set()) for name, text in sources.items()})


def test_what_only_type_checkers_import_closes_no_circle():
    source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .b import x\nelse:\n    from .c import y"
    assert imported(source, "a", {"a", "b", "c"}, set()) == {"c"}
