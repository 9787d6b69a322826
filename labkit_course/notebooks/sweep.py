"""Run a lesson once for each number of GPUs: plan and execute the runs, each an executed notebook and its page.

A failed run is kept with its error, and the others go on. Only the start of a kernel is retried, never a cell.
"""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbclient.exceptions import CellExecutionError, CellTimeoutError
from nbformat import NotebookNode

from labkit.base.files import write_whole
from labkit.base.language import named_language, say, wrong
from labkit.base.numbers import must

from ..parameters import checked_parameters
from . import execute as executing


@dataclass(frozen=True)
class Run:
    """An execution of the lesson. ``error`` is "" if every cell ran, or else one line with the cell's id."""

    gpus: int
    notebook: Path
    page: Path
    seconds: float
    error: str
    executed: NotebookNode


@dataclass(frozen=True)
class Sweep:
    """The planned runs, after all checks and before any file is written.

    swept        the parameter that differs: ``num_gpus``, or in part two ``num_ranks`` (with a GPU for each).
    cell_limit   time limit of a cell in seconds; 0 for none. (The slowest cell of all lessons needs a tenth of it.)
    """

    lesson: Path
    gpus: tuple[int, ...]
    parameters: dict[str, object]
    folder: Path
    cell_limit: int = 600
    swept: str = "num_gpus"

    @property
    def report(self) -> Path:
        """The page that compares the runs."""
        return self.folder / "report.html"

    def files(self, gpus: int) -> tuple[Path, Path]:
        """Return the paths of the executed notebook and its page for ``gpus`` GPUs."""
        name = f"{self.lesson.stem}-{gpus}-gpus"
        return self.folder / f"{name}.ipynb", self.folder / f"{name}.html"

    def existing_files(self) -> list[Path]:
        """Return the files that the sweep would overwrite."""
        ours = [self.report, *(path for count in self.gpus for path in self.files(count))]
        return [path for path in ours if path.exists()]


# papermill writes any name and value into a notebook as code: refuse undeclared names, and values of another type than
# the default. These words follow "must be" and "必须".
_KINDS: dict[type, tuple[str, str]] = {
    int: ("a whole number", "是整数"),
    float: ("a number", "是数"),
    bool: ("True or False", "是 True 或 False"),
    str: ("a text", "是文字"),
}


def declared_parameters(notebook: NotebookNode) -> dict[str, object]:
    """Return the default of each parameter by name, from the cell tagged ``parameters``."""
    cell = next((c for c in notebook.cells if "parameters" in c.metadata.get("tags", [])), None)
    found = {}
    for statement in ast.parse(cell.source).body if cell is not None else ():
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target = statement.targets[0]
        elif isinstance(statement, ast.AnnAssign):
            target = statement.target
        else:
            continue
        if isinstance(target, ast.Name) and statement.value is not None:
            found[target.id] = ast.literal_eval(statement.value)
    return found


def fit(known: dict[str, object], name: str, value: object) -> object:
    """Return ``value``, parsed if it is text, as a value of the parameter's type.

    Raises ValueError with one line that names the parameter.
    """
    if name not in known:
        there = ", ".join(known)
        raise wrong(
            en=f"the notebook has no parameter {name!r}; its parameters: {there or 'none'}",
            zh=f"笔记本没有参数 {name!r}；" + (f"它的参数有 {there}" if there else "它没有参数"),
        )
    default = known[name]
    kind = type(default)
    if kind is str and isinstance(value, str):
        return value
    if isinstance(value, str):
        with suppress(ValueError, SyntaxError):  # refused below, as text
            value = ast.literal_eval(value)
    if kind is float and type(value) is int:
        return float(value)
    if default is not None and type(value) is not kind:
        en, zh = _KINDS.get(kind, (kind.__name__, f"是 {kind.__name__}"))
        raise ValueError(must(say(en=f"parameter {name}", zh=f"参数 {name}"), value, en=en, zh=zh))
    return value


