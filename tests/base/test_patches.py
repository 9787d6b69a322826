"""A table of patches goes in and out as a whole."""

import threading
from types import SimpleNamespace

import pytest

from labkit.base.patches import Patch, Patches


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
