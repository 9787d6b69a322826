"""Say what this computer has: Python, PyTorch, GPUs, notebook pieces, and what labkit would simulate."""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
from importlib import metadata

NEEDED = ("jupyterlab", "ipykernel", "ipywidgets", "matplotlib", "papermill")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """It takes none."""


def run(options: argparse.Namespace) -> int:
    """Print the report; 0 if the lessons can run here, 1 if something is missing."""
    import torch

    from ..base.torch_private import TRIED, is_tried

    tried = "tried" if is_tried(torch.__version__) else f"not tried: labkit was run on {', '.join(TRIED)}"
    count = torch.cuda.device_count()
    names = ", ".join(torch.cuda.get_device_name(k) for k in range(count))
    backing = "GPU cuda:0" if count == 1 else "CPU"
    lines = [
        f"Python     {platform.python_version()} on {platform.system()} {platform.machine()}",
        f"PyTorch    {torch.__version__} ({tried})",
        f"GPUs       {count}{f' ({names})' if names else ''}",
        f"lessons    use {count if count > 1 else 'simulated'} GPUs"
        + ("" if count > 1 else f", values kept on the {backing}"),
        f"browser    {shutil.which('chromium') or 'no Chromium: the browser tests are left out'}",
    ]
    if shutil.which("fc-list"):
        lines.append(
            f"Chinese    {_chinese_font() or 'no font: figures are in English (Debian: apt install fonts-noto-cjk)'}"
        )
    missing = []
    for name in NEEDED:
        try:
            lines.append(f"{name:<11}{metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        lines.append(f'missing: {", ".join(missing)} — pip install "labkit[lab]"')
    print("\n".join(lines))
    return 1 if missing else 0


def _chinese_font() -> str:
    """A font that has Chinese, as fontconfig names it; "" if there is none."""
    listed = subprocess.run(["fc-list", ":lang=zh-cn", "family"], capture_output=True, text=True, check=False)
    return min(listed.stdout.splitlines(), default="").partition(",")[0]