# Matches the lesson's cell that checks parameters.
_BEGINS = re.compile(r"^begin\(", re.MULTILINE)


def plan(
    lesson: Path,
    gpus: Sequence[int],
    folder: Path,
    given: dict[str, object],
    language: str | None = None,
    cell_limit: int = 600,
) -> Sweep:
    """Check the notebook and its parameters, and plan the runs. Raises ValueError; writes nothing.

    given      values of parameters other than the number of GPUs.
    language   the language to run the notebook in, if it has this parameter.
    """
    try:
        notebook = nbformat.read(lesson, as_version=4)
        known = declared_parameters(notebook)
    except Exception as error:  # the readers raise various errors for other files
        raise wrong(
            en=f"{lesson} is not a readable notebook: {error}",
            zh=f"{lesson} 不是可以读取的笔记本：{error}",
        ) from error
    swept = next((name for name in ("num_gpus", "num_ranks") if name in known), None)
    if swept is None:
        raise wrong(
            en=f"{lesson} has no parameter num_gpus or num_ranks: there is nothing to sweep",
            zh=f"{lesson} 没有参数 num_gpus 或 num_ranks：没有什么可以对比",
        )
    for name, option in ((swept, "--gpus"), ("language", "--lang")):
        if name in given:
            raise wrong(en=f"set the parameter {name} with {option}", zh=f"参数 {name} 用 {option} 给出")
    parameters = {name: fit(known, name, value) for name, value in given.items()}
    if "language" in known and language is not None:
        parameters["language"] = language
    if any(_BEGINS.search(cell.source) for cell in notebook.cells if cell.cell_type == "code"):
        # Refuse bad values now; each run would fail at this cell.
        for count in gpus:
            checked_parameters({swept: count})
        checked_parameters(parameters, others=True)
    return Sweep(lesson, tuple(dict.fromkeys(gpus)), {**known, **parameters}, folder, cell_limit, swept)


def execute(sweep: Sweep, count: int) -> Run:
    """Run the lesson on ``count`` GPUs; write the executed notebook and its page, even if a cell failed.

    Raises OSError if they cannot be written.
    """
    from papermill.iorw import load_notebook_node  # slow to import, like nbconvert below
    from papermill.parameterize import parameterize_notebook

    given = {**sweep.parameters, sweep.swept: count}
    executed = parameterize_notebook(load_notebook_node(str(sweep.lesson)), given)
    started, error = time.monotonic(), ""
    try:
        executing.execute(executed, sweep.lesson.resolve().parent, sweep.cell_limit or None)
    except CellExecutionError as failed:
        error = f"{failed.ename}: {failed.evalue.splitlines()[0] if failed.evalue else ''}"
    except CellTimeoutError:
        error = say(
            en=f"still running after {sweep.cell_limit} s (--cell-timeout)",
            zh=f"运行 {sweep.cell_limit} 秒还没有结束（--cell-timeout）",
        )
    except RuntimeError as failed:  # the kernel did not start, or died
        error = f"{type(failed).__name__}: {' '.join(str(failed).split())}"
    seconds = time.monotonic() - started
    begun = [cell for cell in executed.cells if "execution" in cell.metadata]
    if error and begun:
        error = say(en=f"cell {begun[-1].id}: {error}", zh=f"单元格 {begun[-1].id}：{error}")
    executing.strip_volatile(executed)
    notebook, page = sweep.files(count)
    executing.store(executed, notebook)
    write_whole(page, _page(executed, sweep.parameters.get("language")))
    return Run(count, notebook, page, seconds, error, executed)


def _page(notebook: NotebookNode, language: object) -> str:
    from nbconvert import HTMLExporter

    # Leave out the scripts for widgets, which the page shows as pictures.
    unused = "require_js_url jquery_url widget_renderer_url mermaid_js_url mermaid_layout_elk_js_url".split()
    code = named_language(language) or "en"
    exporter = HTMLExporter(**dict.fromkeys(unused, ""), language_code=code)
    page: str = exporter.from_notebook_node(notebook)[0]
    return page
