"""Run a test on ranks that are processes: pytest in each, started by ``labkit torchrun --processes``.

The same code runs in a pytest that is itself a rank, also on real GPUs: ``torchrun --nproc-per-node 4 -m pytest``.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from time import monotonic
from typing import Any

import pytest
import torch
import torch.distributed as dist
from _pytest._code.code import ExceptionChainRepr

from labkit import _ENTRIES
from labkit.base.language import say, wrong
from labkit.base.patches import Patch, Patches
from simgpu.children import environment as children

from ..calls.faults import format_ranks
from .item import CALLS_LOG, RanksMark, clean_traceback, failure_elements, failure_heading

REPORTS = "LABKIT_TEST_REPORTS"
# Seconds for processes to exit after their test.
_GRACE = 5.0


class InProcesses:
    """A test and its ranks, as processes."""

    def __init__(self, item: Any, wanted: RanksMark) -> None:
        self.item, self.wanted = item, wanted

    def setup(self) -> None:
        self.item._explicit_tearDown = None  # the processes set up the test

    def runtest(self) -> None:
        item, wanted = self.item, self.wanted
        with TemporaryDirectory(prefix="labkit") as folder:
            paths = [Path(folder, f"{rank}.jsonl") for rank in range(wanted.size)]
            environment = {**os.environ, REPORTS: folder, children.ENTER: " ".join(_ENTRIES)}
            code, printed = self._run(environment, paths)
            reports = {rank: _read_reports(item.config, path) for rank, path in enumerate(paths)}
        for rank, found in reports.items():
            for report in found[-1:]:  # the last report contains the sections of earlier ones
                for name, content in report.sections:
                    item.add_report_section("call", f"{name.removeprefix('Captured ')}, rank {rank}", content)
        failed = {rank: one for rank, found in reports.items() for one in found if one.failed}
        skipped = [one for found in reports.values() for one in found if one.skipped]
        if failed:
            item.repr_failure = lambda _: _representation(failed)
            raise wrong(AssertionError, en="ranks failed", zh="有 rank 失败")
        if skipped:
            why = skipped[0].longrepr
            pytest.skip(why[2].removeprefix("Skipped: ") if isinstance(why, tuple) else str(why))
        if code:
            item.repr_failure = lambda _: printed
            raise wrong(AssertionError, en="ranks failed", zh="有 rank 失败")

    def _run(self, environment: dict[str, str], paths: list[Path]) -> tuple[int, str]:
        """Start the ranks; return the exit code and the output.

        After reports of all ranks, or of a failure, the ranks get a few seconds to exit: a launcher would wait minutes
        for other nodes.
        """
        with TemporaryFile("w+", encoding="utf-8", errors="replace") as printed:
            process = subprocess.Popen(
                self._command(), env=environment, cwd=self.item.config.rootpath, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT,
            )  # fmt: skip
            since: float | None = None
            try:
                while since is None or monotonic() < since + _GRACE:
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(0.1)
                        break
                    if since is None:
                        told = [path.read_text("utf-8") if path.is_file() else "" for path in paths]
                        over = all('"when": "teardown"' in text for text in told)
                        if over or any('"outcome": "failed"' in text for text in told):
                            since = monotonic()
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                code = process.wait()
            printed.seek(0)
            return code, printed.read()

    def _command(self) -> list[str]:
        item, wanted, config = self.item, self.wanted, self.item.config
        each = wanted.size // wanted.nodes
        command = [sys.executable, "-m", "labkit", "torchrun", "--processes"]
        command += [f"--nproc-per-node={each}", f"--nnodes={wanted.nodes}"]
        command += [] if wanted.memory is None else ["--memory", str(wanted.memory)]
        command += [] if wanted.gpu_model is None else ["--gpu-model", wanted.gpu_model]
        command += ["-m", "pytest", "-q", "--no-header", "--rootdir", str(config.rootpath)]
        command += ["-p", "no:cacheprovider", *(["-c", str(config.inipath)] if config.inipath else [])]
        command += ["-n0"] if config.pluginmanager.hasplugin("xdist") else []
        command += [part for name in config.option.plugins or () for part in ("-p", name)]
        return [*command, "::".join([str(item.path), *item.nodeid.split("::")[1:]])]


class Reporter:
    """A plugin for a rank's pytest that writes the test's reports to a file."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._path = Path(os.environ[REPORTS], f"{os.environ['RANK']}.jsonl")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        told = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        with self._path.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(told) + "\n")


def _read_reports(config: pytest.Config, path: Path) -> list[Any]:
    lines = path.read_text("utf-8").splitlines() if path.is_file() else []
    made = config.hook.pytest_report_from_serializable
    return [made(config=config, data=json.loads(line)) for line in lines]


def _representation(failed: dict[int, Any]) -> Any:
    """Return the processes' failures as pytest shows them, equal failures once."""
    groups: dict[str, list[int]] = {}
    for rank, report in failed.items():
        groups.setdefault(report.longreprtext.replace(f"cuda:{rank}", "cuda"), []).append(rank)
    chain: list[Any] = []
    for ranks in reversed(groups.values()):
        shown = failed[ranks[0]].longrepr
        if not hasattr(shown, "reprtraceback"):
            return str(shown)
        chain += [failure_heading(format_ranks(ranks)), *failure_elements(shown)]
    return ExceptionChainRepr(chain)


def prepare_as_rank(item: Any, size: int) -> None:
    """Let this process, which is a rank, run ``item``."""
    here = int(os.environ["WORLD_SIZE"])

    def setup() -> None:
        if here != size:
            en = f"wants {size} ranks, and there are {here}"
            pytest.skip(say(en=en, zh=f"需要 {size} 个 rank，现在有 {here} 个"))
        _begin_rank(item.config)
        type(item).setup(item)

    def represent(caught: Any) -> Any:
        clean_traceback(caught.value)
        return type(item).repr_failure(item, pytest.ExceptionInfo.from_exception(caught.value))

    item.setup, item.repr_failure = setup, represent


def _begin_rank(config: pytest.Config) -> None:
    """Choose the GPU and make a process group, which a test's own ``init_process_group`` replaces."""
    logging.getLogger(CALLS_LOG).disabled = True
    if dist.is_initialized():
        return
    own, gpu = dist.init_process_group, None
    if torch.cuda.is_available():
        gpu = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(gpu)
    own("gloo" if gpu is None else "nccl", device_id=gpu)
    made = [dist.group.WORLD]

    def init_process_group(*args: Any, **kwargs: Any) -> None:
        if made and made.pop() is dist.group.WORLD:
            dist.destroy_process_group()
        own(*args, **kwargs)

    patches = Patches(lambda: [Patch(dist, "init_process_group", init_process_group)])
    patches.put_in()

    def end() -> None:
        patches.take_out()
        if dist.is_initialized():
            dist.destroy_process_group()

    config.add_cleanup(end)
