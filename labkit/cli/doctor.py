"""Say what this computer has for the lessons, what is in the way, and what to do about it.

Each check is a function that says what it found: a text if all is well, else a :class:`Found`. What only disturbs is
a note; what keeps the lessons from running is a problem, and then the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import socket
import sys
import unicodedata
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from .. import __version__
from ..base.extras import EXTRA_OF
from ..base.files import reason
from ..base.language import LANGUAGES, get_language, say
from ..base.units import bytes_text
from . import console
from .console import tell
from .usage import add_options
from .wording import Wording

OK, NOTE, PROBLEM = "ok", "note", "problem"
INSTALL = 'pip install "labkit[lab]"'
_MEMORY = 2 * 2**30  # a lesson in its kernel with torch, and JupyterLab
_DISK = 200 * 2**20  # notebooks with figures

WORDING = Wording("doctor")


@dataclass(frozen=True)
class Found:
    """The finding of a check: a text, its level, and what to do if that is not well."""

    text: str
    level: str = OK
    remedy: str = ""


@dataclass(frozen=True)
class Line:
    """A line of the report: the name of a check for tools, its label for readers, and what it found."""

    name: str
    label: str
    text: str
    level: str
    remedy: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, WORDING, "options")


def run(options: argparse.Namespace) -> int:
    """Print the report; 0 if the lessons can run here, 1 if something keeps them from it."""
    lines = [line for row in CHECKS if (line := _line(*row))]
    ok = all(line.level != PROBLEM for line in lines)
    if options.json:
        told = {"ok": ok, "checks": [asdict(line) for line in lines]}
        print(json.dumps(told, ensure_ascii=False, indent=1))
        return 0 if ok else 1
    width = max(_columns(line.label) for line in lines) + 2
    for line in lines:
        sign = {OK: " ", NOTE: "!", PROBLEM: "x"}[line.level]
        print(f"{sign} {line.label}{' ' * (width - _columns(line.label))}{line.text}")
        if line.remedy:
            print(f"  {' ' * width}→ {line.remedy}")
    print()
    if not ok:
        tell(
            en="Lessons cannot run here yet: see the lines with x.",
            zh="课程还不能在这里运行：请看带 x 的行。",
        )
    elif any(line.level == NOTE for line in lines):
        tell(en="Lessons run here; the lines with ! may disturb.", zh="课程可以运行；带 ! 的行可能会有影响。")
    else:
        tell(en="Lessons run here.", zh="课程可以运行。")
    return 0 if ok else 1


def _line(name: str, en: str, zh: str, check: Callable[[], str | Found]) -> Line | None:
    """The line of a check. None if a package that it needs is missing: packages have a line of their own."""
    try:
        found = check()
    except ModuleNotFoundError:
        return None
    except Exception as error:  # whatever is wrong with this computer: the other checks are told all the same
        return Line(name, name, f"{type(error).__name__}: {error}", NOTE, "")
    found = Found(found) if isinstance(found, str) else found
    return Line(name, say(en=en, zh=zh), **asdict(found))


def _labkit() -> str:
    where, spoken = Path(__file__).parents[1], LANGUAGES[get_language()]
    return say(en=f"{__version__} in {where}; {spoken}", zh=f"{__version__}，位于 {where}；{spoken}")


def _python() -> str:
    version, system = platform.python_version(), f"{platform.system()} {platform.machine()}"
    return say(en=f"{version} ({system}), {sys.executable}", zh=f"{version}（{system}），{sys.executable}")


def _pytorch() -> str | Found:
    try:
        import torch
    except Exception as error:  # not only that it is missing: it may not find a library of the system's
        said = " ".join(str(error).split())[:300]
        return Found(
            say(en=f"cannot be imported: {said}", zh=f"无法导入：{said}"),
            PROBLEM,
            say(
                en="install the build for this computer, as PyTorch's own page says: pip install torch",
                zh="按 PyTorch 官网的说明安装适合这台电脑的版本：pip install torch",
            ),
        )
    from ..base.torch_releases import TRIED, is_tried

    cuda, hip = torch.version.cuda, torch.version.hip
    build = f"CUDA {cuda}" if cuda else f"ROCm {hip}" if hip else "CPU"
    text = say(en=f"{torch.__version__} (a {build} build)", zh=f"{torch.__version__}（{build} 版）")
    if is_tried(torch.__version__):
        return text
    listed = ", ".join(TRIED)
    return Found(
        text,
        NOTE,
        say(
            en=f"labkit was not tried on it, but on {listed}: if something is odd, install one of those",
            zh=f"labkit 没有在这个版本上试过，试过的是 {listed}：如果有什么不对劲，换成其中一个",
        ),
    )


def _gpus() -> str | Found:
    import torch

    count = torch.cuda.device_count()
    if count:
        names = [torch.cuda.get_device_name(k) for k in range(count)]
        sizes = [bytes_text(torch.cuda.get_device_properties(k).total_memory) for k in range(count)]
        pairs = list(zip(names, sizes, strict=True))
        return say(
            en=f"{count}: " + ", ".join(f"{name} ({size})" for name, size in pairs),
            zh=f"{count} 块：" + "、".join(f"{name}（{size}）" for name, size in pairs),
        )
    if not shutil.which("nvidia-smi"):
        return "0"
    return Found(
        say(
            en="0 that this PyTorch can use, though NVIDIA's driver is installed",
            zh="这个 PyTorch 一块也用不了，虽然装有 NVIDIA 驱动",
        ),
        NOTE,
        say(
            en="lessons simulate GPUs all the same; to use the real one, install a CUDA build of PyTorch that "
            "the driver supports",
            zh="课程照样能用模拟 GPU 来学；想用真 GPU，请安装与驱动相配的 CUDA 版 PyTorch",
        ),
    )


def _used() -> str:
    import torch

    count = torch.cuda.device_count()
    if count > 1:
        return say(en=f"use the {count} GPUs, and simulate more", zh=f"使用这 {count} 块 GPU，不够时再模拟")
    place = "GPU cuda:0" if count == 1 else "CPU"
    return say(en=f"use simulated GPUs, values kept on the {place}", zh=f"使用模拟 GPU，数值放在 {place} 上")


def _memory() -> str | Found:
    from ..machine.state.host import available

    left = available()
    if left is None:
        return say(en="not known here", zh="在这个系统上无从得知")
    text = say(en=f"{bytes_text(left)} free", zh=f"空闲 {bytes_text(left)}")
    if left >= _MEMORY:
        return text
    return Found(
        text,
        NOTE,
        say(
            en="a lesson takes about 1 GiB: close other programs, and shut down kernels that you no longer use",
            zh="一课大约要 1 GiB：关掉别的程序，并关闭不再使用的内核",
        ),
    )


def _packages() -> str | Found:
    found, missing = [], []
    for name in EXTRA_OF:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        listed = ", ".join(missing)
        return Found(say(en=f"missing: {listed}", zh=f"缺少 {listed}"), PROBLEM, INSTALL)
    return ", ".join(found)


def _widgets() -> str | Found:
    """Whether JupyterLab's half of ipywidgets is where JupyterLab looks."""
    from jupyter_core.paths import jupyter_path

    inner = Path("labextensions", "@jupyter-widgets", "jupyterlab-manager")
    if any((place / inner).is_dir() for place in map(Path, jupyter_path())):
        version = metadata.version("ipywidgets")
        return say(
            en=f"ipywidgets {version}, and JupyterLab can show them",
            zh=f"ipywidgets {version}，JupyterLab 能显示",
        )
    return Found(
        say(
            en="JupyterLab has no part that shows sliders and buttons",
            zh="JupyterLab 缺少显示滑块和按钮的部分",
        ),
        PROBLEM,
        "pip install --force-reinstall jupyterlab_widgets",
    )


