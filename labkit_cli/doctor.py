"""Print facts about the computer on one screen, with reasons why lessons cannot run."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from labkit import __version__
from labkit.base.extras import EXTRA_OF
from labkit.base.texts import columns

from .wording import Wording

OLDEST, NEWEST = (3, 11), (3, 14)  # supported versions of Python

WORDING = Wording("doctor")


def run(options: argparse.Namespace) -> int:
    """Print the facts and problems; return 0 if lessons can run here, 1 otherwise."""
    problems: list[str] = []
    facts = dict(_find_facts(problems))
    if options.json:
        print(json.dumps({"ok": not problems, **facts, "problems": problems}, ensure_ascii=False, indent=1))
        return 1 if problems else 0
    for name, fact in facts.items():
        label = str(WORDING[f"label {name}"])
        print(f"{label}{' ' * (12 - columns(label))}{fact}")
    print("", *(problems or [WORDING["well"]()]), sep="\n")
    return 1 if problems else 0


def _find_facts(problems: list[str]) -> Iterator[tuple[str, str]]:
    """Yield (name, fact) about this computer; append a sentence with the remedy to `problems` for each problem."""
    yield "labkit", f"{__version__}, {Path(__file__).parents[1]}"
    version, system = platform.python_version(), f"{platform.system()} {platform.machine()}"
    yield "python", f"{version} ({system}), {sys.executable}"
    if sys.version_info[:2] < OLDEST:
        problems.append(WORDING["old-python"](version=version))
    try:
        import torch
    except Exception as error:  # torch or a system library may be missing
        problems.append(WORDING["no-torch"](said=" ".join(str(error).split())[:300]))
        return
    build = torch.version.cuda and f"CUDA {torch.version.cuda}" or torch.version.hip or "CPU"
    yield "torch", f"{torch.__version__} ({build})"
    real = [torch.cuda.get_device_name(gpu) for gpu in range(torch.cuda.device_count())]
    yield "gpus", ", ".join(real) or WORDING["simulated"]()
    missing = [name for name, extra in EXTRA_OF.items() if extra == "lab" and not find_spec(name)]
    if missing:
        problems.append(WORDING["missing"](listed=", ".join(missing)))
        return
    from jupyter_client.kernelspec import KernelSpecManager

    yield "kernel", KernelSpecManager().get_kernel_spec("python3").argv[0]
    try:
        from labkit_course import progress
        from labkit_course.notebooks import copies

        folder = copies.default_folder().absolute()
        begun = sum(copy.is_there() and copy.is_touched() for copy in copies.copies(folder))
        yield "copy", WORDING["begun"](folder=folder, begun=begun)
        yield (
            "progress",
            WORDING["answered"](
                file=progress.file() or "LABKIT_PROGRESS=off", count=len(progress.answered_exercises())
            ),
        )
    except ModuleNotFoundError:
        return  # installed without the course
    except (OSError, RuntimeError) as error:  # the home folder is missing or unreadable
        problems.append(WORDING["no-home"](said=error))
