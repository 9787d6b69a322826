"""Say what this computer has for the lessons, what is in the way, and what to do about it.

Each check is a function that gives what it :class:`Found`. What only disturbs is a note; what keeps the lessons from
running is a problem, and then the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import socket
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from .. import __version__
from ..base.extras import EXTRA_OF
from ..base.files import reason
from ..base.language import LANGUAGES, get_language, series
from ..base.texts import Text, columns, filled
from ..base.units import bytes_text, parse_bytes
from ..children.gpu_models import MODELS
from . import console
from .wording import Wording

OK, NOTE, PROBLEM = "ok", "note", "problem"
_SIGNS = {OK: " ", NOTE: "!", PROBLEM: "x"}  # the worst is the last
_MEMORY = 2 * 2**30  # a lesson in its kernel with torch, and JupyterLab
_DISK = 200 * 2**20  # notebooks with figures
OLDEST, NEWEST = (3, 11), (3, 14)  # the Pythons that labkit is for

WORDING = Wording("doctor")


@dataclass(frozen=True)
class Found:
    """The finding of a check: a text, its level, and what to do if that is not well."""

    text: str
    level: str = OK
    remedy: str = ""


def run(options: argparse.Namespace) -> int:
    """Print the report; 0 if the lessons can run here, 1 if something keeps them from it."""
    width = max(columns(str(WORDING[f"label {name}"])) for name in CHECKS) + 2
    lines = []
    for name, check in CHECKS.items():
        if line := _line(name, check):
            lines.append(line)
            if not options.json:  # at once: the next check can take seconds
                _tell(**line, width=width)
    worst = max((line["level"] for line in lines), key=list(_SIGNS).index)
    ok = worst != PROBLEM
    if options.json:
        print(json.dumps({"ok": ok, "checks": lines}, ensure_ascii=False, indent=1))
    else:
        print()
        WORDING.tell(f"end {worst}")
    return 0 if ok else 1


def _tell(name: str, label: str, text: str, level: str, remedy: str, width: int) -> None:
    told = f"{_SIGNS[level]} {label}{' ' * (width - columns(label))}{text}"
    print(f"{told}\n  {' ' * width}→ {remedy}" if remedy else told, flush=True)


def _line(name: str, check: Callable[[], Found]) -> dict[str, str] | None:
    """A line of the report: the check's name for tools, its label for readers, and what it found. None if a package
    that it needs is missing: packages have a line of their own."""
    label = str(WORDING[f"label {name}"])
    try:
        found = check()
    except ModuleNotFoundError:
        return None
    except Exception as error:  # whatever is wrong with this computer: the other checks are told all the same
        label, found = name, Found(f"{type(error).__name__}: {error}", NOTE)
    return {"name": name, "label": label, **asdict(found)}


def _found(words: str, **facts: object) -> Found:
    """The finding that the entry ``words`` of the texts describes; the first word is its level."""
    text, *remedy = filled(WORDING.entry(words).texts.values(), **facts)
    return Found(text, words.split()[0], *remedy)


def _labkit() -> Found:
    where, spoken = Path(__file__).parents[1], LANGUAGES[get_language()]
    return _found("ok labkit", version=__version__, where=where, spoken=spoken)


def _python() -> Found:
    version, program = platform.python_version(), sys.executable
    oldest, newest = (".".join(map(str, known)) for known in (OLDEST, NEWEST))
    if sys.version_info[:2] < OLDEST:
        return _found("problem old-python", version=version, program=program, oldest=oldest, newest=newest)
    if sys.version_info[:2] > NEWEST:
        return _found("note new-python", version=version, program=program, oldest=oldest, newest=newest)
    system = f"{platform.system()} {platform.machine()}"
    return _found("ok python", version=version, system=system, program=program)


def _pytorch() -> Found:
    try:
        import torch
    except Exception as error:  # not only that it is missing: it may not find a library of the system's
        return _found("problem no-pytorch", said=" ".join(str(error).split())[:300])
    from ..base.torch_releases import TRIED, is_tried

    cuda, hip = torch.version.cuda, torch.version.hip
    build = f"CUDA {cuda}" if cuda else f"ROCm {hip}" if hip else "CPU"
    if is_tried(torch.__version__):
        return _found("ok pytorch", version=torch.__version__, build=build)
    return _found("note untried", version=torch.__version__, build=build, tried=", ".join(TRIED))


def _gpus() -> Found:
    import torch

    count = torch.cuda.device_count()
    if count:
        names = [torch.cuda.get_device_name(k) for k in range(count)]
        sizes = [bytes_text(torch.cuda.get_device_properties(k).total_memory) for k in range(count)]
        return _found("ok gpus", count=count, listed=_listed(list(zip(names, sizes, strict=True))))
    return _found("note unusable-gpus") if shutil.which("nvidia-smi") else Found("0")


def _lessons() -> Found:
    import torch

    count = torch.cuda.device_count()
    if count > 1:
        return _found("ok real-gpus", count=count)
    return _found("ok simulated-gpus", place="GPU cuda:0" if count == 1 else "CPU")


def _models() -> Found:
    pairs = [(model.called, bytes_text(parse_bytes(model.memory))) for model in MODELS]
    return _found("ok models", listed=_listed(pairs))


def _listed(pairs: list[tuple[str, str]]) -> Text:
    """Names of GPUs, each with its memory."""
    return Text(
        en=", ".join(f"{name} ({size})" for name, size in pairs),
        zh="、".join(f"{name}（{size}）" for name, size in pairs),
    )


def _memory() -> Found:
    from ..machine.state.host import available

    left = available()
    if left is None:
        return _found("ok unknown-memory")
    return _found("ok memory" if left >= _MEMORY else "note little-memory", left=bytes_text(left))


def _packages() -> Found:
    found, missing = [], []
    for name in (name for name, extra in EXTRA_OF.items() if extra == "lab"):
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    return _found("problem missing", listed=series(missing)) if missing else Found(series(found))


def _widgets() -> Found:
    """Whether JupyterLab's half of ipywidgets is where JupyterLab looks."""
    from jupyter_core.paths import jupyter_path

    inner = Path("labextensions", "@jupyter-widgets", "jupyterlab-manager")
    if any((place / inner).is_dir() for place in map(Path, jupyter_path())):
        return _found("ok widgets", version=metadata.version("ipywidgets"))
    return _found("problem no-widgets")


