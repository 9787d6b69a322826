"""Data moves one way, and imports follow it; no module of ours waits for itself.

Every way to name another module counts as an import: at the top of a file or within a function, for type checkers only,
or as a text (``import_module("simgpu")``, ``"-m", "labkit_classroom.grade.class_grading"``, ``f"{__name__}.{name}"``).
"""

import ast
import re
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from types import ModuleType

import pytest

from labkit.base.ours import HOME, PACKAGES

# Each package and the packages that it imports, no fewer and no more.
HOUSE = """
labkit           |
simgpu           | labkit
labkit_diagnose  | labkit simgpu
labkit_ranks     | labkit simgpu labkit_diagnose
labkit_course    | labkit simgpu labkit_diagnose
labkit_classroom | labkit simgpu labkit_ranks labkit_course
labkit_content   | labkit simgpu labkit_diagnose labkit_ranks labkit_course labkit_classroom
labkit_cli       | labkit simgpu labkit_diagnose labkit_ranks labkit_course labkit_classroom
"""
# These name other packages for users, who write labkit.ranks or labkit.course: they are entries, not imports.
ENTRIES = (
    "labkit",
    "labkit.__main__",
    "labkit.pytest_plugin",
    "labkit.course",
    "labkit.classroom",
    "labkit.distributed",
    "labkit.machine",
)

# Each room and the rooms that it imports, no fewer and no more: upper rooms stand on lower ones. A room is a folder of a
# package; the longest name that fits a module is its room. The rooms of labkit itself stand here without its name.
# (trace is what happened, and trace.recording what watches the engine at work.)
TABLE = """
base                         |
turns                        | base
plans                        | base
trace                        | base
engine                       | base turns
trace.recording              | base trace engine

simgpu.children              | base
simgpu.hooks                 | base
simgpu.handlers              | base
simgpu.stack                 | base
simgpu.state                 | base turns simgpu.hooks
simgpu.rules                 | base simgpu.handlers simgpu.state
simgpu.ops                   | base simgpu.hooks simgpu.handlers simgpu.stack simgpu.state simgpu.rules trace
simgpu.torch_api             | base simgpu.hooks simgpu.state simgpu.rules simgpu.ops trace
simgpu.features              | base simgpu.children simgpu.hooks simgpu.handlers simgpu.stack simgpu.state simgpu.rules simgpu.ops simgpu.torch_api
simgpu                       | base simgpu.children simgpu.hooks simgpu.stack simgpu.state simgpu.ops simgpu.features simgpu.torch_api plans simgpu.handlers

labkit_ranks.calls           | base simgpu
labkit_ranks.plans           | base plans
labkit_ranks.pictures        | base plans cost trace view labkit_ranks.calls labkit_ranks.plans
labkit_ranks.rank            | base turns simgpu.children simgpu.hooks trace labkit_ranks.calls simgpu
labkit_ranks.group           | base simgpu.features trace labkit_ranks.calls labkit_ranks.rank simgpu
labkit_ranks.processes       | base turns simgpu simgpu.hooks labkit_ranks.calls labkit_ranks.rank labkit_ranks.group
labkit_ranks.threads         | base turns simgpu simgpu.hooks trace labkit_ranks.calls labkit_ranks.rank labkit_ranks.group labkit_ranks.processes
labkit_ranks.torchrun        | base turns simgpu.children simgpu labkit_ranks.calls labkit_ranks.rank labkit_ranks.processes labkit_ranks.threads
labkit_ranks.notebook        | base turns simgpu.children cost simgpu trace labkit_ranks.calls labkit_ranks.planning labkit_ranks.rank labkit_ranks.threads
labkit_ranks.testing         | base turns simgpu.children simgpu labkit_ranks.calls labkit_ranks.rank labkit_ranks.threads labkit_ranks.notebook
labkit_ranks.explain         | base labkit_ranks.calls labkit_ranks.rank
labkit_ranks.planning        | base cost trace view labkit_ranks.pictures simgpu.features simgpu.state labkit_ranks.rank labkit_ranks.threads labkit_ranks.torchrun simgpu.hooks simgpu
labkit_ranks                 | base plans cost explore view simgpu labkit_ranks.plans labkit_ranks.pictures

cost                         | base plans trace
view                         | base plans trace
explore                      | base plans trace cost view
labkit_diagnose              | base plans simgpu
labkit_ranks.diagnosis       | base turns labkit_diagnose simgpu.handlers labkit_ranks.calls labkit_ranks.rank labkit_ranks.group labkit_ranks.threads labkit_ranks.torchrun simgpu
labkit_ranks.parity          | base view labkit_diagnose labkit_ranks.calls labkit_ranks.pictures labkit_ranks.rank labkit_ranks.group labkit_ranks.threads labkit_ranks.torchrun labkit_ranks.diagnosis

labkit_course                | base simgpu labkit_diagnose plans
labkit_classroom             | base turns simgpu labkit_course
labkit_classroom.sandbox.inside | base turns labkit_classroom labkit_ranks.calls labkit_ranks.group labkit_ranks.processes labkit_ranks.rank labkit_ranks.threads simgpu simgpu.children
labkit_classroom.sandbox        | base labkit_classroom labkit_classroom.sandbox.inside
labkit_classroom.handout     | base labkit_classroom
labkit_classroom.intake      | base labkit_classroom labkit_classroom.handout
labkit_classroom.grade       | base labkit_classroom labkit_classroom.sandbox labkit_classroom.handout labkit_classroom.intake
labkit_classroom.results     | base labkit_classroom labkit_classroom.handout labkit_classroom.intake labkit_classroom.grade
labkit_classroom.nbgrader    | base labkit_classroom
labkit_content               |
labkit_content.exercises     | base cost labkit_diagnose labkit_ranks.calls labkit_ranks.plans labkit_ranks.rank labkit_ranks.threads trace trace.recording turns plans engine simgpu labkit_course
labkit_content.pictures      | base explore plans view
labkit_content.repairs       | base labkit_course
labkit_content.broken        | base labkit_course labkit_content.repairs labkit_diagnose simgpu plans
labkit_content.hung          | base labkit_course labkit_content.exercises labkit_content.repairs labkit_ranks.calls
labkit_content.assignments   | base engine simgpu.torch_api plans labkit_course labkit_classroom labkit_classroom.sandbox.inside

labkit_cli                   | base simgpu.children cost labkit_ranks.planning labkit_ranks.rank labkit_ranks.threads labkit_ranks.torchrun labkit_ranks.diagnosis labkit_ranks.parity labkit_ranks.explain labkit_classroom labkit_classroom.handout labkit_classroom.intake labkit_classroom.sandbox labkit_classroom.grade labkit_classroom.results labkit_classroom.nbgrader labkit_course simgpu simgpu.features trace trace.recording view labkit_diagnose
labkit_ranks.pytest_plugin   | base simgpu.children labkit_ranks.testing
"""


