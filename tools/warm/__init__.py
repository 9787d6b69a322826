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
import shutil
import subprocess
import sys
import tempfile
import zlib
from functools import cache, partial
from pathlib import Path

from .client import SET_RIGHT

_HERE = Path(__file__).parent
_started: list[subprocess.Popen[bytes]] = []  # they outlive this process where another one owns them


SHARED = "WARM_PYTHONS"  # who owns them, and the folder of their sockets
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

    The process with torch is started when somebody first asks for them, and ends with who ``shared`` the folder of its
    socket with others, or with this process.
    """
    if not hasattr(os, "fork"):
        return [sys.executable]
    import fcntl  # Windows has none

    if SHARED not in os.environ:
        share()
    owner, _, folder = os.environ[SHARED].partition(" ")
    address = os.path.join(folder, f"{zlib.crc32(repr(modules).encode()):x}")
    with open(f"{address}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(address):
            environment = {name: value for name, value in os.environ.items() if name not in SET_RIGHT}
            environment |= BACKEND if modules else {}
            server = subprocess.Popen(
                [sys.executable, str(_HERE / "server.py"), address, owner, *modules],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment, start_new_session=True,
            )  # fmt: skip
            assert server.stdout is not None
            if server.stdout.readline() != b"listens\n":
                raise RuntimeError("the process that imports torch for others did not start")
            server.stdout.close()
            _started.append(server)
    return [sys.executable, "-I", "-S", str(_HERE / "client.py"), address]


def share() -> None:
    """Have what this process starts from now on ask the same processes with torch, which end with this one."""
    folder = tempfile.mkdtemp(prefix="labkit-warm-")
    os.environ[SHARED] = f"{os.getpid()} {folder}"
    atexit.register(partial(_remove_folder, os.getpid(), folder))


def _remove_folder(owner: int, folder: str) -> None:
    if os.getpid() == owner:  # and not a fork of it
        shutil.rmtree(folder, ignore_errors=True)
