"""Data moves one way, and imports follow it: plan → engine on a machine → trace → view → explore → course."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "labkit"

# Room -> the rooms it may import. The rooms of the first line are everybody's.
BASE = {"plan", "ring", "trace", "turns", "footprint", "language", "display"}
ALLOWED = {
    "display": set(),
    "language": set(),
    "plan": {"display"},
    "ring": {"display", "plan"},
    "trace": {"display"},
    "turns": set(),
    "footprint": {"plan", "display"},
    "machine": BASE,
    "engine": BASE,
    "cost": BASE,
    "view": BASE | {"cost"},
    "explore": BASE | {"cost", "view", "engine", "machine"},
    "diagnosis": BASE | {"engine", "machine"},
    "course": BASE | {"cost", "view", "engine", "machine", "explore"},
    "cli": BASE | {"machine", "diagnosis", "course"},
    "__init__": {"display"},
    "__main__": {"cli"},
}


def rooms_imported(source: str, room: str, depth: int) -> set[str]:
    """The rooms that a module of ``room``, ``depth`` folders below labkit, imports anywhere in its code."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.split(".")[0] == "labkit"]
            found |= {name.split(".")[1] for name in names if "." in name}
        elif isinstance(node, ast.ImportFrom):
            path = (node.module or "").split(".") if node.module else []
            if node.level == 0 and path[:1] == ["labkit"]:
                path = path[1:]
            elif node.level == 0 or node.level <= depth:
                continue  # another package, or the module's own room
            found |= {path[0]} if path else {alias.name for alias in node.names}
    return found - {room, "__version__"}


def violations(room: str, imported: set[str]) -> set[str]:
    return imported - ALLOWED[room]


def _modules():
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield path, parts[0], len(parts) - 1


@pytest.mark.parametrize(
    ("path", "room", "depth"), [pytest.param(*m, id=str(m[0].relative_to(ROOT))) for m in _modules()]
)
def test_imports_follow_the_data(path, room, depth):
    assert room in ALLOWED, f"{room} is a new room: say in ALLOWED what it may import"
    wrong = violations(room, rooms_imported(path.read_text("utf-8"), room, depth))
    assert not wrong, f"{path.name} in {room} may not import {', '.join(sorted(wrong))}"


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("engine", "from ..machine import simulate"),
        ("engine", "def late():\n    from ..machine.gpu import Gpu"),
        ("machine", "import labkit.engine"),
        ("view", "from labkit.engine import scatter"),
        ("cost", "from ..view import draw_scaling"),
        ("plan", "from . import trace"),
    ],
)
def test_the_check_sees_a_planted_violation(room, source):
    depth = 0 if room == "plan" else 1
    assert violations(room, rooms_imported(source, room, depth))
