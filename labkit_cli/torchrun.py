"""Run an unmodified torch.distributed script on simulated GPUs, with torchrun's arguments.

Ranks are threads of one process that take turns, or with ``--processes`` real
processes under PyTorch's elastic launcher. Arguments without effect are reported.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.base.language import say, series
from labkit.base.numbers import MOST_GPUS, plural
from labkit.base.units import bytes_text, duration, localized_bytes
from labkit.cost.hardware import accelerator
from simgpu.children import environment as children

from .ending import MOST_EVENTS, write, write_timeline
from .usage import (
    UsageError,
    add_memory,
    add_options,
    announce_loading,
    at_least,
    bad_usage,
    check_script_exists,
    check_writable,
)
from .wording import Wording

if TYPE_CHECKING:
    from labkit_ranks.rank.run_record import RunRecord

# Arguments of torchrun without effect on ranks in one process.
NOTHING_TO_DO = (
    "rdzv_backend rdzv_conf monitor_interval start_method event_log_handler local_addr numa_binding signals_to_handle "
    "shutdown_timeout"
).split()
# Arguments of torchrun that need real processes.
PROCESSES_ONLY = "no_python logs_specs virtual_local_rank".split()
# Our own arguments that record ranks in one process.
RECORDS = ("summary", "timeline", "times", "trace")

_PATH = {"type": Path}
WORDING = Wording("torchrun", gpus={"type": at_least(1)}, timeline=_PATH, trace=_PATH)
# `labkit check` gives each GPU so many bytes to avoid an out-of-memory error; the summary leaves them out.
MOST = 16 << 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, WORDING, "gpus")
    add_memory(parser)
    add_options(parser, WORDING, "options")
    for action in _torchrun_parser()._actions:
        if action.dest != "help":
            # Without defaults, to know which arguments the user typed. Their help is PyTorch's.
            action.default = action.help = argparse.SUPPRESS
            parser._add_action(action)


def _torchrun_parser() -> argparse.ArgumentParser:
    """Return the parser of PyTorch's own torchrun, without required arguments."""
    announce_loading()
    from torch.distributed.run import get_args_parser

    parser = get_args_parser()
    for action in parser._actions:
        action.required = False
    return parser


def run(options: argparse.Namespace) -> int:
    defaults = vars(_torchrun_parser().parse_args([]))
    given = defaults.keys() & vars(options).keys()
    vars(options).update({name: value for name, value in defaults.items() if name not in given})
    if not options.training_script:
        raise UsageError(
            en="no script given: labkit torchrun --nproc-per-node 8 train.py",
            zh="没有给出脚本：labkit torchrun --nproc-per-node 8 train.py",
        )
    if not (options.module or options.no_python):
        check_script_exists(options.training_script)
    machine = _machine(options)
    for name in ("timeline", "trace"):
        check_writable(_option_name(name), getattr(options, name))
    if options.processes:
        for name in RECORDS:
            if getattr(options, name):
                raise UsageError(
                    en=f"--{name} needs ranks that share this process: leave --processes out",
                    zh=f"--{name} 要求所有 rank 都在本进程里：请去掉 --processes",
                )
        return _run_in_processes(options, given, machine)
    _check(options, given, machine)
    return _run_in_threads(options, machine)


def _machine(options: argparse.Namespace) -> children.MachineDescription:
    """Return the GPUs of each node; turn ``options.nproc_per_node`` into a number."""
    wanted = options.nproc_per_node
    try:
        if wanted in ("gpu", "auto"):
            gpus = options.gpus or 8
        elif wanted == "cpu":
            gpus = options.gpus or os.cpu_count() or 1
        else:
            # With CUDA_VISIBLE_DEVICES=2,3 a node needs four GPUs.
            listed = (part.strip() for part in os.environ.get(children.VISIBLE, "").split(","))
            named = (int(part) + 1 for part in listed if part.isdecimal() and int(part) < MOST_GPUS)
            gpus = options.gpus or max(int(wanted), 1, *named)
    except ValueError:
        raise UsageError(
            en=f'--nproc-per-node must be a number, "gpu", "auto" or "cpu", got {wanted!r}',
            zh=f'--nproc-per-node 必须是一个数，或 "gpu"、"auto"、"cpu"，现在是 {wanted!r}',
        ) from None
    with bad_usage(TypeError, ValueError):
        machine = children.describe_requested_machine(gpus, options.memory, None, options.gpu_model)
    seen = len(machine.visible_gpus(os.environ))
    if wanted in ("gpu", "auto"):
        options.nproc_per_node = str(seen)
    elif wanted == "cpu":
        options.nproc_per_node = str(os.cpu_count() or 1)
    return machine


