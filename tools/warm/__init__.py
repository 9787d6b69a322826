"""Start Python with torch imported: ``[*python(), "-m", "labkit", …]`` is a command like ``[sys.executable, …]``.

Importing torch takes 1.3 to 2.7 seconds of a core, and the tests start hundreds of such programs. Here a fork server
(``server.py``) imports torch once. Each command (``client.py``) lets the server fork, and the fork becomes the program,
with the command's files, folder, environment, signals and exit code. Each fork imports labkit itself.

Do not use this to test how Python starts (imported modules, their order, start-up time). A command with Python's own
options, or with variables that Python or torch read at the start, runs in an ordinary Python.
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
_started: list[
    subprocess.Popen[bytes]
] = []  # servers, which outlive this process if started for another owner


SHARED = "WARM_PYTHONS"  # variable with the servers' owner, and the folder of the sockets
# Further imports of kernels. matplotlib reads its backend when imported, so kernels need theirs set.
KERNEL = ("ipykernel.kernelapp", "ipywidgets", "matplotlib.figure", "matplotlib.backends.backend_agg")
BACKEND = {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}


def kernels(folder: Path) -> str:
    """Write a kernel specification into ``folder`` by which kernels are forks; return JUPYTER_PATH with ``folder``."""
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
    """Return the command of a Python with torch and ``modules`` imported, in place of ``sys.executable``.

    The first call starts the server. It ends with the process that called :func:`share`, by default this one.
    """
    if not hasattr(os, "fork"):
        return [sys.executable]
    import fcntl  # missing on Windows

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
    """Share servers with all child processes from now on; the servers end with this process."""
    folder = tempfile.mkdtemp(prefix="labkit-warm-")
    os.environ[SHARED] = f"{os.getpid()} {folder}"
    atexit.register(partial(_remove_folder, os.getpid(), folder))


def _remove_folder(owner: int, folder: str) -> None:
    if os.getpid() == owner:  # not in a fork
        shutil.rmtree(folder, ignore_errors=True)
