"""Check whether your own model works under DataParallel, or a torchrun script on several ranks.

FACTORY is ``module:function`` or ``file.py:function``. The function takes no arguments and returns
``model, inputs`` or ``model, inputs, loss``: inputs is a tensor, a tuple of inputs, or a dict of keyword inputs.
With ``--ranks 4`` before it, SCRIPT is a script for torchrun, followed by its arguments. It runs once, and its first
steps run twice more: on two nodes, and on one GPU.
Exit code 0: no fault. 1: faults. 2: bad usage. 3: nothing could be compared among the ranks.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.base.arguments import localize_argparse
from labkit.base.language import using

from .usage import (
    MODULE,
    Parser,
    UsageError,
    add_gpus,
    add_language,
    add_options,
    announce_loading,
    at_least,
    bad_usage,
    split_program,
)
from .wording import Wording

if TYPE_CHECKING:
    from labkit_diagnose import Diagnosis


WORDING = Wording(
    "diagnose",
    subject={"nargs": argparse.PARSER},
    ranks={"type": at_least(2)},
    m=MODULE,
    fail_on={"choices": ("error", "warning"), "default": "warning"},
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, WORDING, "subject")
    _add_options(parser)


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_options(parser, WORDING, "ranks")
    add_gpus(parser, 2)
    add_options(parser, WORDING, "options")


def run(options: argparse.Namespace) -> int:
    if options.ranks is not None:
        return _run_on_ranks(options)
    factory, *rest = options.subject
    # Options may follow FACTORY.
    options.lang = None
    with localize_argparse():
        more = Parser(prog="labkit diagnose")
        _add_options(more)
        add_language(more)
        options = more.parse_args(rest, options)
    with nullcontext() if options.lang is None else using(options.lang):
        return _run_on_a_model(options, factory)


def _run_on_a_model(options: argparse.Namespace, factory: str) -> int:
    if options.ranks is not None:
        raise UsageError(
            en=f"--ranks must precede the script: labkit diagnose --ranks {options.ranks} {factory}",
            zh=f"--ranks 要写在脚本前面：labkit diagnose --ranks {options.ranks} {factory}",
        )
    name = _split_factory(factory)[0]
    if name.endswith(".py") and not Path(name).is_file():
        raise UsageError(en=f"there is no file {name}", zh=f"没有文件 {name}")
    announce_loading()
    from labkit_diagnose import diagnose
    from simgpu import simulate
    from simgpu.tracebacks import strip_labkit_frames

    # Start the machine before importing the factory, whose module may call .cuda().
    # Keep standard output for the result: send the factory's prints to standard error.
    with simulate(options.gpus, memory="16 TiB"), redirect_stdout(sys.stderr):
        try:
            model, inputs, kwargs, loss = _call_factory(factory, _load_factory(factory))
        except UsageError:
            raise
        except Exception as error:
            strip_labkit_frames(error)
            traceback.print_exception(error)
            raise UsageError(
                en=f"{factory} fails: {type(error).__name__}: {error}",
                zh=f"{factory} 自身出错：{type(error).__name__}：{error}",
            ) from error
        try:
            found = diagnose(
                model, *inputs, kwargs=kwargs, gpus=options.gpus, loss=loss, memory=options.memory
            )
        except (TypeError, ValueError) as error:
            raise UsageError(en=f"{factory}: {error}", zh=f"{factory}：{error}") from error
    return _print_result(found, options)


def _run_on_ranks(options: argparse.Namespace) -> int:
    script, arguments, module = split_program(options.subject, options.module)
    announce_loading()
    from labkit_ranks.diagnosis import diagnose_ranks

    # Keep standard output for the result: send the script's prints to standard error.
    with redirect_stdout(sys.stderr), bad_usage(FileNotFoundError, TypeError, ValueError):
        found = diagnose_ranks(
            script, options.ranks, arguments, module=module, memory=options.memory or "16 TiB"
        )
    return _print_result(found, options)


def _print_result(found: Diagnosis, options: argparse.Namespace) -> int:
    print(found.to_json() if options.json else found)
    return exit_code(found, options.fail_on)


def exit_code(found: Diagnosis, fail_on: str) -> int:
    """Return 3 if nothing could be compared among ranks, 1 for faults of this severity or worse, 0 otherwise."""
    if not getattr(found, "judged", True):
        return 3
    return int(not found.ok if fail_on == "warning" else found.count("error") > 0)


def _split_factory(factory: str) -> tuple[str, str]:
    """Return the module or file of a factory, and the function."""
    name, _, function = factory.rpartition(":")
    if not name or not function:
        raise UsageError(
            en=f"FACTORY must be module:function or file.py:function, got {factory!r}",
            zh=f"FACTORY 要写成 module:function 或 file.py:function，现在是 {factory!r}",
        )
    return name, function


def _load_factory(factory: str) -> Callable[[], Any]:
    """Return the function named ``module:function``, with the current folder on the path as in ``python -m``."""
    name, function = _split_factory(factory)
    if name.endswith(".py"):
        path = Path(name)
        sys.path.insert(0, str(path.resolve().parent))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None  # a .py file has a loader
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
    else:
        sys.path.insert(0, os.getcwd())
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name and name.startswith(error.name):
                raise UsageError(
                    en=f"no module {name!r}, neither in this folder nor installed",
                    zh=f"这里和已安装的包里都没有模块 {name!r}",
                ) from None
            raise
    make: Callable[[], Any] | None = getattr(module, function, None)
    if not callable(make):
        raise UsageError(en=f"{name} has no function {function!r}", zh=f"{name} 里没有函数 {function!r}")
    return make


def _call_factory(
    factory: str, make: Callable[[], Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any] | None, Any]:
    """Return the model, its inputs by position and by keyword, and the loss (or None)."""
    made = make()
    if not isinstance(made, tuple) or len(made) not in (2, 3):
        kind, length = type(made).__name__, len(made) if isinstance(made, tuple) else None
        of = ("", "") if length is None else (f" of {length}", f"，共 {length} 项")
        raise UsageError(
            en=f"{factory} must return (model, inputs) or (model, inputs, loss), but returned {kind}{of[0]}",
            zh=f"{factory} 必须返回 (model, inputs) 或 (model, inputs, loss)，现在返回的是 {kind}{of[1]}",
        )
    model, inputs, loss = (*made, None)[:3]
    if isinstance(inputs, dict):
        return model, (), inputs, loss
    return model, inputs if isinstance(inputs, tuple) else (inputs,), None, loss
