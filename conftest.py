"""How pytest runs all this: kernels for the notebooks that nbval runs, and files of tests side by side."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from labkit_course.notebooks.kernel import start
from tools import warm


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # workers inherit it
        warm.share()
    # nbval starts a kernel for each notebook, in the constructor of the object that runs it.
    try:
        from nbval.kernel import RunningKernel  # type: ignore[import-untyped]
    except ImportError:
        return
    begin = RunningKernel.__init__

    def begin_again(self: Any, *arguments: Any, **options: Any) -> None:
        start(lambda: begin(self, *arguments, **options))

    RunningKernel.__init__ = begin_again


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """How long each notebook took: a lesson is meant to run in 20 seconds on two cores."""
    seconds: dict[str, float] = {}
    for kind in ("passed", "failed"):
        for report in terminalreporter.stats.get(kind, []):
            name = report.nodeid.partition("::")[0]
            if name.endswith(".ipynb"):
                seconds[name] = seconds.get(name, 0.0) + report.duration
    if seconds:
        longest = max(seconds, key=lambda name: seconds[name])
        terminalreporter.write_line(
            f"notebooks: {len(seconds)} run, the longest {longest} in {seconds[longest]:.1f} s"
        )
        for name, took in seconds.items():
            if took > 20:
                terminalreporter.write_line(f"over 20 s: {name} took {took:.1f} s", yellow=True)


# The tests of a file stay in one worker. Those with a browser count as one file, so that one browser and one server
# serve them.
TOGETHER = "tests/browser/"
# What takes longest begins first, so that the workers end at about the same time.
FIRST = (
    TOGETHER, "tests/notebooks/", "tests/classroom/test_marks.py", "tests/classroom/test_attacks.py",
    "tests/course/test_hung.py", "tests/course/test_answers.py", "tests/diagnosis/test_planted_faults.py",
    "tests/classroom/test_without_work.py", "tests/classroom/test_marking.py", "tests/cli/test_cli.py",
    "tests/classroom/test_nbgrader.py", "tests/ranks/test_plan.py",
    "tests/ranks/test_scripts.py", "tests/machine/test_children.py", "tests/ranks/test_diagnose_ranks.py",
    "tests/ranks/test_pytest_plugin.py", "tests/course/test_repairs.py", "tests/classroom/test_banned.py",
    "tests/ranks/test_processes.py", "tests/test_package.py", "notebooks/",
)  # fmt: skip


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """How many run side by side: one more than there are cores, for they often wait for kernels and for browsers."""
    return min((os.cpu_count() or 1) + 1, 8)


@pytest.hookimpl(optionalhook=True)  # (without pytest-xdist there is nobody to ask)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadFileScheduling

    class Together(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return TOGETHER if nodeid.startswith(TOGETHER) else super()._split_scope(nodeid)

        def remove_node(self, node: Any) -> str | None:
            """Count the test that ended a worker as run: xdist would give it to another, and to the next."""
            work = self.assigned_work[node].values()
            if left := [(tests, name) for tests in work for name, done in tests.items() if not done]:
                tests, name = left[0]
                tests[name] = True
                super().remove_node(node)
                return name
            return super().remove_node(node)

    config.option.loadscopereorder = False  # the order is that of pytest_collection_modifyitems
    return Together(config, log)


def sample(items: list[pytest.Item]) -> None:
    """Mark as ``more`` the cases that tests/sampled.txt leaves to ``make test-more``."""
    lines = (Path(__file__).parent / "tests" / "sampled.txt").read_text("utf-8").splitlines()
    kept = {name: int(count) for count, name in (line.split() for line in lines if line[0] != "#")}
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        name = item.nodeid.partition("[")[0]
        if name in kept and item.get_closest_marker("more") is None:
            cases.setdefault(name, []).append(item)
    for name, found in cases.items():
        chosen = {at * len(found) // kept[name] for at in range(kept[name])}
        for at, item in enumerate(found):
            if at not in chosen:
                item.add_marker(pytest.mark.more)


@pytest.hookimpl(tryfirst=True)  # before pytest looks at marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("notebooks/"):  # by nbval; tests/notebooks runs them all in one kernel
            item.add_marker(pytest.mark.more)
    sample(items)
    if hasattr(config, "workerinput"):  # one of several workers
        items.sort(
            key=lambda item: next(
                (at for at, name in enumerate(FIRST) if item.nodeid.startswith(name)), len(FIRST)
            )
        )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[Any]:
    """Looks for garbage only when all tests are collected: before, nothing is, and looking takes 3 s of each worker."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leaves 10,000 collected tests out of every garbage collection: walking through them takes 0.4 s each time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)  # when the file's own fixtures are gone
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Leaves out what the tests of a file have imported, too: labkit collects in each check-up of a model."""
    if nextitem is not None and nextitem.path != item.path:
        pytest_collection_finish(item.session)


def pytest_sessionstart(session: pytest.Session) -> None:
    # What a shell starts in the background has SIGINT ignored, and so would every process that a test starts and
    # interrupts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Kernels write what they ran into a database in the home folder, and wait for each other: one for each worker.
    if hasattr(session.config, "workerinput"):
        os.environ["IPYTHONDIR"] = tempfile.mkdtemp(prefix="labkit-ipython-")


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput"):
        shutil.rmtree(os.environ["IPYTHONDIR"], ignore_errors=True)
