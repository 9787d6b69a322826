"""A lesson run once for each number of GPUs: executed notebooks, their pages, and one report.

A run that fails is kept with its error and the others go on. Starting a kernel is tried again, a cell never.
A notebook appears when its run has ended, whole, and says in its metadata what it is a run of: so a sweep that was
stopped, in whatever way, goes on where it was when it is started again.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import torch
from nbclient.exceptions import CellTimeoutError
from nbformat import NotebookNode

from labkit import __version__
from labkit.base.files import write_whole
from labkit.base.language import named_language, say, wrong
from labkit.base.numbers import must

from ..lesson import checked_parameters
from . import kernel
from .execute import store, without_volatile


@dataclass(frozen=True)
class Run:
    """One execution of the lesson. ``error`` is "" if every cell ran, else one line with the cell's id."""

    gpus: int
    notebook: Path
    page: Path
    seconds: float
    error: str
    executed: NotebookNode


@dataclass(frozen=True)
class Sweep:
    """The runs to be made: checked, with every file that will be written. Nothing is written yet.

    swept        the parameter that differs: ``num_gpus``, in lessons of part two ``num_ranks`` (a GPU for each).
    cell_limit   seconds that a cell may take, 0 for no limit. (A lesson's slowest cell, which launches several
                 processes, takes a tenth of what is the rule.)
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
        """The executed notebook and its page, for one number of GPUs."""
        name = f"{self.lesson.stem}-{gpus}-gpus"
        return self.folder / f"{name}.ipynb", self.folder / f"{name}.html"

    def identity(self, gpus: int) -> dict[str, str]:
        """All that the outcome of a run depends on, for comparison with that of another."""
        given = {**self.parameters, self.swept: gpus}
        return {
            "lesson": hashlib.sha256(self.lesson.read_bytes()).hexdigest(),
            **{f"-p {name}": repr(value) for name, value in given.items()},
            "labkit": __version__,
            "torch": torch.__version__,
        }

    def occupied(self) -> list[str]:
        """The files to be written that are there already and not of this sweep, each with a sentence that says so."""
        found = []
        for count in self.gpus:
            notebook, page = self.files(count)
            if notebook.exists() and _mark(notebook).get("run") != self.identity(count):
                en, zh = f"{notebook} is no run of this sweep", f"{notebook} 不是这次 sweep 的结果"
                found.append(say(en=en, zh=zh))
            elif page.exists() and not notebook.exists():
                found.append(say(en=f"{page} exists already", zh=f"{page} 已经存在"))
        if self.report.exists() and GENERATOR not in self.report.read_text("utf-8", errors="replace"):
            found.append(say(en=f"{self.report} exists already", zh=f"{self.report} 已经存在"))
        return found


# Where a notebook says what it is a run of, and how a page says that it was made here.
_METADATA = "labkit"
GENERATOR = '<meta name="generator" content="labkit sweep">'


def _mark(notebook: Path) -> dict[str, Any]:
    try:
        found = json.loads(notebook.read_text("utf-8"))["metadata"][_METADATA]
    except (ValueError, LookupError, TypeError, RecursionError):  # no notebook, or nobody's run
        return {}
    return found if isinstance(found, dict) else {}


def earlier(sweep: Sweep, count: int) -> Run | None:
    """The run on ``count`` GPUs as it was made before, if it was and all its cells ran."""
    notebook, page = sweep.files(count)
    if not notebook.exists():
        return None
    mark = _mark(notebook)
    if mark.get("run") != sweep.identity(count) or mark.get("error") != "":
        return None
    executed = nbformat.read(notebook, as_version=4)
    if not page.exists():
        write_whole(page, _page(executed, sweep.parameters.get("language")))
    return Run(count, notebook, page, _seconds(executed), "", executed)


def find(lesson: str, language: str, places: Iterable[Path]) -> Path:
    """The notebook that ``lesson`` names: a path, or a name such as ``03_split`` in one of ``places``.

    Raises FileNotFoundError, in one line that lists the lessons there are.
    """
    if lesson.endswith(".ipynb"):
        if Path(lesson).is_file():
            return Path(lesson)
        raise wrong(FileNotFoundError, en=f"no such notebook: {lesson}", zh=f"没有笔记本 {lesson}")
    there: list[str] = []
    for place in places:
        found = place / language / f"{lesson}.ipynb"
        if found.is_file():
            return found
        there = there or sorted(path.stem for path in (place / language).glob("[0-9]*.ipynb"))
    listed = ", ".join(there)
    en = f"there are {listed}" if there else "no folder notebooks/ here; give a path to a notebook"
    zh = f"有的课程是 {listed}" if there else "这里没有 notebooks/ 文件夹；请给出笔记本的路径"
    raise wrong(
        FileNotFoundError,
        en=f"no such lesson: {lesson} ({language}); {en}",
        zh=f"没有课程 {lesson}（{language}）；{zh}",
    )


# papermill writes any name and any value into a notebook as code, unchecked. Here a name that the notebook does not
# declare is refused, and so is a value of another type than the declared one.
# What values of a declared type are called: "must be …", "必须…".
_KINDS: dict[type, tuple[str, str]] = {
    int: ("a whole number", "是整数"),
    float: ("a number", "是数"),
    bool: ("True or False", "是 True 或 False"),
    str: ("a text", "是文字"),
}


def declared(notebook: NotebookNode) -> dict[str, object]:
    """Name -> default of each parameter, from the cell tagged ``parameters``; {} if there is none."""
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
    """``value`` (a text is read as the declared type) for the parameter ``name``.

    Raises ValueError with one line that names the parameter.
    """
    if name not in known:
        there = ", ".join(known)
        raise wrong(
            en=f"the notebook has no parameter {name!r}; it has {there or 'none'}",
            zh=f"笔记本没有参数 {name!r}；" + (f"它的参数有 {there}" if there else "它没有参数"),
        )
    default = known[name]
    kind = type(default)
    if kind is str and isinstance(value, str):
        return value
    if isinstance(value, str):
        with suppress(ValueError, SyntaxError):  # still a text then, refused below
            value = ast.literal_eval(value)
    if kind is float and type(value) is int:
        return float(value)
    if default is not None and type(value) is not kind:
        en, zh = _KINDS.get(kind, (kind.__name__, f"是 {kind.__name__}"))
        raise ValueError(must(say(en=f"parameter {name}", zh=f"参数 {name}"), value, en=en, zh=zh))
    return value


# What the cell of a lesson says that checks its parameters.
_BEGINS = re.compile(r"^begin\(", re.MULTILINE)


def plan(
    lesson: Path,
    gpus: Sequence[int],
    folder: Path,
    given: dict[str, object],
    language: str | None = None,
    cell_limit: int = 600,
) -> Sweep:
    """Check the notebook and its parameters; raises ValueError in one line. Writes nothing.

    given      values for other parameters than the number of GPUs.
    language   the language to run the notebook in, if it has such a parameter.
    """
    try:
        notebook = nbformat.read(lesson, as_version=4)
        known = declared(notebook)
    except Exception as error:  # whatever a file that is no notebook makes the readers raise
        raise wrong(
            en=f"{lesson} is not a notebook that can be read: {error}",
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
            raise wrong(en=f"the parameter {name} is given by {option}", zh=f"参数 {name} 用 {option} 给出")
    parameters = {name: fit(known, name, value) for name, value in given.items()}
    if "language" in known and language is not None:
        parameters["language"] = language
    if any(_BEGINS.search(cell.source) for cell in notebook.cells if cell.cell_type == "code"):
        # A lesson would refuse these itself, one kernel after the other.
        for count in gpus:
            checked_parameters({swept: count})
        checked_parameters(parameters)
    return Sweep(lesson, tuple(dict.fromkeys(gpus)), {**known, **parameters}, folder, cell_limit, swept)


def execute(sweep: Sweep, count: int) -> Run:
    """Run the lesson on ``count`` GPUs; writes the executed notebook and its page when it has ended, however it did.

    OSError if they cannot be written; then, or if the run is interrupted, what was there is as it was.
    """
    import papermill  # heavy, as nbconvert below
    from papermill.engines import papermill_engines

    run: list[Any] = []
    papermill_engines.register("labkit", _engine(run))
    sweep.folder.mkdir(parents=True, exist_ok=True)
    notebook, page = sweep.files(count)
    error = ""
    try:
        papermill.execute_notebook(
            # No file: papermill would write it cell by cell, in place.
            sweep.lesson.resolve(), None, {**sweep.parameters, sweep.swept: count},
            engine_name="labkit", start_timeout=kernel.STARTUP_TIMEOUT, execution_timeout=sweep.cell_limit,
            # A kernel that is ended in the middle of a cell (Ctrl-C) logs as an error that its sockets are closed.
            extra_arguments=["--log-level=CRITICAL"], cwd=sweep.lesson.resolve().parent,
        )  # fmt: skip
    except papermill.PapermillExecutionError as failed:
        error = f"{failed.ename}: {failed.evalue.splitlines()[0] if failed.evalue else ''}"
    except CellTimeoutError:
        error = say(
            en=f"had not ended after {sweep.cell_limit} s (--cell-timeout)",
            zh=f"运行 {sweep.cell_limit} 秒还没有结束（--cell-timeout）",
        )
    except RuntimeError as failed:  # the kernel did not start, or died
        error = f"{type(failed).__name__}: {' '.join(str(failed).split())}"
    executed = run[-1].nb
    if error:
        begun = [c for c in executed.cells if c.metadata.get("papermill", {}).get("start_time")]
        if begun:
            error = say(en=f"cell {begun[-1].id}: {error}", zh=f"单元格 {begun[-1].id}：{error}")
    without_volatile(executed)
    executed.metadata[_METADATA] = {"run": sweep.identity(count), "error": error}
    # In this order: a notebook without its page is a run that was made, a page without its notebook somebody else's.
    store(executed, notebook)
    write_whole(page, _page(executed, sweep.parameters.get("language")))
    return Run(count, notebook, page, _seconds(executed), error, executed)


def _seconds(executed: NotebookNode) -> float:
    return executed.metadata.get("papermill", {}).get("duration") or 0.0


def _engine(run: list[Any]) -> Any:
    """papermill's own engine, with kernels started as everywhere in labkit; what it runs is put into ``run``."""
    from papermill.engines import NBClientEngine

    class Engine(NBClientEngine):  # type: ignore[misc]  # papermill has no types
        @classmethod
        def execute_managed_notebook(cls, nb_man: Any, kernel_name: str, **options: Any) -> Any:
            run.append(nb_man)
            execute = super().execute_managed_notebook
            return kernel.start(
                lambda: execute(nb_man, kernel_name, **options),
                has_begun=lambda: any(
                    c.metadata.papermill["status"] != nb_man.PENDING for c in nb_man.nb.cells
                ),
            )

    return Engine


def _page(notebook: NotebookNode, language: object) -> str:
    from nbconvert import HTMLExporter

    # Widgets are shown by their still pictures, so the page needs none of the scripts for them.
    unused = "require_js_url jquery_url widget_renderer_url mermaid_js_url mermaid_layout_elk_js_url".split()
    code = named_language(language) or "en"
    exporter = HTMLExporter(**dict.fromkeys(unused, ""), language_code=code)
    page: str = exporter.from_notebook_node(notebook)[0]
    return page
