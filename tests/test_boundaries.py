"""Data moves one way, and imports follow it; no module of labkit waits for itself.

Every way to name another module counts as an import: at the top of a file or within a function, for type checkers only,
or as a text (``import_module("labkit.machine")``, ``"-m", "labkit.classroom.grade.whole_class"``, ``f"{__name__}.{name}"``).
"""

import ast
import re
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "labkit"
CONTENT = (
    ROOT.parent / "content"
)  # in a wheel it lies in labkit, and its modules are labkit.content.… either way

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
machine.hooks     | base
machine.handlers  | base
machine.stack     | base
machine.state     | base turns machine.hooks
machine.rules     | base machine.handlers machine.state
machine.ops       | base machine.hooks machine.handlers machine.stack machine.state machine.rules trace
machine.torch_api | base machine.hooks machine.state machine.rules machine.ops trace
machine.features  | base children machine.hooks machine.handlers machine.stack machine.state machine.rules machine.ops machine.torch_api
machine           | base turns children machine.hooks machine.stack machine.state machine.ops machine.features machine.torch_api plans

distributed.calls     | base machine.state
distributed.plans     | base plans
distributed.pictures  | base plans cost trace view distributed.calls distributed.plans
distributed.rank      | base turns children machine.hooks machine.state trace distributed.calls
distributed.group     | base machine.features machine.stack machine.ops machine.state trace distributed.calls distributed.rank
distributed.processes | base turns machine trace distributed.calls distributed.rank distributed.group
distributed.threads   | base turns machine machine.state trace distributed.calls distributed.rank distributed.group distributed.processes
distributed.torchrun  | base turns children machine machine.state distributed.calls distributed.rank distributed.processes distributed.threads
distributed.notebook  | base turns children cost machine trace distributed.calls distributed.planning distributed.rank distributed.threads
distributed.testing   | base turns machine distributed.calls distributed.rank distributed.threads distributed.notebook
distributed.explain   | base distributed.calls distributed.rank
distributed.planning  | base cost trace view distributed.pictures machine.hooks machine.features machine.state distributed.rank distributed.threads distributed.torchrun
distributed           | base plans cost explore view machine distributed.plans distributed.threads distributed.pictures

cost              | base plans trace
view              | base plans trace cost
explore           | base plans trace cost view
diagnosis         | base plans machine machine.features machine.state
distributed.diagnosis | base turns diagnosis machine.handlers machine.state distributed.calls distributed.rank distributed.group distributed.threads distributed.torchrun

content           |
course            | base content machine diagnosis plans
classroom         | base turns machine content course
classroom.wall.inside | classroom
classroom.wall    | base content classroom classroom.wall.inside
classroom.handout | base classroom
classroom.intake  | base classroom classroom.handout
classroom.grade   | base classroom classroom.wall classroom.handout classroom.intake
classroom.results | base classroom classroom.handout classroom.intake classroom.grade
classroom.nbgrader | base classroom
content.exercises | base cost diagnosis distributed.calls distributed.plans distributed.rank distributed.threads trace trace.recording turns plans engine machine course
content.repairs | base content course
content.broken | base course content.repairs diagnosis machine plans
content.hung | base course content.exercises content.repairs distributed.calls
content.assignments | engine machine.torch_api plans course classroom distributed.threads

cli               | base children cost distributed.planning distributed.rank distributed.processes distributed.threads distributed.torchrun distributed.diagnosis distributed.explain classroom classroom.handout classroom.intake classroom.wall classroom.grade classroom.results classroom.nbgrader course machine machine.features machine.torch_api machine.state trace trace.recording view diagnosis
__init__          | base machine view distributed.processes distributed.notebook
pytest_plugin     | base distributed.testing
__main__          | cli
"""
ROWS = [line.split("|") for line in TABLE.splitlines() if line]
ALLOWED = {room.strip(): set(others.split()) for room, others in ROWS}


# Modules that import by a name that is known only when the program runs, and what they import so.
LATE = {
    "__init__": "public names, from the table in __init__.pyi",
    "base.extras": "packages of an extra, none of them labkit's",
    "children.bootstrap.sitecustomize": "torch, which it waits for, and what its environment names",
    "classroom.assignment": "the folder of an assignment, labkit's own or a teacher's",
    "classroom.checking": "the folder of an assignment, labkit's own or a teacher's",
    "classroom.wall.inside.banned": "what a question's answer is to write itself",
    "classroom.wall.inside.student": "what the grader names, so that students' answers start at once",
    "classroom.wall.inside.template": "what the grader names, so that students' answers start at once",
    "content": "what a room asks for by its name: the content stands on the rooms that show and judge it",
    "course": "what lessons import, from the table of public names there",
    "cli.diagnose": "the user's module",
    "cli.doctor": "packages of an extra, none of them labkit's",
    "machine.features": "whatever lies beside it",
    "distributed.torchrun.worker": "modules of the user's script",
}


def name_of(path: Path) -> str:
    """``labkit/machine/ops/mode.py`` as ``machine.ops.mode``, a folder's ``__init__`` as the folder."""
    inside = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.relative_to(CONTENT.parent)
    parts = inside.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


