"""Say what this computer has for the lessons, what is in the way, and what to do about it.

Each check is a function that gives one :class:`Check`. What only disturbs is a note; what keeps the lessons from
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
from ..course.notebooks import copies as lessons
from . import console

OK, NOTE, PROBLEM = "ok", "note", "problem"
INSTALL = 'pip install "labkit[lab]"'
_MEMORY, _DISK = (
    2 * 2**30,
    200 * 2**20,
)  # a lesson in its kernel with torch, and JupyterLab; notebooks with figures


@dataclass(frozen=True)
class Check:
    """What was looked at, what was found, how well that is, and what to do if it is not."""

    name: str
    label: str
    text: str
    level: str = OK
    remedy: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json",
        action="store_true",
        help=say(en="as JSON, for tools and bug reports", zh="输出 JSON，供工具和问题报告使用"),
    )


def run(options: argparse.Namespace) -> int:
    """Print the report; 0 if the lessons can run here, 1 if something keeps them from it."""
    found = [check for check in map(_checked, CHECKS) if check]
    ok = all(check.level != PROBLEM for check in found)
    if options.json:
        print(
            json.dumps({"ok": ok, "checks": [asdict(check) for check in found]}, ensure_ascii=False, indent=1)
        )
        return 0 if ok else 1
    width = max(_columns(check.label) for check in found) + 2
    for check in found:
        sign = {OK: " ", NOTE: "!", PROBLEM: "x"}[check.level]
        print(f"{sign} {check.label}{' ' * (width - _columns(check.label))}{check.text}")
        if check.remedy:
            print(f"  {' ' * width}→ {check.remedy}")
    print()
    if not ok:
        print(
            say(
                en="Lessons cannot run here yet: see the lines with x.",
                zh="课程还不能在这里运行：请看带 x 的行。",
            )
        )
    elif any(check.level == NOTE for check in found):
        print(
            say(
                en="Lessons run here; the lines with ! may disturb.",
                zh="课程可以运行；带 ! 的行可能会有影响。",
            )
        )
    else:
        print(say(en="Lessons run here.", zh="课程可以运行。"))
    return 0 if ok else 1


def _checked(check: Callable[[], Check]) -> Check | None:
    try:
        return check()
    except ModuleNotFoundError:  # what is missing has a line of its own
        return None
    except Exception as error:  # whatever is wrong with this computer: the other checks are told all the same
        name = check.__name__.strip("_")
        return Check(name, name, f"{type(error).__name__}: {error}", NOTE)


def _labkit() -> Check:
    where, spoken = Path(__file__).parents[1], LANGUAGES[get_language()]
    return Check(
        "labkit",
        "labkit",
        say(en=f"{__version__} in {where}; {spoken}", zh=f"{__version__}，位于 {where}；{spoken}"),
    )


def _python() -> Check:
    system = f"{platform.system()} {platform.machine()}"
    return Check(
        "python",
        "Python",
        say(
            en=f"{platform.python_version()} ({system}), {sys.executable}",
            zh=f"{platform.python_version()}（{system}），{sys.executable}",
        ),
    )


def _pytorch() -> Check:
    try:
        import torch
    except (
        Exception
    ) as error:  # not only that it is missing: a library of the system's that it does not find, say
        said = " ".join(str(error).split())[:300]
        return Check(
            "pytorch",
            "PyTorch",
            say(en=f"cannot be imported: {said}", zh=f"无法导入：{said}"),
            PROBLEM,
            say(
                en="install the build for this computer, as PyTorch's own page says: pip install torch",
                zh="按 PyTorch 官网的说明安装适合这台电脑的版本：pip install torch",
            ),
        )
    from ..base.torch_releases import TRIED, is_tried

    build = (
        f"CUDA {torch.version.cuda}"
        if torch.version.cuda
        else f"ROCm {torch.version.hip}"
        if torch.version.hip
        else "CPU"
    )
    text = say(en=f"{torch.__version__} (a {build} build)", zh=f"{torch.__version__}（{build} 版）")
    if is_tried(torch.__version__):
        return Check("pytorch", "PyTorch", text)
    listed = ", ".join(TRIED)
    return Check(
        "pytorch",
        "PyTorch",
        text,
        NOTE,
        say(
            en=f"labkit was not tried on it, but on {listed}: if something is odd, install one of those",
            zh=f"labkit 没有在这个版本上试过，试过的是 {listed}：如果有什么不对劲，换成其中一个",
        ),
    )


def _gpus() -> Check:
    import torch

    label = say(en="GPUs", zh="GPU")
    count = torch.cuda.device_count()
    listed = say(en=", ", zh="、").join(
        say(
            en=f"{torch.cuda.get_device_name(k)} ({bytes_text(torch.cuda.get_device_properties(k).total_memory)})",
            zh=f"{torch.cuda.get_device_name(k)}（{bytes_text(torch.cuda.get_device_properties(k).total_memory)}）",
        )
        for k in range(count)
    )
    if count:
        return Check("gpus", label, say(en=f"{count}: {listed}", zh=f"{count} 块：{listed}"))
    if shutil.which("nvidia-smi"):
        return Check(
            "gpus",
            label,
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
    return Check("gpus", label, "0")


def _used() -> Check:
    import torch

    count = torch.cuda.device_count()
    backing = "GPU cuda:0" if count == 1 else "CPU"
    text = (
        say(en=f"use the {count} GPUs, and simulate more", zh=f"使用这 {count} 块 GPU，不够时再模拟")
        if count > 1
        else say(
            en=f"use simulated GPUs, values kept on the {backing}", zh=f"使用模拟 GPU，数值放在 {backing} 上"
        )
    )
    return Check("lessons", say(en="lessons", zh="课程"), text)


def _memory() -> Check:
    from ..machine.state.host import available

    label = say(en="memory", zh="内存")
    left = available()
    if left is None:
        return Check("memory", label, say(en="not known here", zh="在这个系统上无从得知"))
    text = say(en=f"{bytes_text(left)} free", zh=f"空闲 {bytes_text(left)}")
    if left >= _MEMORY:
        return Check("memory", label, text)
    return Check(
        "memory",
        label,
        text,
        NOTE,
        say(
            en="a lesson takes about 1 GiB: close other programs, and shut down kernels that you no longer use",
            zh="一课大约要 1 GiB：关掉别的程序，并关闭不再使用的内核",
        ),
    )


def _packages() -> Check:
    found, missing = [], []
    for name in EXTRA_OF:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    label = say(en="packages", zh="软件包")
    if missing:
        listed = ", ".join(missing)
        return Check("packages", label, say(en=f"missing: {listed}", zh=f"缺少 {listed}"), PROBLEM, INSTALL)
    return Check("packages", label, ", ".join(found))


def _widgets() -> Check:
    """Whether JupyterLab's half of ipywidgets is where JupyterLab looks."""
    from jupyter_core.paths import jupyter_path

    label = say(en="widgets", zh="控件")
    places = [
        Path(place, "labextensions", "@jupyter-widgets", "jupyterlab-manager") for place in jupyter_path()
    ]
    there = next((place for place in places if place.is_dir()), None)
    if there:
        version = metadata.version("ipywidgets")
        return Check(
            "widgets",
            label,
            say(
                en=f"ipywidgets {version}, and JupyterLab can show them",
                zh=f"ipywidgets {version}，JupyterLab 能显示",
            ),
        )
    return Check(
        "widgets",
        label,
        say(
            en="JupyterLab has no part that shows sliders and buttons",
            zh="JupyterLab 缺少显示滑块和按钮的部分",
        ),
        PROBLEM,
        "pip install --force-reinstall jupyterlab_widgets",
    )


