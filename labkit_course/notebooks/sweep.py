"""Run a lesson once for each number of GPUs, and write executed notebooks, their pages, and one report.

A failed run is kept with its error, and the others go on. Only the start of a kernel is retried, never a cell. An
executed notebook appears when its run has ended, with the run's identity in the metadata, so that a stopped sweep can
be continued.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import nbformat
from nbclient.exceptions import CellTimeoutError
from nbformat import NotebookNode

from labkit import __version__
from labkit.base.files import write_whole
from labkit.base.language import named_language, say, wrong
from labkit.base.numbers import must

from ..parameters import checked_parameters
from . import kernel
from .execute import store, strip_volatile


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

    def identity(self, gpus: int) -> dict[str, str]:
        """Return the facts that determine the result of a run, to recognise a run of the same sweep."""
        given = {**self.parameters, self.swept: gpus}
        return {
            "lesson": hashlib.sha256(self.lesson.read_bytes()).hexdigest(),
            **{f"-p {name}": repr(value) for name, value in given.items()},
            "labkit": __version__,
            "torch": version("torch"),  # torch itself takes seconds to import
        }

    def find_occupied_files(self) -> list[str]:
        """Return a sentence for each existing file that a run would overwrite, except files of the same sweep."""
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


# The key of the run's identity in a notebook's metadata, and the mark of a page from a sweep.
_METADATA = "labkit"
GENERATOR = '<meta name="generator" content="labkit sweep">'


def _mark(notebook: Path) -> dict[str, Any]:
    try:
        found = json.loads(notebook.read_text("utf-8"))["metadata"][_METADATA]
    except (ValueError, LookupError, TypeError, RecursionError):  # no notebook, or not from a sweep
        return {}
    return found if isinstance(found, dict) else {}


def earlier(sweep: Sweep, count: int) -> Run | None:
    """Return the earlier run on ``count`` GPUs, or None if there is none without an error."""
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
    """Return the path of ``lesson``: a path, or a name such as ``03_split`` in one of ``places``.

    Raises FileNotFoundError with the list of lessons.
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

    Raises OSError if they cannot be written. After this error or an interrupt, existing files are unchanged.
    """
    import papermill  # slow to import, like nbconvert below
    from papermill.engines import papermill_engines

    run: list[Any] = []
    papermill_engines.register("labkit", _engine(run))
    sweep.folder.mkdir(parents=True, exist_ok=True)
    notebook, page = sweep.files(count)
    error = ""
    try:
        papermill.execute_notebook(
            # No output file: papermill would write it after every cell.
            sweep.lesson.resolve(), None, {**sweep.parameters, sweep.swept: count},
            engine_name="labkit", start_timeout=kernel.STARTUP_TIMEOUT, execution_timeout=sweep.cell_limit,
            # Hide the errors about closed sockets of a kernel interrupted in a cell (Ctrl-C).
            extra_arguments=["--log-level=CRITICAL"], cwd=sweep.lesson.resolve().parent,
        )  # fmt: skip
    except papermill.PapermillExecutionError as failed:
        error = f"{failed.ename}: {failed.evalue.splitlines()[0] if failed.evalue else ''}"
    except CellTimeoutError:
        error = say(
            en=f"still running after {sweep.cell_limit} s (--cell-timeout)",
            zh=f"运行 {sweep.cell_limit} 秒还没有结束（--cell-timeout）",
        )
    except RuntimeError as failed:  # the kernel did not start, or died
        error = f"{type(failed).__name__}: {' '.join(str(failed).split())}"
    executed = run[-1].nb
    if error:
        begun = [c for c in executed.cells if c.metadata.get("papermill", {}).get("start_time")]
        if begun:
            error = say(en=f"cell {begun[-1].id}: {error}", zh=f"单元格 {begun[-1].id}：{error}")
    strip_volatile(executed)
    executed.metadata[_METADATA] = {"run": sweep.identity(count), "error": error}
    # Write the notebook first: a notebook without a page is a finished run, a page without a notebook is not ours.
    store(executed, notebook)
    write_whole(page, _page(executed, sweep.parameters.get("language")))
    return Run(count, notebook, page, _seconds(executed), error, executed)


def _seconds(executed: NotebookNode) -> float:
    return executed.metadata.get("papermill", {}).get("duration") or 0.0


def _engine(run: list[Any]) -> Any:
    """Return papermill's engine with labkit's start of kernels; append its notebook manager to ``run``."""
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

    # Leave out the scripts for widgets, which the page shows as pictures.
    unused = "require_js_url jquery_url widget_renderer_url mermaid_js_url mermaid_layout_elk_js_url".split()
    code = named_language(language) or "en"
    exporter = HTMLExporter(**dict.fromkeys(unused, ""), language_code=code)
    page: str = exporter.from_notebook_node(notebook)[0]
    return page
