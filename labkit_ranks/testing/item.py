"""A test of pytest on ranks: each rank runs it as a process of its own would, with fixtures of its own.

Fixtures of one test are made by each rank, for itself. Those that last longer (class, module, session) are made once,
before there are ranks, and so is what pytest has for the whole test: ``tmp_path``, ``capsys``, ``monkeypatch``.
"""

from __future__ import annotations

import copy
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import pytest
from _pytest._code.code import ExceptionChainRepr, ReprEntryNative, ReprTraceback

from labkit import turns
from simgpu.tracebacks import fold_frames, strip_labkit_frames

from ..calls.faults import format_ranks
from ..notebook.session import Session
from ..rank.own_modules import is_installed_code
from ..rank.rank import Rank
from ..threads.world import RanksFailed

# What catches a test's output; then ranks write without their numbers.
_CATCHING = frozenset("capsys capfd capsysbinary capfdbinary capteesys".split())
# pytest's own, of which a test has one, whatever runs it: a folder to meet in, what is undone in the order it was done.
_OF_THE_TEST = _CATCHING | frozenset(
    "tmp_path tmpdir caplog monkeypatch record_property record_testsuite_property record_xml_attribute".split()
)
# Where torch.distributed writes what each of its functions has raised (torch/distributed/c10d_logger.py).
CALLS_LOG = "c10d-NullHandler-default"


@dataclass(frozen=True)
class RanksMark:
    """What the mark asks for: ``labkit.ranks``'s arguments, and whether each rank is a real process."""

    size: int
    nodes: int = 1
    memory: Any = None
    gpu_model: str | None = None
    processes: bool = False


class OnRanks:
    """A test and the ranks that run it, as threads that take turns."""

    def __init__(self, item: Any, wanted: RanksMark) -> None:
        self.item, self.wanted = item, wanted
        # The test as each rank has it.
        self._own: dict[int, Any] = {}

    def setup(self) -> None:
        """Make what all ranks share."""
        item = self.item
        item._explicit_tearDown = None  # of a unittest.TestCase
        environ = patch.dict(os.environ)  # which a shared monkeypatch would set back to a rank's
        environ.start()
        item.addfinalizer(environ.stop)
        for name in item.fixturenames:
            found = item._fixtureinfo.name2fixturedefs.get(name)
            if found and (name in _OF_THE_TEST or found[-1].scope != "function"):
                item.funcargs[name] = item._request.getfixturevalue(name)

    def runtest(self) -> None:
        """Run it on ranks of its own, which are there until the test is torn down, for ``--pdb``."""
        wanted = self.wanted
        session = Session(wanted.size, nodes=wanted.nodes, memory=wanted.memory, gpu_model=wanted.gpu_model)
        self.item.addfinalizer(session.close)
        calls = logging.getLogger(CALLS_LOG)
        calls.disabled = True  # it would say each failure once more
        try:
            session.run_in_each(self._part, to_end=True)
        except RanksFailed as failed:
            told = group_errors(failed)
            self.item.repr_failure = lambda _: self._representation(told)
            raise told[-1][1] from None
        finally:
            calls.disabled = False

    def _part(self, rank: Rank) -> None:
        """Do in ``rank`` what pytest does with a test."""
        if _CATCHING & set(self.item.fixturenames):
            sys.stdout, sys.stderr = (getattr(one, "real", one) for one in (sys.stdout, sys.stderr))
        own = self._own[rank.number] = self._copy()
        stack = own.session._setupstate.stack
        stack[own] = finalizers, _ = [own.teardown], None
        error: BaseException | None = None
        try:
            own.setup()
            own.runtest()
            for caught in vars(own).get("_excinfo") or ():  # by a unittest.TestCase
                raise caught.value
        except BaseException as raised:
            error = raised
            if not isinstance(raised, turns.TaskEnded):
                rank.world.fail(rank, raised)  # now: what is torn down may want the others
        del stack[own]
        while finalizers:
            try:
                finalizers.pop()()
            except BaseException as raised:
                error = error or raised
        if error is not None:
            raise error

    def _copy(self) -> Any:
        """The test for one rank: with a class instance, parameters and fixtures of its own."""
        item = self.item
        own = copy.copy(item)
        for name in ("setup", "runtest", "repr_failure", "_instance", "_obj", "_excinfo"):
            vars(own).pop(name, None)
        own._fixtureinfo = replace(item._fixtureinfo, name2fixturedefs=_OwnFixtures(item))
        if hasattr(item, "callspec"):
            params = dict(item.callspec.params)
            for name, value in params.items():
                with suppress(Exception):  # it cannot be copied
                    params[name] = copy.deepcopy(value)
            own.callspec = replace(item.callspec, params=params)
        own._initrequest()
        own._request._fixture_defs.update(item._request._fixture_defs)
        return own

    def _representation(self, told: Sequence[tuple[list[int], BaseException]]) -> Any:
        """The failures as pytest shows them, those that are alike once; the first that failed comes last."""
        chain: list[Any] = []
        for ranks, error in told:
            if self.wanted.size > 1:
                chain.append(failure_heading(format_ranks(ranks)))
            shown = self._own.get(ranks[0], self.item)  # (it is not there where no rank has begun)
            chain += failure_elements(
                type(self.item).repr_failure(shown, pytest.ExceptionInfo.from_exception(error))
            )
        return ExceptionChainRepr(chain)