def _kernel() -> Check:
    """Whether notebooks that are opened by other means than ``labkit lab`` would find labkit."""
    from jupyter_client.kernelspec import KernelSpecManager

    label = say(en="kernel", zh="内核")
    spec = KernelSpecManager().get_kernel_spec("python3")
    its = spec.argv[0]
    if its in ("python", "python3", f"python{sys.version_info.major}.{sys.version_info.minor}") or _same(its):
        return Check(
            "kernel",
            label,
            say(en="python3 is this Python", zh="python3 就是这个 Python"),
        )
    return Check(
        "kernel",
        label,
        say(en=f"python3 is another Python: {its}", zh=f"python3 是另一个 Python：{its}"),
        NOTE,
        say(
            en="`labkit lab` uses this Python anyway; elsewhere choose the kernel that this makes: "
            f'"{sys.executable}" -m ipykernel install --user --name labkit',
            zh="`labkit lab` 总是使用这个 Python；在别处请选用这条命令建立的内核："
            f'"{sys.executable}" -m ipykernel install --user --name labkit',
        ),
    )


def _same(program: str) -> bool:
    """Whether a program is this Python, of this environment."""
    found = shutil.which(program)
    return found is not None and Path(found).absolute() == Path(sys.executable).absolute()


def _font() -> Check:
    from ..view.figure import chinese_font

    label = say(en="Chinese", zh="中文字体")
    font = chinese_font()
    if font:
        return Check("font", label, font)
    return Check(
        "font",
        label,
        say(en="no font: figures are in English", zh="没有字体：图中文字用英文"),
        NOTE if get_language() == "zh" else OK,
        say(
            en="for figures in Chinese: Debian, Ubuntu: apt install fonts-noto-cjk; elsewhere Noto Sans CJK SC",
            zh="Debian、Ubuntu：apt install fonts-noto-cjk；其他系统安装 Noto Sans CJK SC（思源黑体）",
        )
        if get_language() == "zh"
        else "",
    )


def _menus() -> Check:
    from .lab import LANGUAGE_PACK

    label = say(en="menus", zh="菜单")
    try:
        return Check("menus", label, f"{LANGUAGE_PACK} {metadata.version(LANGUAGE_PACK)}")
    except metadata.PackageNotFoundError:
        return Check(
            "menus",
            label,
            say(en="JupyterLab's are in English", zh="JupyterLab 的菜单是英文的"),
            remedy=f"pip install {LANGUAGE_PACK}" if get_language() == "zh" else "",
        )


