"""A Python that has imported torch: ``[*python(), "-m", "labkit", …]`` is a command like ``[sys.executable, …]``.

Importing torch takes 1.3 to 2.7 seconds of a core, and the tests start hundreds of programs that do. Here one process
(``server.py``) imports it once; each command (``client.py``) has it fork, and the fork becomes the program: a process
of its own, with the command's files, folder, environment, signals and exit code. It imports labkit itself, anew.

What asks how Python starts (what is imported, in which order, how long it takes) is not for it. Neither is a command
with Python's own options, or with variables that Python or torch read as they start: it runs in an ordinary Python.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from .client import SET_RIGHT

_HERE = Path(__file__).parent


# What kernels import besides. (matplotlib asks for its backend as it is imported; kernels have this one.)
KERNEL = ("ipykernel.kernelapp", "ipywidgets", "matplotlib.figure", "matplotlib.backends.backend_agg")
BACKEND = {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}


def kernels(folder: Path) -> str:
    """A ``JUPYTER_PATH`` by which kernels are forks, and what is on it now; ``folder`` is one to write into."""
    words = [*python(*KERNEL), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (folder / "kernels" / "python3").mkdir(parents=True)
    spec = {
        "argv": words,
        "display_name": "Python 3 (ipykernel)",
        "language": "python",
        "metadata": {"debugger": True},
    }
    (folder / "kernels" / "python3" / "kernel.json").write_text(json.dumps(spec), "utf-8")
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("JUPYTER_PATH")]))


@cache
def python(*modules: str) -> list[str]:
    """The words that stand for ``sys.executable``, of a Python that has imported torch and ``modules``.

    The process with torch is started when they are first asked for.
    """
    if not hasattr(os, "fork"):
        return [sys.executable]
    folder = tempfile.TemporaryDirectory(prefix="labkit-warm-")
    address = os.path.join(folder.name, "socket")
    environment = {name: value for name, value in os.environ.items() if name not in SET_RIGHT}
    environment |= BACKEND if modules else {}
    server = subprocess.Popen(
        [sys.executable, str(_HERE / "server.py"), address, *modules],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True,
    )  # fmt: skip
    assert server.stdin is not None
    assert server.stdout is not None
    owner = os.getpid()

    def end() -> None:
        if os.getpid() == owner:  # and not a fork of it
            server.stdin.close()  # type: ignore[union-attr]
            server.wait()
            folder.cleanup()

    atexit.register(end)
    if server.stdout.readline() != b"listens\n":
        raise RuntimeError("the process that imports torch for others did not start")
    server.stdout.close()
    return [sys.executable, "-I", "-S", str(_HERE / "client.py"), address]
