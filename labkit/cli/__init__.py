"""The command line: ``labkit run``, ``sweep``, ``diagnose``, ``lab``, ``doctor``.

Each command is a module of this folder with ``add_arguments(parser)`` and ``run(options) -> exit code``.
Bad usage is one line on stderr and exit code 2, before anything is written or run.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

from .. import __version__
from .usage import Parser, UsageError

# Each command and what it is for. Only the module of the one that is asked for is imported.
COMMANDS = {
    "run": "run a script on simulated GPUs, unmodified",
    "sweep": "run a lesson for several numbers of GPUs and compare",
    "diagnose": "check whether your own model would survive DataParallel",
    "lab": "open a lesson in JupyterLab",
    "doctor": "say what this computer has and what would be simulated",
}


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    parser = Parser(
        prog="labkit", description="Learn, debug and teach multi-GPU data parallelism on any machine."
    )
    parser.add_argument("--version", action="version", version=f"labkit {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    try:
        for name, purpose in COMMANDS.items():
            command = commands.add_parser(name, help=purpose)
            if argv[:1] == [name]:
                found = import_module(f"{__name__}.{name}")
                command.description = (found.__doc__ or "").partition("\n")[0]
                found.add_arguments(command)
                command.set_defaults(run=found.run)
        options = parser.parse_args(argv)
        code: int = options.run(options)
        sys.stdout.flush()
        return code
    except UsageError as error:
        print(f"labkit: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever reads the output has gone, as ``| head`` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
