"""Run an unmodified Python script on simulated GPUs.

The command describes the machine in the environment and replaces itself by the Python interpreter. Child processes of
the script see the machine too, whatever starts them.
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
from .usage import (
    UsageError,
    add_gpus,
    add_memory,
    add_options,
    bad_usage,
    check_script_exists,
    check_writable,
)
from .wording import Wording

# Python's options. Refuse those that ignore the environment, which describes the GPUs.
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
    # A program other than Python starts without the interpreter; its child processes see the machine.
    command = [*command, *found] if found[0] in ("-m", "-c", "--") else found
    check_writable("--timeline", options.timeline)
    if options.times is not None:
        if options.timeline is None:
            raise UsageError(
                en="--times needs a timeline: add --timeline FILE.html",
                zh="--times 用于时间线：请加上 --timeline FILE.html",
            )
        with bad_usage(ValueError):
            accelerator(options.times)
    timeline = options.timeline and str(options.timeline.resolve())  # the script may change the folder
    request = ending.EndingRequest(timeline, options.summary, options.times)
    environment = children.environment_with_machine(os.environ, _machine(options).text())
    environment = {**environment, children.RUN: f"{ending.__name__}:begin {request.text()}"}
    if options.summary or timeline:
        name = Path(found[found[0] == "--"]).name
        environment[children.WITHOUT_TORCH] = WORDING["without-torch"](program=name)
    sys.stdout.flush()
    if options.alone and sys.platform != "win32":
        os.execve(command[0], command, environment)
    code = subprocess.call(command, env=environment)
    return code if code >= 0 else 128 - code  # ended by a signal: the exit code of a shell


def _flags(options: argparse.Namespace) -> list[str]:
    """Return the Python options on the command line, after the options of the current interpreter."""
    flags = options.flags or []
    if set(flags) & set(_REFUSED) or sys.flags.ignore_environment or sys.flags.no_site:
        raise UsageError(
            en="-E, -I and -S make Python ignore its environment, which describes the simulated GPUs: leave them out",
            zh="用了 -E、-I 或 -S，Python 就不读环境变量，也就看不到模拟的 GPU：请去掉它们",
        )
    values = {f"-{option}": vars(options)[option] or [] for option in _WITH_VALUE}
    own: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # multiprocessing's too
    given = [part for option, texts in values.items() for text in texts for part in (option, text)]
    return [*own, *(f"-{flag}" for flag in flags), *given]


def _program(options: argparse.Namespace) -> list[str]:
    """Return Python's arguments for the program (a script, ``-m`` or ``-c``), or another program with arguments."""
    if options.module is not None:
        if not options.module:
            raise UsageError(
                en="-m needs the name of a module: labkit run --gpus 2 -m pytest FILE",
                zh="-m 后面要写模块名：labkit run --gpus 2 -m pytest FILE",
            )
        return ["-m", *options.module, *options.program]  # argparse splits the arguments at --
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
    if found is not None:  # a program in PATH, such as accelerate
        with open(found, "rb") as file:
            first, second = file.readline(1024), file.readline(1024)
        program[0] = found
        # pip writes a long path of Python into the second line.
        if not first.startswith(b"#!") or b"python" not in first and not second.startswith(b"'''exec' "):
            return program
    elif program[0] != "-":
        check_script_exists(program[0])
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