def _kernel() -> Found:
    """Whether notebooks that are opened by other means than ``labkit lab`` would find labkit."""
    from jupyter_client.kernelspec import KernelSpecManager

    python = KernelSpecManager().get_kernel_spec("python3").argv[0]
    if _is_this_python(python):
        return _found("ok kernel")
    return _found("note other-kernel", python=python, this=sys.executable)


def _is_this_python(program: str) -> bool:
    """Whether a kernel's program is this Python, of this environment: Jupyter takes a bare name for it."""
    if program in ("python", "python3", f"python{sys.version_info.major}.{sys.version_info.minor}"):
        return True
    found = shutil.which(program)
    return found is not None and Path(found).absolute() == Path(sys.executable).absolute()


def _font() -> Found:
    from ..view.figure import chinese_font

    font = chinese_font()
    if font:
        return Found(font)
    if get_language() != "zh":
        return _found("ok no-font")
    remedy = "Debian、Ubuntu：apt install fonts-noto-cjk；其他系统安装 Noto Sans CJK SC（思源黑体）"
    return Found(str(WORDING["ok no-font"]), NOTE, remedy)


def _menus() -> Found:
    from .lab import LANGUAGE_PACK

    try:
        return Found(f"{LANGUAGE_PACK} {metadata.version(LANGUAGE_PACK)}")
    except metadata.PackageNotFoundError:
        remedy = f"pip install {LANGUAGE_PACK}" if get_language() == "zh" else ""
        return Found(str(WORDING["ok no-menus"]), remedy=remedy)


def _port() -> Found:
    port = next(filter(_is_free, range(8888, 8888 + 50)), None)  # as many as JupyterLab tries
    if port is None:
        return _found("problem no-port")
    return _found("ok port") if port == 8888 else _found("ok other-port", port=port)


def _is_free(port: int) -> bool:
    with socket.socket() as tried:
        if sys.platform != "win32":  # as JupyterLab's own do, so that one that has just been used is free
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _browser() -> Found:
    from .lab import has_screen

    return _found("ok browser" if has_screen() else "ok no-screen")


def _console() -> Found:
    encoding = console.without_chinese()
    if encoding is None:
        return Found(getattr(sys.stdout, "encoding", None) or "utf-8")
    return _found("ok no-chinese", encoding=encoding)


def _copy() -> Found:
    from ..course.notebooks import copies as lessons

    try:
        folder = lessons.default_folder().absolute()
    except RuntimeError:
        return _found("problem no-home")
    there = _nearest(folder)
    if not there.is_dir() or not os.access(there, os.W_OK):
        return _found("problem unwritable-copy", folder=folder)
    free = shutil.disk_usage(there).free
    if free < _DISK:
        return _found("note full-disk", folder=folder, left=bytes_text(free))
    if not folder.exists():
        return _found("ok no-copy", folder=folder)
    begun = sum(copy.is_there() and copy.is_touched() for copy in lessons.copies(folder))
    return _found("ok copy", folder=folder, begun=begun)


def _progress() -> Found:
    from ..course import progress

    try:
        file = progress.file()
    except OSError as error:
        return Found(str(error), NOTE)
    if file is None:
        return _found("ok progress-off")
    if not os.access(_nearest(file.absolute()), os.W_OK):
        return _found("note unwritable-progress", file=file)
    if not file.exists():
        return _found("ok no-progress", file=file)
    try:
        file.read_text("utf-8")
    except OSError as error:
        return Found(f"{file}: {reason(error)}", NOTE)
    return _found("ok progress", file=file, count=len(progress.done()))


def _nearest(path: Path) -> Path:
    """The path, or of the folders above it the nearest that exists."""
    return next(place for place in (path, *path.parents) if place.exists())


# Each check by its name for tools: what there is to run the lessons, and what to open them with.
_RUNS = (_labkit, _python, _pytorch, _gpus, _lessons, _models, _memory, _packages)
_OPENS = (_widgets, _kernel, _font, _menus, _port, _browser, _console, _copy, _progress)
CHECKS: dict[str, Callable[[], Found]] = {check.__name__[1:]: check for check in (*_RUNS, *_OPENS)}
