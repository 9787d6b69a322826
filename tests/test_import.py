"""``import labkit`` costs next to nothing: what is heavy loads when a name that needs it is used."""

import subprocess
import sys
from pathlib import Path

import labkit

HEAVY = ("torch", "numpy", "matplotlib", "ipywidgets", "IPython")


ROOT = Path(labkit.__file__).parent.parent


def _loaded_after(code: str) -> list[str]:
    script = f"{code}\nimport sys\nprint(*[name for name in {HEAVY} if name in sys.modules])"
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()


def test_import_loads_nothing_heavy():
    assert _loaded_after("import labkit; labkit.split(30, 8); labkit.set_language('zh'); dir(labkit)") == []


def test_import_alone_loads_next_to_nothing():
    """Neither re nor typing: they would take longer than all the rest."""
    script = "import sys; before = set(sys.modules); import labkit; print(*sorted({*sys.modules} - before))"
    bare = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.append({str(ROOT)!r}); {script}"]
    found = subprocess.run(bare, capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in found if name.startswith("labkit")] == [
        "labkit", "labkit.base", "labkit.base.display", "labkit.base.lazy_names",
    ]  # fmt: skip
    assert not {"re", "typing", "functools", "contextlib", "pathlib"} & set(found)


def test_names_load_what_they_need_and_no_more():
    assert _loaded_after("import labkit; labkit.DataParallel") in (["torch"], ["torch", "numpy"])
    assert _loaded_after("import labkit; labkit.split(3, 2)._repr_svg_()") == []


def test_a_lesson_begins_without_what_only_authors_need():
    heavy = "('nbformat', 'papermill', 'nbclient')"
    code = f"import sys, labkit_course; sys.exit(any(name in sys.modules for name in {heavy}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
