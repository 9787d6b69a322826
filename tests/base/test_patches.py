"""A table of patches goes in and out as a whole."""

import re
import threading
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

import labkit.engine.data_parallel
from labkit.base import patches
from labkit.base.patches import Patch, Patches, is_ours_to_change
from labkit.trace import recording
from labkit.turns.locks import lock_patches
from labkit_ranks.diagnosis.observer import Observer
from labkit_ranks.planning import timing
from labkit_ranks.processes import process_patches as of_processes
from labkit_ranks.rank import cuda_state
from labkit_ranks.threads import thread_patches as of_threads
from simgpu.state.streams import Event
from simgpu.torch_api.table import table

OURS = [patches, patches.Patches, timing.ModelClock, Event]
ENGINES = [labkit, labkit.engine, labkit.engine.data_parallel, labkit.DataParallel]


@pytest.mark.parametrize("owner", OURS)
@pytest.mark.parametrize("make", [Patch, Patch.wrap])
def test_what_is_labkits_own_is_not_patched(owner, make):
    """Also a class that has torch's name. What the table has put in before is taken out."""
    with pytest.raises(TypeError, match=re.escape(repr(owner))) as error:
        Patches(lambda: [*rows(), make(owner, "__init__", print)]).put_in()
    assert "hook" in str(error.value)
    assert Owner().own() == "own"


@pytest.mark.parametrize("owner", [*ENGINES, torch, nn.DataParallel])
def test_the_engine_is_patched_as_torch_is(owner):
    assert not is_ours_to_change(torch.Event)  # which Event has the name of
    with Patches(lambda: [Patch(owner, "name_of_a_test", 1)]):
        assert owner.name_of_a_test == 1


def test_what_has_a_function_of_labkits_is_still_torchs(monkeypatch):
    monkeypatch.setattr(DeviceMesh, "__init__", labkit.record)
    with Patches(lambda: [Patch(DeviceMesh, "name_of_a_test", 1)]):
        assert DeviceMesh.name_of_a_test == 1


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
