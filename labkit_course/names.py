"""Explain a NameError in a lesson by the cell that defines the name, for learners who skipped a cell."""

from __future__ import annotations

import dis
import json
import os
import re
import sys
from collections.abc import Container
from contextlib import suppress
from pathlib import Path
from typing import Any

from labkit.base.language import named_language, set_language
from labkit.base.texts import texts_beside

from .verdict_html import as_html, frame_html

_TEXTS = texts_beside(__file__)


def advice_on(error: BaseException | None, lesson: str | None, has: Container[str] = ()) -> str:
    """Return advice on a NameError in ``lesson``, with section and cell that define the name, or "".

    A name that the notebook ``has`` is missing in the ranks, so only their cells count.
    """
    name = error.name if type(error) is NameError else None
    if not name or not lesson:
        return ""
    with suppress(Exception):  # the notebook may be unsaved or half-written: add no advice then
        for section, source in _cells(Path(f"{lesson}.ipynb")):
            kind = "made_in_ranks" if source.startswith("#%%ranks") else "made"
            if name in _assigned_names(source) and not (kind == "made" and name in has):
                first = next(line for line in source.strip().splitlines() if not line.startswith("#"))
                return _TEXTS[kind](name=name, line=first, section=section)
    return ""


def _cells(notebook: Path) -> list[tuple[str, str]]:
    """Return (section, code) of each code cell, with magics as comments."""
    section, found = "", []
    for cell in json.loads(notebook.read_text("utf-8"))["cells"]:
        source = cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            heads = [line.lstrip("# ") for line in source.splitlines() if line.startswith("#")]
            section = heads[-1] if heads else section
        elif cell["cell_type"] == "code" and source.strip():
            found.append((section, re.sub(r"(?m)^%", "#%", source)))
    return found


def _assigned_names(source: str) -> set[str]:
    """Return the global names that the code of a cell assigns; none if it is unfinished."""
    try:
        code = compile(source, "cell", "exec")
    except (SyntaxError, ValueError):
        return set()
    return {step.argval for step in dis.get_instructions(code) if step.opname == "STORE_NAME"}


class NameErrorAdvice:
    """An IPython callback that shows advice below the traceback of a NameError."""

    def __init__(self, shell: Any, lesson: str) -> None:
        self.shell, self.lesson = shell, lesson

    def __call__(self, result: Any = None) -> None:
        text = advice_on(getattr(result, "error_in_exec", None), self.lesson, self.shell.user_ns)
        if text:
            self.shell.display_pub.publish({"text/plain": text, "text/html": frame_html(as_html(text))})


def watch_before_begin() -> None:
    """After a restart of the kernel, set the lesson's language, and explain missing names.

    Jupyter's server or VS Code names the notebook; without a name (Colab), do nothing.
    """
    shell = _shell()
    named = (shell and shell.user_ns.get("__vsc_ipynb_file__")) or os.environ.get("JPY_SESSION_NAME")
    if shell and named and Path(f"{Path(named).stem}.ipynb").is_file():
        if language := named_language(Path(named).parent.name):
            set_language(language)
        watch(Path(named).stem)


def _shell() -> Any:
    return sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None


def watch(lesson: str) -> None:
    """In a notebook, explain missing names of this lesson from now on."""
    shell = _shell()
    if shell is None:
        return
    for other in [
        known for known in shell.events.callbacks["post_run_cell"] if isinstance(known, NameErrorAdvice)
    ]:
        shell.events.unregister("post_run_cell", other)
    shell.events.register("post_run_cell", NameErrorAdvice(shell, lesson))
