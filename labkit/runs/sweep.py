"""A lesson run once for each number of GPUs: executed notebooks, their pages, and one report.

A run that fails is kept with its error and the others go on. Starting a kernel is tried again, a cell never.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from ..course.lesson import checked_parameters
from . import kernel
from .execute import without_volatile
from .parameters import declared, fit


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
    """What is to be run: checked, with every file that will be written. Nothing is written yet."""

    lesson: Path
    gpus: tuple[int, ...]
    parameters: dict[str, object]
    folder: Path

    @property
    def report(self) -> Path:
        """The page that compares the runs."""
        return self.folder / "report.html"

    def files(self, gpus: int) -> tuple[Path, Path]:
        """The executed notebook and its page, for one number of GPUs."""
        name = f"{self.lesson.stem}-{gpus}-gpus"
        return self.folder / f"{name}.ipynb", self.folder / f"{name}.html"

    def existing(self) -> list[Path]:
        """Which of the files to be written are there already."""
        wanted = [self.report, *(file for count in self.gpus for file in self.files(count))]
        return [file for file in wanted if file.exists()]


def find(lesson: str, language: str, places: Iterable[Path]) -> Path:
    """The notebook that ``lesson`` names: a path, or a name such as ``03_split`` in one of ``places``.

    Raises FileNotFoundError, in one line that lists the lessons there are.
    """
    if lesson.endswith(".ipynb"):
        if Path(lesson).is_file():
            return Path(lesson)
        raise FileNotFoundError(f"no such notebook: {lesson}")
    there: list[str] = []
    for place in places:
        found = place / language / f"{lesson}.ipynb"
        if found.is_file():
            return found
        there = there or sorted(path.stem for path in (place / language).glob("[0-9]*.ipynb"))
    known = (
        f"there are {', '.join(there)}" if there else "no folder notebooks/ here; give a path to a notebook"
    )
    raise FileNotFoundError(f"no such lesson: {lesson} ({language}); {known}")


# What the cell of a lesson says that checks its parameters.
_BEGINS = re.compile(r"^begin\(", re.MULTILINE)


def plan(
    lesson: Path, gpus: Sequence[int], folder: Path, given: dict[str, object], language: str | None = None
) -> Sweep:
    """Check the notebook and its parameters; raises ValueError in one line. Writes nothing.

    given      values for other parameters than the number of GPUs.
    language   the language to run the notebook in, if it has such a parameter.
    """
    try:
        notebook = nbformat.read(lesson, as_version=4)
        known = declared(notebook)
    except Exception as error:  # whatever a file that is no notebook makes the readers raise
        raise ValueError(f"{lesson} is not a notebook that can be read: {error}") from error
    if "num_gpus" not in known:
        raise ValueError(f"{lesson} has no parameter num_gpus: there is nothing to sweep")
    for name, option in (("num_gpus", "--gpus"), ("language", "--lang")):
        if name in given:
            raise ValueError(f"the parameter {name} is given by {option}")
    parameters = {name: fit(known, name, value) for name, value in given.items()}
    if "language" in known and language is not None:
        parameters["language"] = language
    if any(_BEGINS.search(cell.source) for cell in notebook.cells if cell.cell_type == "code"):
        # A lesson would refuse these itself, one kernel after the other.
        for count in gpus:
            checked_parameters({"num_gpus": count})
        checked_parameters(parameters)
    return Sweep(lesson, tuple(dict.fromkeys(gpus)), {**known, **parameters}, folder)


def execute(sweep: Sweep, count: int) -> Run:
    """Run the lesson on ``count`` GPUs; writes the executed notebook and its page, even if a cell fails."""
    import papermill  # heavy, as nbconvert below
    from papermill.engines import papermill_engines

    papermill_engines.register("labkit", _engine())
    sweep.folder.mkdir(parents=True, exist_ok=True)
    notebook, page = sweep.files(count)
    error = ""
    try:
        papermill.execute_notebook(
            sweep.lesson.resolve(), notebook.resolve(), {**sweep.parameters, "num_gpus": count},
            engine_name="labkit", start_timeout=kernel.STARTUP_TIMEOUT,
            extra_arguments=["--log-level=ERROR"], cwd=sweep.lesson.resolve().parent,
        )  # fmt: skip
    except papermill.PapermillExecutionError as failed:
        error = f"{failed.ename}: {failed.evalue.splitlines()[0] if failed.evalue else ''}"
    except RuntimeError as failed:  # the kernel did not start, or died
        error = f"{type(failed).__name__}: {' '.join(str(failed).split())}"
    executed = nbformat.read(notebook, as_version=4)
    if error:
        failed_at = [c.id for c in executed.cells if c.metadata.get("papermill", {}).get("exception")]
        error = f"cell {failed_at[0]}: {error}" if failed_at else error
    seconds = executed.metadata.get("papermill", {}).get("duration") or 0.0
    without_volatile(executed)
    page.write_text(_page(executed, sweep.parameters.get("language")), "utf-8")
    return Run(count, notebook, page, seconds, error, executed)


def _engine() -> Any:
    """papermill's own engine, with kernels started as everywhere in labkit."""
    from papermill.engines import NBClientEngine

    class Engine(NBClientEngine):  # type: ignore[misc]  # papermill has no types
        @classmethod
        def execute_managed_notebook(cls, nb_man: Any, kernel_name: str, **options: Any) -> Any:
            run = super().execute_managed_notebook
            return kernel.start(
                lambda: run(nb_man, kernel_name, **options),
                has_begun=lambda: any(
                    c.metadata.papermill["status"] != nb_man.PENDING for c in nb_man.nb.cells
                ),
            )

    return Engine


def _page(notebook: NotebookNode, language: object) -> str:
    from nbconvert import HTMLExporter

    # Widgets are shown by their still pictures, so the page needs none of the scripts for them.
    unused = "require_js_url jquery_url widget_renderer_url mermaid_js_url mermaid_layout_elk_js_url".split()
    code = language if isinstance(language, str) else "en"
    exporter = HTMLExporter(**dict.fromkeys(unused, ""), language_code=code)
    page: str = exporter.from_notebook_node(notebook)[0]
    return page
