"""Say what this computer has: Python, PyTorch, GPUs, notebook pieces, and what labkit would simulate."""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import unicodedata
from importlib import metadata

from ..base.language import say

NEEDED = ("jupyterlab", "ipykernel", "ipywidgets", "matplotlib", "papermill")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """It takes none."""


def run(options: argparse.Namespace) -> int:
    """Print the report; 0 if the lessons can run here, 1 if something is missing."""
    import torch

    from ..base.torch_private import TRIED, is_tried

    if is_tried(torch.__version__):
        tried = say(en="tried", zh="试过")
    else:
        listed = ", ".join(TRIED)
        tried = say(en=f"not tried: labkit was run on {listed}", zh=f"没有试过：labkit 在 {listed} 上运行过")
    count = torch.cuda.device_count()
    names = ", ".join(torch.cuda.get_device_name(k) for k in range(count))
    backing = "GPU cuda:0" if count == 1 else "CPU"
    rows = [
        ("Python", f"{platform.python_version()} ({platform.system()} {platform.machine()})"),
        ("PyTorch", f"{torch.__version__} ({tried})"),
        (say(en="GPUs", zh="GPU"), f"{count}{f' ({names})' if names else ''}"),
        (
            say(en="lessons", zh="课程"),
            say(en=f"use {count} GPUs", zh=f"使用 {count} 块 GPU")
            if count > 1
            else say(
                en=f"use simulated GPUs, values kept on the {backing}",
                zh=f"使用模拟 GPU，数值放在 {backing} 上",
            ),
        ),
        (
            say(en="browser", zh="浏览器"),
            shutil.which("chromium")
            or say(en="no Chromium: the browser tests are left out", zh="没有 Chromium：跳过浏览器测试"),
        ),
    ]
    if shutil.which("fc-list"):
        font = _chinese_font() or say(
            en="no font: figures are in English (Debian: apt install fonts-noto-cjk)",
            zh="没有字体：图中文字用英文（Debian：apt install fonts-noto-cjk）",
        )
        rows.append((say(en="Chinese", zh="中文字体"), font))
    missing = []
    for name in NEEDED:
        try:
            rows.append((name, metadata.version(name)))
        except metadata.PackageNotFoundError:
            missing.append(name)
    for label, text in rows:
        print(label + " " * (11 - _columns(label)) + text)
    if missing:
        command = 'pip install "labkit[lab]"'
        listed = ", ".join(missing)
        print(say(en=f"missing: {listed} — {command}", zh=f"缺少：{listed}。安装：{command}"))
    return 1 if missing else 0


def _columns(text: str) -> int:
    """How many columns of a terminal a text takes: Chinese letters take two."""
    return sum(1 + (unicodedata.east_asian_width(letter) in "FW") for letter in text)


def _chinese_font() -> str:
    """A font that has Chinese, as fontconfig names it; "" if there is none."""
    listed = subprocess.run(["fc-list", ":lang=zh-cn", "family"], capture_output=True, text=True, check=False)
    return min(listed.stdout.splitlines(), default="").partition(",")[0]
