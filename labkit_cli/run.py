"""Run a Python script on simulated GPUs, unmodified.

The script runs as ``python`` runs it, for it is python that runs it: this command says in the environment what machine
there is to see, and becomes the interpreter. Children of the script see the machine too, whatever starts them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from labkit.base.language import say
from labkit.cost.hardware import accelerator
from simgpu.children import environment as children

from . import ending
from .usage import UsageError, add_gpus, add_memory, add_options, bad_usage, checked_path, checked_script
from .wording import Wording

# Python's own options. Those that make it look away from its environment are refused: there it is told of the GPUs.
_FLAGS, _WITH_VALUE, _REFUSED = "bBdiOPqsuvx", "WX", "EIS"

WORDING = Wording(
    "run",
    order={"default": None},
    timeline={"type": Path},
    m={"dest": "module", "nargs": argparse.REMAINDER},
    c={"dest": "code", "nargs": argparse.REMAINDER},
    program={"nargs": argparse.REMAINDER},
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_gpus(parser, 1)
    add_memory(parser)
    add_options(parser, WORDING, "options")
    for flag in _FLAGS + _REFUSED:
        parser.add_argument(
            f"-{flag}", dest="flags", action="append_const", const=flag, help=argparse.SUPPRESS
        )
    for option in _WITH_VALUE:
        parser.add_argument(f"-{option}", dest=option, action="append", help=argparse.SUPPRESS)
    add_options(parser, WORDING, "program")


def run(options: argparse.Namespace) -> int:
    command, found = [sys.executable, *_flags(options)], _program(options)
    # Another program than Python is started as a shell starts it, and its children see the machine.
    command = [*command, *found] if found[0] in ("-m", "-c", "--") else found
    checked_path("--timeline", options.timeline)
    # The script may go to another folder.
    if options.times is not None:
        if options.timeline is None:
            raise UsageError(
                en="--times is for a timeline: add --timeline FILE.html",
                zh="--times 用于时间线：请加上 --timeline FILE.html",
            )
        with bad_usage(ValueError):
            accelerator(options.times)
    timeline = options.timeline and str(options.timeline.resolve())
    wanted = ending.Wanted(timeline, options.summary, options.times)
    told = children.environment_with_machine(os.environ, _machine(options).text())
    environment = {**told, children.RUN: f"{ending.__name__}:begin {wanted.text()}"}
    sys.stdout.flush()
    if options.alone and sys.platform != "win32":
        os.execve(command[0], command, environment)
    code = subprocess.call(command, env=environment)
    return code if code >= 0 else 128 - code  # ended by a signal: as a shell says it


def _flags(options: argparse.Namespace) -> list[str]:
    """Python's own options: those that were given, and those that labkit itself was started with."""
    flags = options.flags or []
    if set(flags) & set(_REFUSED) or sys.flags.ignore_environment or sys.flags.no_site:
        raise UsageError(
            en="-E, -I and -S keep Python from reading its environment, by which it is told of the GPUs",
            zh="用了 -E、-I 或 -S，Python 就不读环境变量，也就看不到模拟的 GPU",
        )
    values = {f"-{option}": vars(options)[option] or [] for option in _WITH_VALUE}
    own: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # multiprocessing's too
    given = [part for option, texts in values.items() for text in texts for part in (option, text)]
    return [*own, *(f"-{flag}" for flag in flags), *given]


def _program(options: argparse.Namespace) -> list[str]:
    """Python's own arguments that name the program (a script, ``-m`` or ``-c``); or another program, with its own."""
    if options.module is not None:
        if not options.module:
            raise UsageError(
                en="-m needs the name of a module: labkit run --gpus 2 -m pytest FILE",
                zh="-m 后面要写模块名：labkit run --gpus 2 -m pytest FILE",
            )
        return ["-m", *options.module, *options.program]  # argparse splits it where a -- stands
    if options.code is not None:
        if not options.code:
            raise UsageError(
                en="-c needs a program: labkit run --gpus 2 -c 'import torch'",
                zh="-c 后面要写程序：labkit run --gpus 2 -c 'import torch'",
            )
        return ["-c", *options.code, *options.program]
    program: list[str] = options.program[options.program[:1] == ["--"] :]
    if not program:
        en, zh = "no script given: labkit run --gpus 8 train.py", "没有给出脚本：labkit run --gpus 8 train.py"
        raise UsageError(en=en, zh=zh)
    found = None if Path(program[0]).exists() else shutil.which(program[0])
    if found is not None:  # in PATH, as accelerate is
        with open(found, "rb") as file:
            first, second = file.readline(1024), file.readline(1024)
        program[0] = found
        # pip names a Python with a long path in the second line.
        if not first.startswith(b"#!") or b"python" not in first and not second.startswith(b"'''exec' "):
            return program
    elif program[0] != "-":
        checked_script(program[0])
    return ["--", *program]  # a script's name may begin with a hyphen


def _machine(options: argparse.Namespace) -> children.MachineDescription:
    order = options.order
    if order not in (None, "threads"):
        try:
            order = [int(part) for part in order.split(",")]
        except ValueError:
            raise UsageError(
                en=f'--order must be "threads" or GPU numbers such as 2,0,1, got {order!r}',
                zh=f'--order 必须是 "threads" 或 GPU 编号如 2,0,1，现在是 {order!r}',
            ) from None
    with bad_usage(TypeError, ValueError):
        machine = children.describe_requested_machine(options.gpus, options.memory, order, options.gpu_model)
    seen = len(machine.visible_gpus(os.environ))
    if seen < machine.gpus:
        listed = os.environ[children.VISIBLE]
        text = say(en=f"{seen} of {machine.gpus} GPUs visible", zh=f"{machine.gpus} 块 GPU 中可见 {seen} 块")
        print(f"CUDA_VISIBLE_DEVICES={listed}: {text}", file=sys.stderr)
    return machine
