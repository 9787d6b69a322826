"""Renew every place that quotes what labkit prints or draws: ``make renew``, or ``make renew ARGS="pages lessons"``.

Sentences have one source, the code and the texts beside it. READMEs, documents, pictures and the stored outputs of
lessons quote them; a test compares each quotation with its source, and this command writes it anew.

On a page, a block of ```` ```text ```` holds what the program above it prints:

- below ```` ```python ````: the program is run as a script; where it says ``%%ranks``, all such blocks of the page are
  the cells of one notebook;
- below ```` ```py ```` and a block with ``labkit`` commands: the program is saved as ``train.py``, the commands are run
  in its folder, and the last one is quoted, from its deadlock on if there is one.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat

from labkit.base.files import write_whole
from labkit_course.notebooks.execute import execute
from tools.author import sync
from tools.warm import python

ROOT = Path(__file__).parents[1]
PAGES = [
    f"{name}{ending}.md"
    for name in ("README", "docs/examples", "docs/ranks")
    for ending in ("", ".zh")
]  # fmt: skip
# A page written by a command, or a program that writes its files itself.
PRINTED = {
    "docs/simulated.md": ["-m", "labkit_ranks"],
    "docs/reading.md": ["-m", "tools.reading"],
}
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COLOR = re.compile(r"\x1b\[[0-9;]*m")


def renew_page(text: str, language: str) -> str:
    """Return a page's ``text`` with each output block replaced by what its program prints in ``language``.

    The module's docstring says what each kind of block means.
    """
    # block[1] is the word after the fence, block[2] the content.
    blocks = list(_BLOCK.finditer(text))
    cells = [block[2] for block in blocks if block[1] == "python"]
    notebook = _run_cells(cells, language) if any("%%ranks" in cell for cell in cells) else None
    program, outputs, new = "", {}, text
    for block, following in itertools.pairwise(blocks):
        quoted = following[1] == "text"
        if block[1] == "py":
            program = block[2]
        elif block[1] == "python" and quoted:
            outputs[following] = next(notebook) if notebook else _run_script(block[2], language)
        elif block[1] == "python" and notebook:
            next(notebook)
        elif block[1] == "" and quoted:
            outputs[following] = _run_commands(program, block[2].splitlines(), language)
    for block in reversed(outputs):
        new = f"{new[: block.start(2)]}{outputs[block]}{new[block.end(2) :]}"
    return new


def page_language(name: str) -> str:
    """Return the language that a page's name tells."""
    return "zh" if ".zh." in name else "en"


def _environment(language: str) -> dict[str, str]:
    return os.environ | {"LABKIT_LANG": language, "PYTHONIOENCODING": "utf-8", "OMP_NUM_THREADS": "1"}


def _run_script(code: str, language: str) -> str:
    done = subprocess.run(
        [*python(), "-c", code], capture_output=True, text=True, check=True, encoding="utf-8",
        env=_environment(language),
    )  # fmt: skip
    return done.stdout


def _run_commands(program: str, commands: list[str], language: str) -> str:
    """Run shell lines beside ``train.py``; return the output of the last line, from a deadlock report on if printed."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text(program, "utf-8")
        for command in commands:
            line = re.sub(r"\blabkit ", f"{' '.join(python())} -m labkit ", command)
            done = subprocess.run(
                line, shell=True, cwd=folder, capture_output=True, text=True, encoding="utf-8",
                env=_environment(language) | {"TMPDIR": folder},
            )  # fmt: skip
    printed = done.stdout + done.stderr
    deadlock = re.search(r"^[\w.]*Deadlock: ", printed, re.MULTILINE)
    return printed[deadlock.start() :] if deadlock else printed


def _run_cells(cells: list[str], language: str) -> Iterator[str]:
    """Run ``cells`` as a notebook and yield the text output or error message of each cell."""
    first = f"import labkit\nlabkit.set_language({language!r})"
    notebook = nbformat.v4.new_notebook(cells=[
        nbformat.v4.new_code_cell(cell.rstrip(), metadata={"tags": ["raises-exception"]}) for cell in [first, *cells]
    ])  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        execute(notebook, Path(folder))
    for cell in notebook.cells[1:]:
        shown = ""
        for output in cell.outputs:
            if output.output_type == "error":
                traceback = _COLOR.sub("", "\n".join(output.traceback))
                shown += traceback[traceback.rindex(f"\n{output.ename}: ") + 1 :] + "\n"
            elif output.output_type == "stream":
                shown += output.text
            else:
                shown += output.data["text/plain"] + "\n"
        yield shown


def renew_pages() -> None:
    """Renew the output blocks of ``PAGES``."""
    for name in PAGES:
        path = ROOT / name
        before = path.read_text("utf-8")
        after = renew_page(before, page_language(name))
        if after != before:
            write_whole(path, after)
        print(f"{name}: {'as it was' if after == before else 'renewed'}", flush=True)


def renew_printed() -> None:
    """Write the documents and pictures that are made from the code."""
    for name, arguments in PRINTED.items():
        done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, check=True)
        (ROOT / name).write_bytes(done.stdout)
        print(name, flush=True)
    subprocess.run([sys.executable, ROOT / "docs/picture.py"], check=True)


def renew_lessons() -> None:
    """Run all notebooks in both languages and store their outputs."""
    sync.main(["--root", str(ROOT / "notebooks")])


STEPS: dict[str, Callable[[], None]] = {
    "pages": renew_pages,
    "printed": renew_printed,
    "lessons": renew_lessons,
}


def main(names: list[str]) -> int:
    """Run the named steps, by default all; return 2 for an unknown name."""
    if unknown := [name for name in names if name not in STEPS]:
        print(f"no such step: {', '.join(unknown)}; there are {', '.join(STEPS)}", file=sys.stderr)
        return 2
    for name in names or STEPS:
        STEPS[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