def _check(options: argparse.Namespace, given: set[str], machine: children.MachineDescription) -> None:
    """Raise UsageError for arguments that need processes; report arguments without effect."""
    for name in PROCESSES_ONLY:
        if getattr(options, name):
            raise UsageError(
                en=f"{_option_name(name)} needs a process for each rank: add --processes",
                zh=f"{_option_name(name)} 要求每个 rank 是单独的进程：请加上 --processes",
            )
    try:
        options.nnodes = int(str(options.nnodes).rpartition(":")[2])
        each = int(options.nproc_per_node)
        if min(options.nnodes, each) < 1 or options.max_restarts < 0:
            raise ValueError
    except ValueError:
        raise UsageError(
            en="--nnodes and --nproc-per-node must be at least 1, --max-restarts at least 0",
            zh="--nnodes 和 --nproc-per-node 至少是 1，--max-restarts 至少是 0",
        ) from None
    seen = len(machine.visible_gpus(os.environ))
    if each > seen:
        raise UsageError(
            en=f"{each} ranks on a node of {plural(seen, 'GPU')}: each rank needs its own GPU",
            zh=f"一个节点 {seen} 块 GPU，却有 {each} 个 rank：每个 rank 要有自己的 GPU",
        )
    if options.node_rank:
        raise UsageError(
            en=f"--node-rank {options.node_rank}: this command runs all {options.nnodes} nodes; leave --node-rank "
            "out (with --processes you can start each node by itself)",
            zh=f"--node-rank {options.node_rank}：这里一条命令就运行全部 {options.nnodes} 个节点，请去掉它"
            "（加上 --processes 可以逐个启动节点）",
        )
    if idle := [_option_name(name) for name in NOTHING_TO_DO if name in given]:
        WORDING.tell("nothing-to-do", file=sys.stderr, listed=series(idle))


def _option_name(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _run_in_processes(
    options: argparse.Namespace, given: set[str], machine: children.MachineDescription
) -> int:
    """Run the ranks as processes, under PyTorch's elastic launcher."""
    if not hasattr(os, "fork"):
        raise UsageError(
            en="--processes needs os.fork, which this system lacks: leave --processes out",
            zh="--processes 需要 fork，本系统没有：请去掉它",
        )
    from labkit_ranks.torchrun.in_processes import run as run_processes

    faults = list[str]()
    return _print_lessons(run_processes(options, given, machine, faults), faults)


def _run_in_threads(options: argparse.Namespace, machine: children.MachineDescription) -> int:
    """Run the ranks as threads of this process."""
    from labkit_ranks.torchrun.in_threads import launch
    from labkit_ranks.torchrun.script import RankProgram

    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)
    program = RankProgram(options.training_script, options.training_script_args, options.module)
    kept = _make_recorder(options)
    with ExitStack() as stack:
        if options.times is not None:
            from labkit_ranks.planning.timing import run_by_times

            with bad_usage(ValueError):
                gpu = accelerator(options.times)
            program.runs = stack.enter_context(run_by_times(gpu, begins=0.0))(program.runs)
        if kept is None:
            code = launch(program, options, machine)
        else:
            kept.open()
            try:
                code = launch(
                    program, options, machine, kept.clear, lambda world: kept.note_ranks(world.ranks)
                )
            finally:
                kept.close()
            _report(options, kept)
    faults = [error.report.fault for error in program.deferred_errors if hasattr(error, "report")]
    return _print_lessons(code, faults)


def _print_lessons(code: int, faults: Sequence[str]) -> int:
    """Print the lessons about the faults that ended the ranks, and return ``code``."""
    if not faults:  # avoid the imports below
        return code
    from labkit_diagnose.result import lesson_line
    from labkit_ranks.diagnosis.kinds import topic_of

    for topic in dict.fromkeys(map(topic_of, faults)):
        print(lesson_line(topic.lesson, topic.heading()), file=sys.stderr)
    return code


def _make_recorder(options: argparse.Namespace) -> RunRecord | None:
    """Return a recorder for the run, or None if no option needs one."""
    from labkit_ranks.rank.run_record import RunRecord

    needs_events = options.timeline or options.trace
    return RunRecord(MOST_EVENTS if needs_events else 0) if options.summary or needs_events else None


def _report(options: argparse.Namespace, kept: RunRecord) -> None:
    """Print the summary and write the timeline and trace of the last attempt, as requested."""
    if options.summary:
        print(summary(kept), file=sys.stderr)
    if options.timeline:
        title = Path(options.training_script).name
        write_timeline(options.timeline, kept.trace, title, kept.dropped_events, options.times)
    if options.trace:
        write(options.trace, kept.trace.to_chrome(), "--trace")


def summary(kept: RunRecord) -> str:
    """Return for each rank the peak memory of its GPU, the bytes in collectives, and the waiting time, as text."""
    nodes = len({part.node for part in kept.ranks})
    on = say(en=f" on {plural(nodes, 'node')}", zh=f"，{nodes} 个节点") if nodes > 1 else ""
    count = len(kept.ranks)
    lines = [say(en=f"labkit: {plural(count, 'rank')}{on}", zh=f"labkit：{count} 个 rank{on}")]
    for part in kept.ranks:
        total = kept.totals[part.rank]
        peak, whole = localized_bytes(total.peak), localized_bytes(part.capacity)
        if part.capacity < MOST:
            peak = say(en=f"{peak} of {whole}", zh=f"{peak} / {whole}")
        where = say(en=f" of node {part.node}", zh=f"（节点 {part.node}）") if nodes > 1 else ""
        sent, waited, calls = bytes_text(total.nbytes), duration(total.waited), total.calls
        told = WORDING["rank"](
            rank=part.rank, gpu=part.gpu, where=where, peak=peak, calls=calls, sent=sent, waited=waited
        )
        lines.append(f"  {told}")
    return "\n".join(lines)