def _kernel() -> str | Found:
    """Whether notebooks that are opened by other means than ``labkit lab`` would find labkit."""
    from jupyter_client.kernelspec import KernelSpecManager

    python = KernelSpecManager().get_kernel_spec("python3").argv[0]
    if _is_this_python(python):
        return say(en="python3 is this Python", zh="python3 就是这个 Python")
    return Found(
        say(en=f"python3 is another Python: {python}", zh=f"python3 是另一个 Python：{python}"),
        NOTE,
        say(
            en="`labkit lab` uses this Python anyway; elsewhere choose the kernel that this makes: "
            f'"{sys.executable}" -m ipykernel install --user --name labkit',
            zh="`labkit lab` 总是使用这个 Python；在别处请选用这条命令建立的内核："
            f'"{sys.executable}" -m ipykernel install --user --name labkit',
        ),
    )


def _is_this_python(program: str) -> bool:
    """Whether a kernel's program is this Python, of this environment: Jupyter takes a bare name for it."""
    if program in ("python", "python3", f"python{sys.version_info.major}.{sys.version_info.minor}"):
        return True
    found = shutil.which(program)
    return found is not None and Path(found).absolute() == Path(sys.executable).absolute()


def _font() -> str | Found:
    from ..view.figure import chinese_font

    font = chinese_font()
    if font:
        return font
    text = say(en="no font: figures are in English", zh="没有字体：图中文字用英文")
    if get_language() != "zh":
        return text
    return Found(
        text, NOTE, "Debian、Ubuntu：apt install fonts-noto-cjk；其他系统安装 Noto Sans CJK SC（思源黑体）"
    )


def _menus() -> str | Found:
    from .lab import LANGUAGE_PACK

    try:
        return f"{LANGUAGE_PACK} {metadata.version(LANGUAGE_PACK)}"
    except metadata.PackageNotFoundError:
        text = say(en="JupyterLab's are in English", zh="JupyterLab 的菜单是英文的")
        return Found(text, remedy=f"pip install {LANGUAGE_PACK}" if get_language() == "zh" else "")


def _port() -> str | Found:
    port = next(filter(_is_free, range(8888, 8888 + 50)), None)  # as many as JupyterLab tries
    if port is None:
        return Found(
            say(en="8888 to 8937 cannot be used", zh="8888 到 8937 都不能用"),
            PROBLEM,
            say(en="name a free one: labkit lab --port 9999", zh="指定一个空闲的：labkit lab --port 9999"),
        )
    if port == 8888:
        return say(en="8888 is free", zh="8888 空闲")
    return say(en=f"8888 is taken: {port} would be used", zh=f"8888 已被占用，将使用 {port}")