def in_full(room: str) -> str:
    return room if room.split(".")[0] in PACKAGES else f"labkit.{room}"


def parsed(table: str, name=str.strip) -> dict[str, set[str]]:
    rows = [line.split("|") for line in table.splitlines() if line]
    return {name(room.strip()): set(map(name, others.split())) for room, others in rows}


ALLOWED = parsed(TABLE, in_full)

# Modules that import by a name that is known only when the program runs, and what they import so.
LATE = {
    "labkit.base.lazy_names": "the public names of a package, from its imports for type checkers",
    "labkit.base.extras": "packages of an extra, none of them labkit's",
    "simgpu.children.bootstrap.sitecustomize": "torch, which it waits for, and what its environment names",
    "labkit_classroom.assignment": "the folder of an assignment, labkit's own or a teacher's",
    "labkit_classroom.checking": "the folder of an assignment, labkit's own or a teacher's",
    "labkit_classroom.sandbox.inside.banned": "what a question's answer is to write itself",
    "labkit_classroom.sandbox.inside.worker": "what the grader names, so that students' answers start at once",
    "labkit_classroom.sandbox.inside.fork_server": "what the grader names, so that students' answers start at once",
    "labkit_course.content": "what a room asks for by its name: the content stands on the rooms that show and judge it",
    "labkit_cli.diagnose": "the user's module",
    "labkit_cli.doctor": "packages of an extra, to see whether they are there",
    "simgpu.features": "whatever lies beside it",
    "labkit_ranks.torchrun.worker": "modules of the user's script",
}


def name_of(path: Path) -> str:
    """``simgpu/ops/mode.py`` as ``simgpu.ops.mode``, a folder's ``__init__`` as the folder."""
    parts = path.relative_to(HOME).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = sorted(path for package in PACKAGES for path in (HOME / package).rglob("*.py"))
MODULES = {name_of(path): path for path in FILES}
FOLDERS = {name for name, path in MODULES.items() if path.name == "__init__.py"}
SOURCES = {name: path.read_text("utf-8") for name, path in MODULES.items()}
OURS = "|".join(PACKAGES)


