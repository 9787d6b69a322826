"""The command line: ``labkit run``, ``labkit doctor``.

Bad usage is one line on stderr and exit code 2, before anything is written or run.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module

# Each command's module: it has ``add_arguments(parser)`` and ``run(options) -> exit code``.
COMMANDS = {
    "run": ("labkit.run_script", "run a script on simulated GPUs, unmodified"),
    "doctor": ("labkit.doctor", "say what this computer has and what would be simulated"),
}


class UsageError(Exception):
    """Something the user typed that cannot work; the message is the one line they see."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str):
        raise UsageError(f"{message} (see {self.prog} --help)")


def gpu_count(text: str) -> int:
    """A number of GPUs from the command line: at least 1."""
    try:
        count = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}") from None
    if count < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {count}")
    return count


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    parser = _Parser(
        prog="labkit", description="Learn, debug and teach multi-GPU data parallelism on any machine."
    )
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    try:
        for name, (module, help_text) in COMMANDS.items():
            command = commands.add_parser(name, help=help_text)
            if argv[:1] == [name]:  # only what is asked for is imported
                found = import_module(module)
                command.description = found.__doc__.splitlines()[0]
                found.add_arguments(command)
                command.set_defaults(run=found.run)
        options = parser.parse_args(argv)
        return options.run(options)
    except UsageError as error:
        print(f"labkit: {error}", file=sys.stderr)
        return 2