FILES = sorted([*ROOT.rglob("*.py"), *CONTENT.rglob("*.py")])
MODULES = {name_of(path): path for path in FILES}
PACKAGES = {name for name, path in MODULES.items() if path.name == "__init__.py"}
SOURCES = {name: path.read_text("utf-8") for name, path in MODULES.items()}


class Imports(ast.NodeVisitor):
    """Collects the modules of labkit that one module names, and the imports whose names nobody can tell."""

    def __init__(self, module: str, modules, packages) -> None:
        self.module, self.modules = module, modules
        here = [] if module == "__init__" else module.split(".")
        self.base = here if module in packages | {"__init__"} else here[:-1]
        self.found: set[str] = set()
        self.late: list[int] = []

    def name(self, dotted: str) -> None:
        """Notes the module that ``dotted`` (without labkit) is, or is something of; all in a package if it ends in a dot."""
        if dotted.endswith(".") and dotted.strip("."):
            self.found |= {other for other in self.modules if other.startswith(dotted)}
        parts = dotted.strip(".").split(".")
        while parts and ".".join(parts) not in self.modules:
            parts.pop()
        self.found.add(".".join(parts) or "__init__")

    def relative(self, dots: int, dotted: str) -> None:
        self.name(".".join([*self.base[: len(self.base) - dots + 1], dotted]))

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name.split(".")[0] == "labkit":
                self.name(alias.name.partition(".")[2])

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            inner = ".".join(filter(None, [node.module, alias.name]))
            if node.level:
                self.relative(node.level, inner)
            elif inner.split(".")[0] == "labkit":
                self.name(inner.partition(".")[2])

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring names modules to its readers
            self.visit(node.value)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self.text(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        self.text(self.written(node))
        self.generic_visit(node)

    def text(self, text: str) -> None:
        if whole := re.fullmatch(r"labkit\.(\w+(?:\.\w+)*\.?)(?::\w+)?(\*.*)?", text):
            self.name(whole[1])
        for code in re.findall(r"\b(?:from|import) labkit\.([\w.]+)", text):
            self.name(code)

    def written(self, node: ast.expr) -> str:
        """The text that an expression gives, as far as it can be told: ``*`` stands for the rest."""
        own = "labkit" if self.module == "__init__" else f"labkit.{self.module}"
        if isinstance(node, ast.Constant):
            return str(node.value)
        if isinstance(node, ast.Name) and node.id in ("__name__", "__package__"):
            return own if node.id == "__name__" else ".".join(["labkit", *self.base])
        if isinstance(node, ast.JoinedStr):
            return "".join(
                self.written(part.value if isinstance(part, ast.FormattedValue) else part)
                for part in node.values
            )
        return "*"

    def visit_Call(self, node: ast.Call) -> None:
        function = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if function in ("import_module", "__import__", "find_spec", "run_module") and node.args:
            text = self.written(node.args[0])
            if text.startswith("."):
                dots = len(text) - len(text.lstrip("."))
                self.relative(dots, text[dots:])
            elif text.startswith("*"):
                self.late.append(node.lineno)
        self.generic_visit(node)


def imports(source: str, module: str, modules=frozenset(MODULES), packages=frozenset(PACKAGES)) -> Imports:
    visitor = Imports(module, modules, packages)
    visitor.visit(ast.parse(source))
    return visitor


def imported(source: str, module: str, modules=frozenset(MODULES), packages=frozenset(PACKAGES)) -> set[str]:
    """The other modules of labkit that ``module`` names anywhere in its code."""
    return imports(source, module, modules, packages).found - {module}


def room_of(module: str) -> str:
    parts = module.split(".")
    while parts and ".".join(parts) not in ALLOWED:
        parts.pop()
    return ".".join(parts)


def rooms_of(module: str, others: set[str]) -> set[str]:
    """The rooms of ``others``, but for that of ``module``."""
    return {room_of(other) or other for other in others} - {room_of(module), "__init__"}


def violations(module: str, others: set[str]) -> set[str]:
    """The rooms that ``module`` imports against the table."""
    return rooms_of(module, others) - ALLOWED[room_of(module)]


@cache
def graph() -> dict[str, set[str]]:
    """Each module of labkit and those that it imports."""
    return {module: imported(source, module) for module, source in SOURCES.items()}


def by_room(imports: dict[str, set[str]]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for module, others in imports.items():
        found.setdefault(room_of(module), set()).update(rooms_of(module, others))
    return found


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Modules that import one another in a ring; [] if there are none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_imports_follow_the_data():
    assert [module for module in SOURCES if not room_of(module)] == [], (
        "say in TABLE what a new room may import"
    )
    wrong = {module: found for module, others in graph().items() if (found := violations(module, others))}
    assert wrong == {}, "these import rooms that TABLE does not allow them"


def test_the_table_allows_nothing_that_is_not_needed():
    used = by_room(graph())
    assert {room: others - used[room] for room, others in ALLOWED.items() if others - used[room]} == {}


def test_no_room_stands_on_one_that_stands_on_it():
    assert circle(by_room(graph())) == []


# The parts beside the core, and which of the others each may know: tests/test_core_alone.py deletes them all.
BESIDE = {
    "distributed": set(), "course": {"content"}, "classroom": {"course", "content"},
    # What it holds is written in their words, and part two of the course runs ranks.
    "content": {"course", "classroom", "distributed"},
}  # fmt: skip
COMMANDS = (
    "cli",
    "__init__",
    "__main__",
    "pytest_plugin",
)  # a command, or a public name, is there for a part


def test_parts_beside_the_core_know_each_other_as_little_as_can_be():
    wrong = {
        module: known
        for module, others in graph().items()
        if (part := module.split(".")[0]) not in COMMANDS
        and (
            known := {other.split(".")[0] for other in others}
            & set(BESIDE) - BESIDE.get(part, set()) - {part}
        )
    }
    assert wrong == {}


def test_no_module_waits_for_itself():
    # A module that imports the package (``from .. import __version__``) does not wait for what that gives lazily.
    assert circle(graph() | {"__init__": set()}) == []


def test_what_only_running_can_tell_is_listed():
    assert {module for module, source in SOURCES.items() if imports(source, module).late} == set(LATE)


@pytest.mark.parametrize(("module", "source"), [
    ("engine.replicate", "from ..machine import simulate"),
    ("engine.replicate", "def late():\n    from ..machine.state.gpu import Gpu"),
    ("machine.machine", "import labkit.engine"),
    ("machine.rules.operators", "from ..ops.mode import MachineMode"),
    ("machine.state.gpu", "from ..torch_api.cuda import CudaFunctions"),
    ("view.split", "from labkit.engine import scatter"),
    ("trace.events", "from ..engine import scatter"),
    ("cost.step", "from ..view import draw_scaling"),
    ("plans.split", "from ..trace import events"),
    ("engine.gather", "if TYPE_CHECKING:\n    from ..machine import Machine"),
    ("engine.gather", "sys.modules.get('labkit.machine')"),
    ("engine.gather", "begin = 'labkit.distributed.processes.lookout:begin'"),
    ("engine.gather", "[sys.executable, '-m', 'labkit.classroom.grade.whole_class']"),
    ("engine.gather", "code = 'import torch; from labkit.diagnosis import run'"),
    ("engine.gather", "import_module('..machine.machine', __package__)"),
    ("engine.gather", "ours = name.startswith('labkit.machine.')"),
    ("machine.state.gpu", "import_module(f'labkit.cli.{name}')"),
    ("cost", "import_module(f'.step.{name}', __name__), import_module(f'{__name__}.step', x), 'labkit.view'"),
])  # fmt: skip
def test_the_check_sees_a_planted_violation(module, source):
    assert violations(module, imported(source, module))


@pytest.mark.parametrize("sources", [
    {"a": "from . import b", "b": "from .a import x"},
    {"a": "from .b import x", "b": "def late():\n    from .c import x", "c": "import labkit.a"},
    {"a": "from .b import x", "b": "if TYPE_CHECKING:\n    from .a import X"},
    {"a": "from .b import x", "b": "load('labkit.a:x')"},
    {"a": "import_module(f'{__name__}.{name}')", "a.b": "from labkit.a import x"},
    {"a": "import_module('.b', __package__)", "a.b": "from labkit.a import x"},
])  # fmt: skip
def test_the_check_sees_a_planted_circle(sources):
    packages = {"a"} & {name.partition(".")[0] for name in sources if "." in name}
    assert circle({name: imported(text, name, set(sources), packages) for name, text in sources.items()})


def test_a_docstring_and_a_message_name_modules_to_their_readers():
    source = 'def f():\n    """As :mod:`labkit.a` does."""\n    print("use labkit.a.x(), then labkit.a")'
    assert imported(source, "b", {"a", "b"}, set()) == set()


def test_the_check_sees_a_name_that_only_running_can_tell():
    assert imports("def load(name):\n    return import_module(name)", "a", {"a"}, set()).late == [2]
