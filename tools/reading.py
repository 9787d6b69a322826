"""What to read first: the functions of labkit that an ordinary DataParallel script runs, file by file.

``python -m tools.reading`` runs the script below on a simulated machine, notes what is called, and prints
``docs/reading.md``. A test makes it anew and compares, and holds the whole to 2,000 lines.
"""

from __future__ import annotations

import ast
import gc
import io
import re
import sys
import tempfile
import threading
import tokenize
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from labkit.base.ours import HOME, is_our_file

# The chapters of the story: a title, the lines that run, and what becomes of them.
SCRIPT = (
    (
        "The machine is opened",
        "machine = labkit.simulate(gpus=2)",
        "From here on torch sees two GPUs: functions of torch are replaced from one table, and a mode sees every call.",
    ),
    (
        "The model and a batch move to a GPU",
        'model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to("cuda:0")\n'
        'x, y = torch.randn(6, 4).to("cuda:0"), torch.randn(6, 2).to("cuda:0")',
        "A copy of the values stays in host memory; its storage gets a mark that says on which GPU it is. The mark's "
        "reference count is what the GPU's memory is counted by.",
    ),
    (
        "nn.DataParallel calls two replicas",
        "wrapped = nn.DataParallel(model)\n"
        "optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)\n"
        "output = wrapped(x)",
        "PyTorch's own Python runs: it scatters the batch, copies the model, calls the replicas in threads, and "
        "gathers what they give. What it calls in C++, the machine answers; of the threads one runs at a time.",
    ),
    (
        "The loss goes backward, and the optimizer steps",
        "loss = nn.functional.mse_loss(output, y)\nloss.backward()\noptimizer.step()",
        "Gradients are made in C++: they get their mark where Python first sees them.",
    ),
    (
        "The second step",
        "optimizer.zero_grad()\nnn.functional.mse_loss(wrapped(x), y).backward()\noptimizer.step()",
        "It runs little that has not run before.",
    ),
    (
        "Devices are mixed",
        'try:\n    x + x.to("cuda:1")\nexcept RuntimeError as error:\n    print(error)',
        "The marks disagree, so the call is replayed operator by operator, and each is checked as CUDA would.",
    ),
    (
        "A checkpoint is saved and loaded",
        'torch.save(model.state_dict(), "model.pt")\n'
        'model.load_state_dict(torch.load("model.pt", map_location="cuda:1"))',
        "A checkpoint names the GPU of each tensor, as one from a real machine does.",
    ),
    (
        "The machine is closed",
        "machine.close()",
        "One loop takes the table of replaced functions out; torch is what it was.",
    ),
)
BEGIN = "import torch\nfrom torch import nn\n\nimport labkit"

FEATURES = "simgpu/features/"
_Defined = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Function:
    """A function of labkit.

    name    with the class or the function in which it stands.
    lines   how many of its own lines there are to read: no docstring, no comment, no function within it.
    says    the first sentences of its docstring.
    """

    path: str
    name: str
    first: int
    lines: int
    says: str

    @property
    def listed(self) -> str:
        """The name under which it is listed: a function within another is a part of that."""
        return self.name.partition(".<locals>")[0]


@dataclass
class Chapter:
    """One chapter of the story, and the functions that were called in it for the first time."""

    title: str
    code: str
    about: str
    functions: list[Function] = field(default_factory=list)


def chapters() -> list[Chapter]:
    """The story: what each chapter of the script is the first to call."""
    told = [Chapter(*chapter) for chapter in SCRIPT]
    names: dict[str, Any] = {}
    exec(BEGIN, names)
    names["labkit"].set_language("en")
    known: set[Function] = set()
    current = told[0]

    def note(frame: FrameType, event: str, _: object) -> None:
        found = _function_of(frame.f_code) if event == "call" else None
        if found is not None and found not in known and not _importing(frame):
            known.add(found)
            current.functions.append(found)

    gc.disable()  # what a collection ends would be told when it happens to come
    with tempfile.TemporaryDirectory() as folder, chdir(folder), redirect_stdout(io.StringIO()):
        for chapter in told:
            current, code = chapter, compile(chapter.code, "train.py", "exec")
            threading.setprofile(note)
            sys.setprofile(note)
            try:
                exec(code, names)
            finally:
                sys.setprofile(None)
                threading.setprofile(None)
    gc.enable()
    return told


