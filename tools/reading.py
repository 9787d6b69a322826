"""List the functions of labkit that an ordinary DataParallel script runs, file by file, as a reading list.

``python -m tools.reading`` runs the script below on a simulated machine, notes the calls, and prints
``docs/reading.md``. A test compares the file with a new run, and limits the code to read to 2,000 lines.
"""

from __future__ import annotations

import ast
import gc
import io
import re
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from labkit.base.ours import HOME, is_our_file

# The chapters of the script: a title, the code, and a description.
SCRIPT = (
    (
        "The machine is opened",
        "machine = labkit.simulate(gpus=2)",
        "From here on torch sees two GPUs: one table of patches replaces functions of torch, and a function mode sees "
        "every call.",
    ),
    (
        "The model and a batch move to a GPU",
        'model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to("cuda:0")\n'
        'x, y = torch.randn(6, 4).to("cuda:0"), torch.randn(6, 2).to("cuda:0")',
        "The values are copied in host memory, and the copy's storage gets a mark with its GPU. The reference counts "
        "of the marks give the memory in use on each GPU.",
    ),
    (
        "nn.DataParallel calls two replicas",
        "wrapped = nn.DataParallel(model)\n"
        "optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)\n"
        "output = wrapped(x)",
        "PyTorch's own Python runs: it scatters the batch, copies the model, calls the replicas in threads, and "
        "gathers their outputs. The machine provides the functions of C++, and one thread runs at a time.",
    ),
    (
        "The loss goes backward, and the optimizer steps",
        "loss = nn.functional.mse_loss(output, y)\nloss.backward()\noptimizer.step()",
        "C++ makes the gradients. They get their mark where Python first sees them.",
    ),
    (
        "The second step",
        "optimizer.zero_grad()\nnn.functional.mse_loss(wrapped(x), y).backward()\noptimizer.step()",
        "Little of it has not run before.",
    ),
    (
        "Devices are mixed",
        'try:\n    x + x.to("cuda:1")\nexcept RuntimeError as error:\n    print(error)',
        "The marks differ, so the call runs operator by operator, and each operator is checked as on CUDA.",
    ),
    (
        "A checkpoint is saved and loaded",
        'torch.save(model.state_dict(), "model.pt")\n'
        'model.load_state_dict(torch.load("model.pt", map_location="cuda:1"))',
        "A checkpoint names the GPU of each tensor, as on a real machine.",
    ),
    (
        "The machine is closed",
        "machine.close()",
        "One loop takes all patches out, and torch is as before.",
    ),
)
BEGIN = "import torch\nfrom torch import nn\n\nimport labkit"

# Forty functions that explain the rest, in the order in which to read them.
FIRST = """
simgpu/simulation.py: simulate
simgpu/machine.py: Machine.activate Machine.gpu Machine.close
simgpu/torch_api/table.py: table
labkit/base/patches.py: Patch.wrap Patches.put_in Patches.take_out
simgpu/state/current_machine.py: machine_in_use replaces without_function_modes
simgpu/ops/mode.py: MachineMode.__torch_function__ MachineMode.general
simgpu/state/placement.py: gpu_of put
simgpu/state/gpu.py: Gpu.put Gpu.make_room Gpu.recount
simgpu/ops/moves.py: move _construct _copy_
simgpu/torch_api/cuda.py: functions_of
simgpu/torch_api/collectives.py: Collectives._scatter Collectives._broadcast_coalesced Collectives._gather
labkit/turns/task_group.py: TaskGroup.add TaskGroup.wait_for
labkit/turns/scheduler.py: Scheduler.yield_turn Scheduler.run_next Scheduler.check_deadlock
labkit/turns/locks.py: _wrap_acquire
simgpu/ops/gradients.py: mark_gradient _run_engine
simgpu/state/leaves.py: Leaves.note Leaves.look
simgpu/rules/functions.py: check_function
simgpu/ops/mixed.py: run_mixed _Replay.operator
simgpu/rules/operators.py: check_operator
simgpu/ops/mode.py: translate_cpu_error
"""

FEATURES = "simgpu/features/"
_Defined = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Function:
    """A function of labkit.

    name    with the enclosing class or function.
    lines   how many lines of code, without docstring, comments and inner functions.
    says    the first paragraph of the docstring.
    """

    path: str
    name: str
    first: int
    lines: int
    says: str

    @property
    def listed_name(self) -> str:
        """Return the name in the list: that of the outermost function."""
        return self.name.partition(".<locals>")[0]


@dataclass
class Chapter:
    """A chapter of the script, and the functions called there for the first time."""

    title: str
    code: str
    about: str
    functions: list[Function] = field(default_factory=list)


def chapters() -> list[Chapter]:
    """Run the script; return the chapters with newly called functions."""
    story = [Chapter(*chapter) for chapter in SCRIPT]
    names: dict[str, Any] = {}
    exec(BEGIN, names)
    names["labkit"].set_language("en")
    noted: set[Function] = set()
    current = story[0]

    def note(frame: FrameType, event: str, _: object) -> None:
        found = _function_of(frame.f_code) if event == "call" else None
        if found is not None and found not in noted and not _importing(frame):
            noted.add(found)
            current.functions.append(found)

    gc.disable()  # a collection may call functions at any time
    with tempfile.TemporaryDirectory() as folder, chdir(folder), redirect_stdout(io.StringIO()):
        for chapter in story:
            current, code = chapter, compile(chapter.code, "train.py", "exec")
            threading.setprofile(note)
            sys.setprofile(note)
            try:
                exec(code, names)
            finally:
                sys.setprofile(None)
                threading.setprofile(None)
    gc.enable()
    return story


