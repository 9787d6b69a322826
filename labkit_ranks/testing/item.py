"""Run a pytest test on ranks in this process, with separate fixtures for each rank.

Each rank makes the test's function-scoped fixtures for itself. Fixtures of wider scope (class, module, session) and
pytest's own fixtures (``tmp_path``, ``capsys``, ``monkeypatch``) are made once, before the ranks start.
"""

from __future__ import annotations

import copy
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
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

# Fixtures that capture a test's output: ranks then write without rank numbers.
_CATCHING = frozenset("capsys capfd capsysbinary capfdbinary capteesys".split())
# pytest's own fixtures, which all ranks of a test share.
_OF_THE_TEST = _CATCHING | frozenset(
    "tmp_path tmpdir caplog monkeypatch record_property record_testsuite_property record_xml_attribute".split()
)
# The logger for errors of torch.distributed's functions (torch/distributed/c10d_logger.py).
CALLS_LOG = "c10d-NullHandler-default"


class OnRanks:
    """A test on ranks that are threads and take turns: ``item``, with the arguments of :class:`Session`."""

    def __init__(self, item: Any, size: int, **options: Any) -> None:
        self.item, self.size, self._options = item, size, options
        # Rank -> the rank's copy of the test.
        self._own: dict[int, Any] = {}

    def setup(self) -> None:
        """Set up the fixtures that all ranks share."""
        item = self.item
        item._explicit_tearDown = None  # of a unittest.TestCase
        environ = patch.dict(os.environ)  # a shared monkeypatch would restore a rank's
        environ.start()
        item.addfinalizer(environ.stop)
        for name in item.fixturenames:
            found = item._fixtureinfo.name2fixturedefs.get(name)
            if found and (name in _OF_THE_TEST or found[-1].scope != "function"):
                item.funcargs[name] = item._request.getfixturevalue(name)

    def runtest(self) -> None:
        """Run the test on new ranks, which stay open until the teardown, for ``--pdb``."""
        session = Session(self.size, **self._options)
        self.item.addfinalizer(session.close)
        calls = logging.getLogger(CALLS_LOG)
        calls.disabled = True  # the log would repeat each failure
        try:
            session.run_in_each(self._part, to_end=True)
        except RanksFailed as failed:
            groups = group_errors(failed)
            self.item.repr_failure = lambda _: self._representation(groups)
            raise groups[-1][1] from None
        finally:
            calls.disabled = False

    def _part(self, rank: Rank) -> None:
        """Set up, run and tear down the test in ``rank``, as pytest does."""
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
                rank.world.fail(rank, raised)  # before the teardown, which may need the other ranks
        del stack[own]
        while finalizers:
            try:
                finalizers.pop()()
            except BaseException as raised:
                error = error or raised
        if error is not None:
            raise error

    def _copy(self) -> Any:
        """Copy the test for a rank, with a separate class instance, parameters and fixtures."""
        item = self.item
        own = copy.copy(item)
        for name in ("setup", "runtest", "repr_failure", "_instance", "_obj", "_excinfo"):
            vars(own).pop(name, None)
        own._fixtureinfo = replace(item._fixtureinfo, name2fixturedefs=_OwnFixtures(item))
        if hasattr(item, "callspec"):
            params = dict(item.callspec.params)
            for name, value in params.items():
                with suppress(Exception):  # no copy possible
                    params[name] = copy.deepcopy(value)
            own.callspec = replace(item.callspec, params=params)
        own._initrequest()
        own._request._fixture_defs.update(item._request._fixture_defs)
        return own

    def _representation(self, groups: Sequence[tuple[list[int], BaseException]]) -> Any:
        """Return the failures as pytest shows them, equal failures once, the first failure last."""
        chain: list[Any] = []
        for ranks, error in groups:
            if self.size > 1:
                heading = ReprEntryNative([f"{format_ranks(ranks)}:\n"])
                chain.append((ReprTraceback([heading], None, "native"), None, None))
            shown = self._own.get(ranks[0], self.item)  # (missing if no rank has begun)
            failure = type(self.item).repr_failure(shown, pytest.ExceptionInfo.from_exception(error))
            # Some styles of tracebacks have no chain.
            chain += getattr(failure, "chain", None) or [(failure.reprtraceback, failure.reprcrash, None)]
        return ExceptionChainRepr(chain)


class _OwnFixtures(dict[str, Any]):
    """The fixture definitions of a test; copies if function-scoped, because a definition stores a value."""

    def __init__(self, item: Any) -> None:
        super().__init__(
            {name: _own_definitions(found) for name, found in item._fixtureinfo.name2fixturedefs.items()}
        )
        self._item = item

    def get(self, name: str, default: Any = None) -> Any:
        if name not in self:  # requested by request.getfixturevalue only
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
    """Group equal errors of ranks; the group of the first failed rank comes last.

    Skips and xfails count only without other errors.
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
    """Remove frames of labkit from the traceback of ``error``, and with a report also installed packages'."""
    strip_labkit_frames(error)
    if hasattr(error, "report") or isinstance(error, turns.Deadlock):
        fold_frames(error, is_installed_code, whole=True)  # the error names the lines