class _OwnFixtures(dict[str, Any]):
    """The definitions of a test's fixtures, those of one test copied: a definition keeps its value with itself."""

    def __init__(self, item: Any) -> None:
        super().__init__(
            {name: _own_definitions(found) for name, found in item._fixtureinfo.name2fixturedefs.items()}
        )
        self._item = item

    def get(self, name: str, default: Any = None) -> Any:
        if name not in self:  # asked for by request.getfixturevalue alone
            found = self._item.session._fixturemanager.getfixturedefs(name, self._item)
            self[name] = found and _own_definitions(found)
        return self[name]


def _own_definitions(definitions: Sequence[Any]) -> list[Any]:
    found = []
    for one in definitions:
        if one.scope == "function":
            one = copy.copy(one)
            one.cached_result, one._finalizers = None, []
        found.append(one)
    return found


def group_errors(failed: RanksFailed) -> list[tuple[list[int], BaseException]]:
    """The errors of ranks, those that are alike once; the first to be told comes last.

    What a test says of itself (skip, xfail) counts where nothing has failed.
    """
    errors = sorted(failed.errors.items(), key=lambda pair: (pair[0] != failed.rank, pair[0]))
    said = (pytest.skip.Exception, pytest.xfail.Exception)
    wrong = [pair for pair in errors if not isinstance(pair[1], said)]
    groups: dict[tuple[object, str], tuple[list[int], BaseException]] = {}
    for rank, error in wrong or errors:
        ranks, _ = groups.setdefault((type(error), str(error)), ([], error))
        ranks.append(rank)
    for _, error in groups.values():
        clean_traceback(error)
    first, *others = groups.values()
    return [*others, first]


def clean_traceback(error: BaseException) -> None:
    """Take out of its traceback what says nothing of the test."""
    strip_labkit_frames(error)
    if hasattr(error, "report") or isinstance(error, turns.Deadlock):
        fold_frames(error, is_installed_code, whole=True)  # it names the lines itself


def failure_heading(text: str) -> Any:
    """A line between the failures that pytest shows."""
    return ReprTraceback([ReprEntryNative([f"{text}:\n"])], None, "native"), None, None


def failure_elements(shown: Any) -> list[Any]:
    """The parts of which pytest shows a failure, in whichever style."""
    return list(getattr(shown, "chain", None) or [(shown.reprtraceback, shown.reprcrash, None)])
