"""Finds the cell of a lesson that makes a name, for a learner who ran another before it and reads a NameError."""

from __future__ import annotations

import ast
import dis
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from labkit.base.language import named_language, set_language
from labkit.base.texts import texts_beside

from .words import as_html, framed

_TEXTS = texts_beside(__file__)


def word_on(error: BaseException | None, lesson: str | None) -> str:
    """Says what to do about a NameError in ``lesson``: the section and the cell that make the name; "" if none does."""
    name = error.name if type(error) is NameError else None
    if not name or not lesson:
        return ""
    with suppress(Exception):  # an unsaved or half-written notebook: the error stands alone, as it would have
        for section, line, made in _cells(Path(f"{lesson}.ipynb")):
            if name in made:
                return _TEXTS["made",](name=name, line=line, section=section)
    return ""


def _cells(notebook: Path) -> list[tuple[str, str, set[str]]]:
    """(section, first line, names) of each code cell that makes names."""
    section, found = "", []
    for cell in json.loads(notebook.read_text("utf-8"))["cells"]:
        source = cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            heads = [line.lstrip("# ") for line in source.splitlines() if line.startswith("#")]
            section = heads[-1] if heads else section
        elif cell["cell_type"] == "code" and source.strip():
            with suppress(SyntaxError, ValueError):  # a magic, or half a sentence of the learner's
                found.append((section, source.strip().splitlines()[0], _made(source)))
    return found


def _made(source: str) -> set[str]:
    """The names that a cell's code stores in the notebook."""
    code = compile(ast.parse(source), "cell", "exec")
    return {step.argval for step in dis.get_instructions(code) if step.opname == "STORE_NAME"}


class Watch:
    """Says its word below the traceback of a cell that failed for a name; nothing of IPython is replaced."""

    def __init__(self, shell: Any, lesson: str) -> None:
        self.shell, self.lesson = shell, lesson

    def __call__(self, result: Any = None) -> None:
        text = word_on(getattr(result, "error_in_exec", None), self.lesson)
        if text:
            self.shell.display_pub.publish({"text/plain": text, "text/html": framed(as_html(text))})


def watch_before_begin() -> None:
    """In a lesson whose kernel is new, perhaps restarted in the middle: its language, and a word on missing names.

    Which notebook it is the server says, or VS Code; where nobody does (Colab) there is no word.
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
    """In a notebook: say which cell makes a name that is not there, from now on and for this lesson alone."""
    shell = _shell()
    if shell is None:
        return
    for other in [known for known in shell.events.callbacks["post_run_cell"] if isinstance(known, Watch)]:
        shell.events.unregister("post_run_cell", other)
    shell.events.register("post_run_cell", Watch(shell, lesson))