def _importing(frame: FrameType | None) -> bool:
    """Whether a module of labkit is being imported, so that the call does not count."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and is_our_file(frame.f_code.co_filename):
            return True
        frame = frame.f_back
    return False


@cache
def _function_of(code: CodeType) -> Function | None:
    """Return the function of labkit around ``code`` (a lambda, a comprehension); None for code outside of labkit."""
    path = Path(code.co_filename)
    if not is_our_file(code.co_filename) or code.co_name == "<module>":
        return None
    name = re.sub(r"\.<locals>\.<\w+>.*", "", code.co_qualname)
    found = [one for one in _functions_in(path) if one.name == name and one.first <= code.co_firstlineno]
    return max(found, key=lambda one: one.first, default=None)


@cache
def _functions_in(path: Path) -> tuple[Function, ...]:
    """Return the functions of a module, with inner functions and methods."""
    tree = ast.parse(path.read_text("utf-8"))
    return tuple(_functions(tree, path.relative_to(HOME).as_posix(), "", _lines_of_code(tree)))


def _functions(node: ast.AST, path: str, within: str, code: set[int]) -> Iterator[Function]:
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, _Defined):
            name = within + inner.name
            parts = list(_functions(inner, path, f"{name}.<locals>.", code))
            first = min([inner.lineno, *(decorator.lineno for decorator in inner.decorator_list)])
            lines = len(code.intersection(range(first, (inner.end_lineno or first) + 1)))
            yield Function(path, name, first, lines - sum(part.lines for part in parts), _says(inner))
            yield from parts
        elif isinstance(inner, ast.ClassDef):
            yield from _functions(inner, path, f"{within}{inner.name}.", code)
        elif not isinstance(inner, ast.expr):
            yield from _functions(inner, path, within, code)


def _lines_of_code(tree: ast.Module) -> set[int]:
    """Return the numbers of the lines on which a statement or expression begins, except docstrings."""
    nodes = list(ast.walk(tree))
    documented = [node for node in nodes if isinstance(node, (_Defined, ast.ClassDef, ast.Module))]
    docstrings = {node.body[0].lineno for node in documented if ast.get_docstring(node)}
    return {node.lineno for node in nodes if isinstance(node, (ast.stmt, ast.expr))} - docstrings


def _says(node: _Defined | ast.Module) -> str:
    """Return the first paragraph of a docstring as Markdown, in one line."""
    text = " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split())
    return re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text).replace("``", "`")


def total(story: list[Chapter]) -> int:
    """Return the number of lines of code, without the features, which the script does not need."""
    return sum(
        one.lines for chapter in story for one in chapter.functions if not one.path.startswith(FEATURES)
    )


def page(story: list[Chapter]) -> str:
    """Return the reading list as Markdown."""
    functions = [one for chapter in story for one in chapter.functions]
    features = sorted({one.path for one in functions if one.path.startswith(FEATURES)})
    core = [one for one in functions if one.path not in features]
    lines = [
        "# What an ordinary script runs",
        "",
        "Read this first: a short DataParallel script, and every function of labkit that it runs, with the files in",
        f"the order of their first calls: {len({(one.path, one.listed_name) for one in core})} functions in "
        f"{len({one.path for one in core})} files, about {round(total(story), -2):,} lines of code in all. The rest",
        "of labkit builds on these.",
        "",
        "`python -m tools.reading > docs/reading.md` makes the list by running the script.",
        "",
        "```python",
        BEGIN,
        "```",
    ]
    lines += ["", "## Forty functions to read first", ""]
    lines += [f"{number}. {_line(one)}" for number, one in enumerate(first_functions(core), 1)]
    listed: set[tuple[str, str]] = set()
    for number, chapter in enumerate(story, 1):
        lines += [
            "",
            f"## {number} · {chapter.title}",
            "",
            "```python",
            chapter.code,
            "```",
            "",
            chapter.about,
        ]
        files: dict[str, list[Function]] = {}
        for one in chapter.functions:
            if one.path not in features and (one.path, one.listed_name) not in listed:
                listed.add((one.path, one.listed_name))
                files.setdefault(one.path, []).append(one)
        for path, inside in files.items():
            inside.sort(key=lambda one: one.first)  # threads may call in any order
            lines += ["", _file(path), ""]
            lines += [
                f"- `{one.listed_name}`" + (f": {says}" if (says := _says_of(one)) else "") for one in inside
            ]
    lines += ["", "## Features that took part", ""]
    lines += [
        "Each file is for one feature of torch. The script runs without them, too: a test deletes each.",
        "",
    ]
    lines += [f"- {_file(path)}" for path in features]
    return "\n".join(lines) + "\n"


def first_functions(functions: Iterable[Function]) -> list[Function]:
    """Return the functions of `FIRST` in order; raises KeyError for a function that the script does not run."""
    found = {(one.path, one.listed_name): one for one in functions}
    rows = (line.split(": ") for line in FIRST.split("\n") if line)
    return [found[path, name] for path, names in rows for name in names.split()]


def _line(function: Function) -> str:
    """Return a function's name, file and first sentence as Markdown."""
    path, says = function.path, _says_of(function)
    return f"`{function.listed_name}` in [{path}](../{path}): {re.split(r'(?<=[.!?]) ', says)[0]}"


def _says_of(function: Function) -> str:
    """Return the docstring of the listed function around ``function``."""
    return next(one.says for one in _functions_in(HOME / function.path) if one.name == function.listed_name)


def _file(path: str) -> str:
    return f"**[{path}](../{path})** {_says(ast.parse((HOME / path).read_text('utf-8')))}"


def main() -> None:
    sys.stdout.write(page(chapters()))


if __name__ == "__main__":
    main()