def _is_free(port: int) -> bool:
    with socket.socket() as tried:
        if sys.platform != "win32":  # as JupyterLab's own do, so that one that has just been used is free
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _browser() -> str:
    from .lab import has_screen

    if has_screen():
        return say(en="opens by itself", zh="会自动打开")
    return say(en="no screen here: open the address that is printed", zh="这里没有屏幕：请打开所打印的网址")


def _console() -> str | Found:
    encoding = console.without_chinese()
    if encoding is None:
        return getattr(sys.stdout, "encoding", None) or "utf-8"
    return Found(
        say(en=f"{encoding}, which has no Chinese", zh=f"{encoding}，显示不了中文"),
        remedy=say(
            en="for messages in Chinese set PYTHONUTF8=1 and use a UTF-8 terminal; lessons are not concerned",
            zh="想看中文消息，请设置 PYTHONUTF8=1 并使用 UTF-8 终端；课程不受影响",
        ),
    )


def _course() -> str | Found:
    from ..course.notebooks import copies as lessons

    try:
        folder = lessons.default_folder().absolute()
    except RuntimeError:
        return Found(
            say(en="the home folder is not known", zh="不知道主目录在哪里"),
            PROBLEM,
            say(
                en=f"name a folder in {lessons.VARIABLE}, or with --dir",
                zh=f"用 {lessons.VARIABLE} 或 --dir 指定文件夹",
            ),
        )
    there = _nearest(folder)
    if not there.is_dir() or not os.access(there, os.W_OK):
        return Found(
            say(en=f"{folder}: cannot be written", zh=f"{folder}：无法写入"),
            PROBLEM,
            say(
                en=f"name another folder: labkit lab --dir DIR, or {lessons.VARIABLE}",
                zh=f"换一个文件夹：labkit lab --dir 文件夹，或设置 {lessons.VARIABLE}",
            ),
        )
    free = shutil.disk_usage(there).free
    if free < _DISK:
        left = bytes_text(free)
        return Found(
            say(en=f"{folder}: {left} left on its disk", zh=f"{folder}：磁盘只剩 {left}"),
            NOTE,
            say(
                en="make room, or name a folder elsewhere with --dir",
                zh="请腾出空间，或用 --dir 指定别处的文件夹",
            ),
        )
    if not folder.exists():
        return say(en=f"{folder}: made by `labkit lab`", zh=f"{folder}：运行 `labkit lab` 时建立")
    begun = sum(copy.is_there() and copy.is_touched() for copy in lessons.copies(folder))
    return say(en=f"{folder}: {begun} begun", zh=f"{folder}：已开始 {begun} 个")


def _progress() -> str | Found:
    from ..course import progress

    try:
        file = progress.file()
    except OSError as error:
        return Found(str(error), NOTE)
    if file is None:
        return say(en="not kept (LABKIT_PROGRESS is off)", zh="不保存（LABKIT_PROGRESS 为 off）")
    if not os.access(_nearest(file.absolute()), os.W_OK):
        return Found(
            say(en=f"{file}: cannot be written", zh=f"{file}：无法写入"),
            NOTE,
            say(en="name another file in LABKIT_PROGRESS", zh="用 LABKIT_PROGRESS 指定别的文件"),
        )
    if not file.exists():
        return say(en=f"{file}: nothing answered yet", zh=f"{file}：还没有作答")
    try:
        file.read_text("utf-8")
    except OSError as error:
        return Found(f"{file}: {reason(error)}", NOTE)
    count = len(progress.done())
    return say(en=f"{file}: {count} answered", zh=f"{file}：已答对 {count} 题")


def _nearest(path: Path) -> Path:
    """The path, or of the folders above it the nearest that exists."""
    return next(place for place in (path, *path.parents) if place.exists())


# Each check: its name for tools, its label in English and in Chinese, and what looks.
CHECKS = (
    ("labkit", "labkit", "labkit", _labkit),
    ("python", "Python", "Python", _python),
    ("pytorch", "PyTorch", "PyTorch", _pytorch),
    ("gpus", "GPUs", "GPU", _gpus),
    ("lessons", "lessons", "课程", _used),
    ("memory", "memory", "内存", _memory),
    ("packages", "packages", "软件包", _packages),
    ("widgets", "widgets", "控件", _widgets),
    ("kernel", "kernel", "内核", _kernel),
    ("font", "Chinese", "中文字体", _font),
    ("menus", "menus", "菜单", _menus),
    ("port", "port", "端口", _port),
    ("browser", "browser", "浏览器", _browser),
    ("console", "console", "终端", _console),
    ("copy", "your copy", "课程副本", _course),
    ("progress", "progress", "进度", _progress),
)


def _columns(text: str) -> int:
    """How many columns of a terminal a text takes: Chinese letters take two."""
    return sum(1 + (unicodedata.east_asian_width(letter) in "FW") for letter in text)
