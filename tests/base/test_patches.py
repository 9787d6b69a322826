"""A table of patches goes in and out as a whole."""

import re
import threading
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

import labkit.engine.data_parallel
from labkit.base import patches
from labkit.base.ours import PACKAGES
from labkit.base.patches import Patch, Patches
from labkit.trace import recording
from labkit.turns.locks import lock_patches
from labkit_ranks.diagnosis.observer import Observer
from labkit_ranks.planning import timing
from labkit_ranks.processes import process_patches as of_processes
from labkit_ranks.rank import cuda_state
from labkit_ranks.threads import thread_patches as of_threads
from simgpu.state.streams import Event
from simgpu.torch_api.table import table

# A recording may patch the engine, which is ordinary PyTorch and no part of the simulation.
_OURS = re.compile(rf"(?!labkit(\.engine(\..*)?)?$)({'|'.join(PACKAGES)})\b.*")


def is_ours_to_change(owner):
    """Whether ``owner`` is a module or a class of labkit's, which must be changed instead of patched.

    Classes that replace torch's have torch's names; their functions tell the module.
    """
    name = owner.__name__ if isinstance(owner, ModuleType) else ""
    if isinstance(owner, type):
        made = vars(owner).get("__init__")
        own = getattr(made, "__qualname__", "") == f"{owner.__name__}.__init__"  # none assigned later
        name = str(getattr(made, "__module__", "")) if own else owner.__module__
    return _OURS.fullmatch(name) is not None


def test_owners_that_are_ours_are_told_from_others():
    ours = [patches, patches.Patches, timing.ModelClock, Event]
    engines = [labkit, labkit.engine, labkit.engine.data_parallel, labkit.DataParallel]
    assert all(map(is_ours_to_change, ours))
    assert not any(map(is_ours_to_change, [*engines, torch, nn.DataParallel, torch.Event]))


def test_no_table_has_an_owner_that_is_ours():
    """But for the engine's: it is ordinary PyTorch, which a recording wraps as it wraps torch's."""
    with labkit.simulate(gpus=1) as machine:
        tables = [table(machine), lock_patches(), recording._table(), Observer(1)._table()]
        tables += [of_threads.patches(), of_processes._store_patches(), cuda_state.patches(int)]
        owners = [row.owner for rows in tables for row in rows]
    assert len(owners) > 200
    assert [owner for owner in owners if is_ours_to_change(owner)] == []
    assert labkit.DataParallel in owners


class Base:
    def inherited(self):
        return "base"


class Owner(Base):
    def own(self):
        return "own"

    @staticmethod
    def fixed():
        return "fixed"


def rows():
    """The last row is made from what the first replaces: it must see what stood there."""
    yield Patch(Owner, "own", lambda self: "new")
    yield Patch(Owner, "inherited", lambda self: "new")
    yield Patch(Owner, "fixed", staticmethod(lambda: "new"))
    yield Patch(Owner, "absent", Owner.own)


def test_everything_is_there_inside_and_as_it_was_outside():
    before = dict(vars(Owner))
    with Patches(rows):
        assert [Owner().own(), Owner().inherited(), Owner.fixed()] == ["new"] * 3
        assert Owner().absent() == "own"
    assert dict(vars(Owner)) == before
    assert Owner().inherited() == "base"


def test_the_first_user_puts_it_in_and_the_last_takes_it_out():
    asked = []
    patches = Patches(lambda: asked.append(1) or rows())
    with patches:
        with patches:
            pass
        assert Owner().own() == "new"
    assert Owner().own() == "own"
    with patches:
        pass
    assert len(asked) == 2


def test_if_one_row_cannot_be_put_in_none_is():
    before = dict(vars(Owner))
    patches = Patches(lambda: [*rows(), Patch(int, "fixed", 1)])
    with pytest.raises(TypeError, match="immutable type 'int'"):
        patches.put_in()
    assert dict(vars(Owner)) == before
    with Patches(rows):
        assert Owner().own() == "new"


def test_a_second_thread_waits_until_the_first_has_put_its_table_in():
    there, other = SimpleNamespace(name="real"), []

    def slow():
        thread = threading.Thread(target=quick.put_in)
        thread.start()
        thread.join(0.2)  # it must still be waiting: with this table half in, it would remember nonsense
        other.append(thread)
        return [Patch(there, "name", f"slow over {there.name}")]

    quick = Patches(lambda: [Patch(there, "name", f"quick over {there.name}")])
    patches = Patches(slow)
    patches.put_in()
    other[0].join()
    assert there.name == "quick over slow over real"
    quick.take_out()
    patches.take_out()
    assert there.name == "real"