def _importing(frame: FrameType | None) -> bool:
    """Whether a module of labkit is being imported: what its lines call then is no part of the story."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and is_our_file(frame.f_code.co_filename):
            return True
        frame = frame.f_back
    return False


@cache
def _function_of(code: CodeType) -> Function | None:
    """The function of labkit to which ``code`` belongs, a lambda's or a comprehension's too; None for other code."""
    path = Path(code.co_filename)
    if not is_our_file(code.co_filename) or code.co_name == "<module>":
        return None
    name = re.sub(r"\.<locals>\.<\w+>.*", "", code.co_qualname)
    found = [one for one in _functions_in(path) if one.name == name and one.first <= code.co_firstlineno]
    return max(found, key=lambda one: one.first, default=None)


@cache
def _functions_in(path: Path) -> tuple[Function, ...]:
    """The functions of a module, with those within them and the methods of classes."""
    text = path.read_text("utf-8")
    tree = ast.parse(text)
    return tuple(_functions(tree, path.relative_to(HOME).as_posix(), "", _lines_of_code(text, tree)))


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


def _lines_of_code(text: str, tree: ast.Module) -> set[int]:
    """The numbers of the lines where there is something to read: no docstring, no comment, no brackets alone."""
    spaces = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    lines = {
        number
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in spaces and token.string not in "()[]{},"
        for number in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(tree):
        if isinstance(node, (_Defined, ast.ClassDef, ast.Module)) and ast.get_docstring(node):
            docstring = node.body[0]
            lines -= set(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    return lines


def _says(node: _Defined | ast.Module) -> str:
    """The first paragraph of a docstring as Markdown, in one line."""
    text = " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split())
    return re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text).replace("``", "`")


def total(told: list[Chapter]) -> int:
    """How many lines of code the story takes, but for the features, without which it would run as well."""
    return sum(
        one.lines for chapter in told for one in chapter.functions if not one.path.startswith(FEATURES)
    )


def page(told: list[Chapter]) -> str:
    """The story as Markdown."""
    functions = [one for chapter in told for one in chapter.functions]
    features = sorted({one.path for one in functions if one.path.startswith(FEATURES)})
    core = [one for one in functions if one.path not in features]
    lines = [
        "# What an ordinary script runs",
        "",
        "Read this first. It is a DataParallel script of few lines, and every function of labkit that it runs, the",
        f"files by the order of their first calls: {len({(one.path, one.listed) for one in core})} functions in "
        f"{len({one.path for one in core})} files, about {round(total(told), -2):,} lines of code in all. The rest",
        "of labkit stands beside or on these.",
        "",
        "The list is made by running the script: `python -m tools.reading > docs/reading.md`.",
        "",
        "```python",
        BEGIN,
        "```",
    ]
    listed: set[tuple[str, str]] = set()
    for number, chapter in enumerate(told, 1):
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
            if one.path not in features and (one.path, one.listed) not in listed:
                listed.add((one.path, one.listed))
                files.setdefault(one.path, []).append(one)
        for path, inside in files.items():
            inside.sort(key=lambda one: one.first)  # of two threads, either may be the first to call
            lines += ["", _file(path), ""]
            lines += [
                f"- `{one.listed}`" + (f": {says}" if (says := _says_of(one)) else "") for one in inside
            ]
    lines += ["", "## Features that were asked", ""]
    lines += [
        "Each answers for one feature of torch. The script would run without them: a test deletes each.",
        "",
    ]
    lines += [f"- {_file(path)}" for path in features]
    return "\n".join(lines) + "\n"


def _says_of(function: Function) -> str:
    """What the function says under whose name this one is listed."""
    return next(one.says for one in _functions_in(HOME / function.path) if one.name == function.listed)


def _file(path: str) -> str:
    return f"**[{path}](../{path})** {_says(ast.parse((HOME / path).read_text('utf-8')))}"


def main() -> None:
    sys.stdout.write(page(chapters()))


if __name__ == "__main__":
    main()