def _port() -> Check:
    label = say(en="port", zh="端口")
    for port in range(8888, 8888 + 50):  # as many as JupyterLab tries
        with socket.socket() as tried:
            if sys.platform != "win32":  # as JupyterLab's own do, so that one that has just been used is free
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port == 8888:
            return Check("port", label, say(en="8888 is free", zh="8888 空闲"))
        return Check(
            "port",
            label,
            say(en=f"8888 is taken: {port} would be used", zh=f"8888 已被占用，将使用 {port}"),
        )
    return Check(
        "port",
        label,
        say(en="8888 to 8937 cannot be used", zh="8888 到 8937 都不能用"),
        PROBLEM,
        say(en="name a free one: labkit lab --port 9999", zh="指定一个空闲的：labkit lab --port 9999"),
    )


def _browser() -> Check:
    from .lab import has_screen

    label = say(en="browser", zh="浏览器")
    if has_screen():
        return Check("browser", label, say(en="opens by itself", zh="会自动打开"))
    said = say(en="no screen here: open the address that is printed", zh="这里没有屏幕：请打开所打印的网址")
    return Check("browser", label, said)


def _console() -> Check:
    label = say(en="console", zh="终端")
    encoding = console.without_chinese()
    if encoding is None:
        return Check("console", label, getattr(sys.stdout, "encoding", None) or "utf-8")
    return Check(
        "console",
        label,
        say(en=f"{encoding}, which has no Chinese", zh=f"{encoding}，显示不了中文"),
        remedy=say(
            en="for messages in Chinese set PYTHONUTF8=1 and use a UTF-8 terminal; lessons are not concerned",
            zh="想看中文消息，请设置 PYTHONUTF8=1 并使用 UTF-8 终端；课程不受影响",
        ),
    )


def _course() -> Check:
    label = say(en="your copy", zh="课程副本")
    try:
        folder = lessons.default_folder().absolute()
    except RuntimeError:
        return Check(
            "copy",
            label,
            say(en="the home folder is not known", zh="不知道主目录在哪里"),
            PROBLEM,
            say(
                en=f"name a folder in {lessons.VARIABLE}, or with --dir",
                zh=f"用 {lessons.VARIABLE} 或 --dir 指定文件夹",
            ),
        )
    there = next(place for place in (folder, *folder.parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        return Check(
            "copy",
            label,
            say(en=f"{folder}: cannot be written", zh=f"{folder}：无法写入"),
            PROBLEM,
            say(
                en=f"name another folder: labkit lab --dir DIR, or {lessons.VARIABLE}",
                zh=f"换一个文件夹：labkit lab --dir 文件夹，或设置 {lessons.VARIABLE}",
            ),
        )
    free = shutil.disk_usage(there).free
    if free < _DISK:
        return Check(
            "copy",
            label,
            say(
                en=f"{folder}: {bytes_text(free)} left on its disk",
                zh=f"{folder}：磁盘只剩 {bytes_text(free)}",
            ),
            NOTE,
            say(
                en="make room, or name a folder elsewhere with --dir",
                zh="请腾出空间，或用 --dir 指定别处的文件夹",
            ),
        )
    if not folder.exists():
        return Check(
            "copy", label, say(en=f"{folder}: made by `labkit lab`", zh=f"{folder}：运行 `labkit lab` 时建立")
        )
    begun = sum(copy.is_there() and copy.is_touched() for copy in lessons.copies(folder))
    return Check("copy", label, say(en=f"{folder}: {begun} begun", zh=f"{folder}：已开始 {begun} 个"))


def _progress() -> Check:
    from ..course import progress

    label = say(en="progress", zh="进度")
    try:
        file = progress.file()
    except OSError as error:
        return Check("progress", label, str(error), NOTE)
    if file is None:
        return Check(
            "progress",
            label,
            say(en="not kept (LABKIT_PROGRESS is off)", zh="不保存（LABKIT_PROGRESS 为 off）"),
        )
    there = next(place for place in (file, *file.absolute().parents) if place.exists())
    if not os.access(there, os.W_OK):
        return Check(
            "progress",
            label,
            say(en=f"{file}: cannot be written", zh=f"{file}：无法写入"),
            NOTE,
            say(en="name another file in LABKIT_PROGRESS", zh="用 LABKIT_PROGRESS 指定别的文件"),
        )
    if not file.exists():
        return Check("progress", label, say(en=f"{file}: nothing answered yet", zh=f"{file}：还没有作答"))
    try:
        file.read_text("utf-8")
    except OSError as error:
        return Check("progress", label, f"{file}: {reason(error)}", NOTE)
    count = len(progress.done())
    return Check("progress", label, say(en=f"{file}: {count} answered", zh=f"{file}：已答对 {count} 题"))


CHECKS = (
    _labkit, _python, _pytorch, _gpus, _used, _memory, _packages, _widgets, _kernel, _font, _menus, _port, _browser,
    _console, _course, _progress,
)  # fmt: skip


def _columns(text: str) -> int:
    """How many columns of a terminal a text takes: Chinese letters take two."""
    return sum(1 + (unicodedata.east_asian_width(letter) in "FW") for letter in text)