class Imports(ast.NodeVisitor):
    """Collects our modules that one of them names, and the imports whose names nobody can tell."""

    def __init__(self, module: str, modules, folders) -> None:
        self.module, self.modules = module, modules
        self.base = module.split(".") if module in folders else module.split(".")[:-1]
        self.found: set[str] = set()
        self.late: list[int] = []

    def name(self, dotted: str) -> None:
        """Notes the module that ``dotted`` is, or is something of; all in a folder if it ends in a dot."""
        if dotted.endswith("."):
            self.found |= {other for other in self.modules if other.startswith(dotted)}
        parts = dotted.strip(".").split(".")
        while parts and ".".join(parts) not in self.modules:
            parts.pop()
        if parts:
            self.found.add(".".join(parts))

    def relative(self, dots: int, dotted: str) -> None:
        self.name(".".join([*self.base[: len(self.base) - dots + 1], dotted]))

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.name(alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            inner = ".".join(filter(None, [node.module, alias.name]))
            if node.level:
                self.relative(node.level, inner)
            else:
                self.name(inner)

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
        if (whole := re.fullmatch(rf"((?:{OURS})\.\w+(?:\.\w+)*\.?)(?::\w+)?(\*.*)?", text)) or (
            whole := re.fullmatch(rf"((?:{OURS}))(:\w+|\.\*.*)", text)
        ):
            self.name(whole[1])
        for code in re.findall(rf"\b(?:from|import) ((?:{OURS})\b[\w.]*)", text):
            self.name(code)

    def written(self, node: ast.expr) -> str:
        """The text that an expression gives, as far as it can be told: ``*`` stands for the rest."""
        if isinstance(node, ast.Constant):
            return str(node.value)
        if isinstance(node, ast.Name) and node.id in ("__name__", "__package__"):
            return self.module if node.id == "__name__" else ".".join(self.base)
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


def imports(source: str, module: str, modules=frozenset(MODULES), folders=frozenset(FOLDERS)) -> Imports:
    visitor = Imports(module, modules, folders)
    visitor.visit(ast.parse(source))
    return visitor


def imported(source: str, module: str, modules=frozenset(MODULES), folders=frozenset(FOLDERS)) -> set[str]:
    """The other modules of ours that ``module`` names anywhere in its code."""
    return imports(source, module, modules, folders).found - {module}


def is_entry(module: str) -> bool:
    return module in ENTRIES or module.rpartition(".")[0] in ENTRIES[1:]


def room_of(module: str) -> str:
    parts = module.split(".")
    while parts and ".".join(parts) not in ALLOWED:
        parts.pop()
    return ".".join(parts)


def rooms_of(module: str, others: set[str]) -> set[str]:
    """The rooms of ``others``, but for that of ``module``."""
    return {room_of(other) or other for other in others if not is_entry(other)} - {room_of(module)}


def violations(module: str, others: set[str]) -> set[str]:
    """The rooms that ``module`` imports against the table."""
    return rooms_of(module, others) - ALLOWED[room_of(module)]


@cache
def graph() -> dict[str, set[str]]:
    """Each module, but for entries, and those that it imports."""
    return {module: imported(source, module) for module, source in SOURCES.items() if not is_entry(module)}


def by_room(imports: dict[str, set[str]]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for module, others in imports.items():
        found.setdefault(room_of(module), set()).update(rooms_of(module, others))
    return found


def by_package(imports: dict[str, set[str]]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {package: set() for package in PACKAGES}
    for module, others in imports.items():
        package = module.split(".")[0]
        found[package] |= {other.split(".")[0] for other in others} - {package}
    return found


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Modules that import one another in a ring; [] if there are none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_packages_import_what_the_house_says_and_nothing_else():
    assert by_package(graph()) == parsed(HOUSE)
    assert circle(parsed(HOUSE)) == []


def test_the_picture_of_the_packages_shows_who_imports_whom():
    """Each line is an import, and each import is a line or a longer path of lines."""
    house = parsed(HOUSE)
    lines = re.findall(r"^    (\w+) --> (\w+)$", (HOME / "CONTRIBUTING.md").read_text("utf-8"), re.MULTILINE)
    drawn = {package: {lower for upper, lower in lines if upper == package} for package in house}

    def below(package: str) -> set[str]:
        return drawn[package].union(*map(below, drawn[package]))

    for package, others in house.items():
        assert drawn[package] <= others <= below(package)
        assert not any(lower in below(other) for lower in drawn[package] for other in drawn[package])


def test_imports_follow_the_data():
    assert [module for module in graph() if not room_of(module)] == [], (
        "say in TABLE what a new room may import"
    )
    wrong = {module: found for module, others in graph().items() if (found := violations(module, others))}
    assert wrong == {}, "these import rooms that TABLE does not allow them"


def test_the_table_allows_nothing_that_is_not_needed():
    used = by_room(graph())
    assert {room: others - used[room] for room, others in ALLOWED.items() if others - used[room]} == {}


# How many names of simgpu other packages may use.
MOST_NAMES = 20


def names_past_the_face(source: str) -> set[str]:
    """What ``source`` imports of simgpu that is neither a name of its face nor in a module of the face."""
    import simgpu

    face: dict = {}
    exec("from simgpu import *", face)
    modules = {value.__name__ for value in face.values() if isinstance(value, ModuleType)}
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and not node.level and node.module == "simgpu":
            found |= {f"simgpu.{alias.name}" for alias in node.names if alias.name not in simgpu.__all__}
        elif isinstance(node, ast.ImportFrom) and not node.level and str(node.module).startswith("simgpu."):
            inside = any(f"{node.module}.".startswith(f"{module}.") for module in modules)
            found |= set() if inside else {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("simgpu.")}
    return found


def test_no_other_package_reaches_names_past_the_face_of_simgpu():
    import simgpu

    assert len(simgpu.__all__) <= MOST_NAMES
    found = {
        name: names_past_the_face(text) for name, text in SOURCES.items() if name.split(".")[0] != "simgpu"
    }
    assert {name: names for name, names in found.items() if names} == {}
    assert names_past_the_face(
        "from simgpu.state.gpu import Gpu\nimport simgpu.ops.mode\nfrom simgpu import __getattr__"
    )
    assert not names_past_the_face(
        "from simgpu import Gpu, hooks\nfrom simgpu.children.environment import MachineDescription"
    )


def test_no_room_stands_on_one_that_stands_on_it():
    assert circle(by_room(graph())) == []


def test_no_module_waits_for_itself():
    # A module that imports the package (``from labkit import __version__``) does not wait for what that gives lazily.
    assert (
        circle({module: {o for o in others if not is_entry(o)} for module, others in graph().items()}) == []
    )


def test_what_only_running_can_tell_is_listed():
    assert {module for module, source in SOURCES.items() if imports(source, module).late} == set(LATE)


@pytest.mark.parametrize(("module", "source"), [
    ("labkit.engine.replicate", "from simgpu import simulate"),
    ("labkit.engine.replicate", "def late():\n    from simgpu.state.gpu import Gpu"),
    ("simgpu.machine", "import labkit.engine"),
    ("simgpu.rules.operators", "from ..ops.mode import MachineMode"),
    ("simgpu.state.gpu", "from ..torch_api.cuda import CudaFunctions"),
    ("labkit.view.split", "from labkit.engine import scatter"),
    ("labkit.trace.events", "from ..engine import scatter"),
    ("labkit.cost.step", "from ..view import draw_timeline"),
    ("labkit.plans.split", "from ..trace import events"),
    ("labkit.engine.gather", "if TYPE_CHECKING:\n    from simgpu import Machine"),
    ("labkit.engine.gather", "sys.modules.get('simgpu.machine')"),
    ("labkit.engine.gather", "begin = 'labkit_ranks.processes.deadlock_detector:begin'"),
    ("labkit.engine.gather", "[sys.executable, '-m', 'labkit_classroom.grade.class_grading']"),
    ("labkit.engine.gather", "code = 'import torch; from labkit_diagnose import run'"),
    ("labkit.engine.gather", "import_module('..view.split', __package__)"),
    ("labkit.engine.gather", "ours = name.startswith('simgpu.state.')"),
    ("simgpu.state.gpu", "import_module(f'labkit_cli.{name}')"),
    ("labkit.cost", "import_module(f'.step.{name}', __name__), import_module(f'{__name__}.step', x), 'labkit.view'"),
])  # fmt: skip
def test_the_check_sees_a_planted_violation(module, source):
    assert violations(module, imported(source, module))


def test_each_test_of_which_some_cases_are_chosen_is_there():
    lines = (HOME / "tests" / "sampled.txt").read_text("utf-8").splitlines()
    named = [line.split()[1].split("::") for line in lines if line[0] != "#"]
    assert len(named) > 50
    assert not [test for file, test in named if f"def {test}(" not in (HOME / file).read_text("utf-8")]
