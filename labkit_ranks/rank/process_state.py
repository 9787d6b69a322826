"""The state of a process, swapped whenever another rank gets the turn: variables, modules, environment, random numbers.

Ranks in one process are threads. Everything that threads share and processes do not is kept here for each rank, and
for the process outside of the ranks. A swap happens at every collective, so it is lean: rows that are the same
dictionary and key every time, a loop over them, and nothing else.
"""

from __future__ import annotations

import logging
import os
import random
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from operator import getitem, setitem
from types import ModuleType
from typing import Any, Protocol
from weakref import WeakSet

import torch

from . import random_states
from .own_modules import RankEnvironment, assigned_globals, is_own, is_per_process
from .process_variables import (
    OWNED,
    PYTHON,
    ClassVariables,
    OwnedVariable,
    TorchSetting,
    keep_value,
    torch_settings,
)

_environ: Any = os.environ  # whose dictionary is _data
_default = torch.default_generator
_manager = logging.root.manager


class _ProcessOfRank(Protocol):
    """The attributes of a rank for its state."""

    number: int
    environ: dict[str, str]
    main: ModuleType
    seed: int

    def choose_gpus(self) -> None: ...


class _Table:
    """All rows; more are added as modules are imported."""

    def __init__(self) -> None:
        self.places: list[OwnedVariable] = []
        # The same as columns, for the loops of a swap.
        self.owners: list[Any] = []
        self.names: list[str] = []
        self._add(PYTHON)
        self.settings: list[TorchSetting] = list(torch_settings())
        self.get_settings: list[Callable[[], Any]] = [setting.get for setting in self.settings]
        self._wanted = [
            (place, names, fresh) for fresh, rows in OWNED.items() for place, names in rows.items()
        ]
        # Names of modules that all ranks share.
        self.shared: set[str] = set(sys.modules)
        self._searched: set[str] = set()
        self.states: WeakSet[ProcessState] = WeakSet()
        # The states of the process outside, and of the rank with the last turn, at the end of that turn.
        self.outside: ProcessState | None = None
        self.left: ProcessState | None = None
        self.find_new_rows()

    def _add(self, places: Iterable[OwnedVariable]) -> None:
        self.places += places
        self.owners = [place.owner for place in self.places]
        self.names = [place.name for place in self.places]

    def add_globals(self) -> None:
        """Add the globals that functions of the script's and the tests' modules assign."""
        for name, module in list(sys.modules.items()):
            if name not in self._searched and name != "__main__" and is_own(name, module):
                self._searched.add(name)
                self._add(OwnedVariable(vars(module), one, keep_value) for one in assigned_globals(module))

    def find_new_rows(self) -> None:
        """Add the rows of modules that have been imported since."""
        for row in self._wanted[:]:
            place, names, fresh = row
            module, _, path = place.partition(":")
            owner = sys.modules.get(module)
            for name in path.split(".") if path else ():
                owner = getattr(owner, name, None)
            if hasattr(owner, names.split()[-1]):  # else not imported, or not to the end
                self._wanted.remove(row)
                here = ClassVariables(owner) if isinstance(owner, type) else vars(owner)
                self._add(OwnedVariable(here, name, fresh) for name in names.split() if hasattr(owner, name))


_table: _Table | None = None


def _make_table() -> _Table:
    global _table
    _table = _table or _Table()
    return _table


class ProcessState:
    """The state of the process of ``rank``, or of the process outside of the ranks (None).

    :meth:`leave` saves the current state before another rank's turn. :meth:`enter` restores a saved state, or at the
    first turn of a rank creates that of a new process.

    exit_functions    ``atexit`` functions of the rank: function, positional, keyword arguments.
    handlers          the rank's signal handlers.
    folder            the current folder, once any rank has changed its own; else None.
    """

    # The state in place, while ranks run.
    current: ProcessState | None = None
    # Whether any rank has called os.chdir; before, all are in the folder of the process.
    has_own_folders = False
    # Modules that stay shared although each process has its own.
    kept: frozenset[str] = frozenset()

    def __init__(self, rank: _ProcessOfRank | None) -> None:
        self._table = _make_table()
        self.rank = rank
        self.process = os.getpid()  # a forked child has this state, too
        self.exit_functions: list[tuple[Callable[..., object], tuple[Any, ...], dict[str, Any]]] = []
        self.handlers: dict[int, Any] = {}
        self.folder: str | None = None
        self._values: list[Any] = []
        self._settings: list[Any] = []
        self._modules: dict[str, Any] = {}
        self._main: Any = None
        self._variables: Any = None
        self._torch: Any = None
        self._python: Any = None
        self._numpy: Any = None
        self._thread: threading.Thread | None = None
        self._loggers = 0
        self._table.states.add(self)

    @classmethod
    def keep_modules(cls) -> None:
        """Share all modules among future ranks, but for globals that functions assign: tests hold on to modules."""
        cls.kept = frozenset(sys.modules)
        _make_table().add_globals()

    @classmethod
    def prepare_chdir(cls) -> None:
        """Give each rank a current folder: one is about to change it."""
        if not cls.has_own_folders:
            cls.has_own_folders = True
            here = os.getcwd()
            for state in _make_table().states:
                state.folder = here

    def export_environment(self) -> None:
        """Copy the environment to C, from which new processes inherit."""
        # Python has set in C each variable that any rank has set.
        for name in set().union(*(state._variables or () for state in self._table.states)):
            if name not in _environ._data:
                os.unsetenv(name)
        for name, value in _environ._data.items():
            os.putenv(name, value)

    def leave(self) -> None:
        """Save the current state of the process."""
        table, modules, own = self._table, sys.modules, self._modules
        self._main = modules["__main__"]
        for name in own:
            own[name] = modules.pop(name, None)
        if self.rank is None or len(modules) != len(
            table.shared
        ):  # before ranks begin, take modules that they repeat
            self._claim_modules()
        if len(_manager.loggerDict) != self._loggers:
            self._share_loggers()
        values = list(map(getitem, table.owners, table.names))
        if self.rank is None:
            self._share_replacements(values)
            table.outside = self
        self._values = values
        self._settings = [get() for get in table.get_settings]
        self._variables = _environ._data
        self._thread = threading._main_thread  # type: ignore[attr-defined]
        self._torch = _default.get_state()
        self._python = random_states.python_random().get()
        if (numbers := random_states.numpy_random()) is not None:
            self._numpy = numbers.get()
        if ProcessState.has_own_folders:
            self.folder = os.getcwd()
        table.left = self
        ProcessState.current = None

    def enter(self) -> None:
        """Restore this state."""
        table = self._table
        left = table.left
        assert left is not None  # another state has been saved before
        if not self._values:
            self._begin()
        _environ._data = self._variables
        if len(self._values) < len(table.places):
            self._add_new_rows()
        levels = logging.root.level, _manager._disable  # type: ignore[attr-defined]
        deque(map(setitem, table.owners, table.names, self._values), 0)
        if self._settings != left._settings:
            for setting, value, before in zip(table.settings, self._settings, left._settings, strict=True):
                if value != before:
                    setting.set(value)
        modules = sys.modules
        modules["__main__"] = self._main
        for name, module in self._modules.items():
            if module is not None:
                modules[name] = module
        threading._main_thread = self._thread  # type: ignore[attr-defined]
        _default.set_state(self._torch)
        random_states.python_random().set(self._python)
        if (numbers := random_states.numpy_random()) is not None:
            if self._numpy is None:
                if self.rank is not None:  # outside, the state is that after the import
                    sys.modules["numpy.random"].seed(self.rank.seed)
                self._numpy = numbers.get()
            numbers.set(self._numpy)
        if self.folder is not None and self.folder != left.folder:
            os.chdir(self.folder)
        if levels != (logging.root.level, _manager._disable):  # type: ignore[attr-defined]
            _manager._clear_cache()  # type: ignore[attr-defined]  # loggers cache their levels
        if self.rank is None:
            self.export_environment()
        ProcessState.current = self

    def _begin(self) -> None:
        """Create the state of a new child of the process outside."""
        table, outside, rank = self._table, self._table.outside, self.rank
        assert outside is not None
        assert rank is not None  # the process outside never begins
        if len(outside._values) < len(table.places):
            outside._add_new_rows()
        encode = _environ.encodekey, _environ.encodevalue
        variables = {encode[0](name): encode[1](value) for name, value in rank.environ.items()}
        self._variables = RankEnvironment([*outside._variables.items(), *variables.items()])
        self._variables.on_change = rank.choose_gpus
        _environ._data = self._variables
        places = zip(table.places, outside._values, strict=True)
        self._values = [place.fresh(value) for place, value in places]
        self._settings = list(outside._settings)
        self._main = rank.main
        self._thread = threading.current_thread()
        self.folder = outside.folder
        # Without a seed, a process asks the system for one. Here the seeds are the same in every run.
        _default.manual_seed(rank.seed)
        random.seed(rank.seed)
        self._torch, self._python = _default.get_state(), random_states.python_random().get()

    def _add_new_rows(self) -> None:
        """Add values for modules that others have imported since the rank's last turn."""
        places = self._table.places[len(self._values) :]
        self._values += [fresh(owner[name]) for owner, name, fresh in places]

    def _share_replacements(self, values: list[Any]) -> None:
        """Pass values replaced outside between two runs (such as stdout) to ranks that kept the old one."""
        for at, (before, value) in enumerate(zip(self._values, values, strict=False)):
            if value is not before and self._table.places[at].fresh is keep_value:
                for state in self._table.states:
                    if at < len(state._values) and state._values[at] is before:
                        state._values[at] = value

    def _claim_modules(self) -> None:
        """Remove this rank's new modules from sys.modules until the next turn."""
        modules = sys.modules
        old = self._table.shared
        new = [name for name in modules if name not in old or is_per_process(name) and name not in self.kept]
        # Find all before removing any: a folder without an __init__ needs its parent to say where it is.
        for name in [name for name in new if is_own(name, modules[name])]:
            self._modules[name] = modules.pop(name)
        self._table.shared = set(modules)
        self._table.find_new_rows()

    def _share_loggers(self) -> None:
        """Share loggers of shared modules; other loggers stay with their rank."""
        known = _manager.loggerDict
        shared = self._table.shared
        of_all = {name: logger for name, logger in known.items() if name.partition(".")[0] in shared}
        at = next(at for at, place in enumerate(self._table.places) if place.name == "loggerDict")
        for state in self._table.states:
            if state is not self and at < len(state._values):
                state._values[at] |= of_all | state._values[at]
        self._loggers = len(known)
