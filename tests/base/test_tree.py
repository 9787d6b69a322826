"""The one walker of structures: what torch.nn.parallel walks, and each container made again as the kind it was."""

import collections
import dataclasses
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn import parallel

import labkit
from labkit.base import tree


class Pair(NamedTuple):
    a: Any
    b: Any


class One(NamedTuple):
    a: Any


class Named(list):
    """A list whose constructor wants something else than its items."""

    def __init__(self, name, *items):
        super().__init__(items)
        self.name = name


class Plain(list):
    pass


class Picky(tuple):
    """A tuple whose constructor wants its items one by one."""

    def __new__(cls, one, other):
        return super().__new__(cls, (one, other))


class Bag(dict):
    pass


@dataclasses.dataclass
class Result:
    y: Any
    twice: Any = dataclasses.field(init=False)
    unset: Any = dataclasses.field(init=False, repr=False)

    def __post_init__(self):
        self.twice = self.y * 2


@dataclasses.dataclass(frozen=True, slots=True)
class Fixed:
    y: Any
    name: str = "x"


@dataclasses.dataclass
class Both(collections.OrderedDict):
    """A dict and a dataclass, as some libraries' outputs are."""

    y: Any
    none: Any = None

    def __post_init__(self):
        self["y"] = self.y


def counts(x):
    default = collections.defaultdict(list)
    default["y"] = x
    return default


def structures(x):
    """One of each kind around the tensor ``x`` (of two dimensions or more)."""
    return {
        "tuple": (x, (x + 1,)), "list": [x, [x + 1]], "dict": {"y": x, 3: {"z": x + 1}},
        "namedtuple": Pair(x, [x + 1]), "one field": One(x),
        "return type": torch.return_types.max((x, x + 1)), "list subclass": Plain([x, x + 1]),
        "dict subclass": Bag(y=x, z=x + 1), "ordered": collections.OrderedDict(y=x, z=x + 1),
    }  # fmt: skip


def mine(x):
    """What torch cannot make again, and labkit can."""
    return {
        "list of its own": Named("n", x, x + 1), "tuple of its own": Picky(x, x + 1), "default": counts(x),
        "counter": collections.Counter({"y": x}), "dataclass": Result(x), "frozen": Fixed(x), "both": Both(x),
    }  # fmt: skip


X = torch.arange(12.0).view(6, 2)
ALL = [*structures(X), *mine(X)]


def same(one, other):
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert torch.equal(one.cpu(), other.cpu())
        return
    inside = tree.children(one), tree.children(other)
    assert (inside[0] is None) == (inside[1] is None)
    if inside[0] is None:
        assert one == other
        return
    assert [step for step, _ in inside[0]] == [step for step, _ in inside[1]]
    for (_, a), (_, b) in zip(*inside, strict=True):
        same(a, b)


@pytest.mark.parametrize("kind", ALL)
def test_a_container_is_made_again_with_other_items(kind):
    value = {**structures(X), **mine(X)}[kind]
    before = [item for _, item in tree.children(value)]
    found = tree.map_tensors(value, lambda path, tensor: tensor + 10)
    assert found is not value
    same(found, {**structures(X + 10), **mine(X + 10)}[kind] if kind != "dataclass" else _result(X))
    assert all(a is b for a, (_, b) in zip(before, tree.children(value), strict=True))  # left as it was


def _result(x):
    made = Result(x + 10)
    made.twice = x * 2 + 10
    return made


def test_what_a_container_has_beside_its_items_is_kept():
    assert tree.map_tensors(Named("n", X), lambda path, tensor: tensor + 1).name == "n"
    again = tree.map_tensors(counts(X), lambda path, tensor: tensor + 1)
    assert again.default_factory is list
    fixed = tree.map_tensors(Fixed(X, "kept"), lambda path, tensor: tensor + 1)
    assert fixed.name == "kept"
    assert not hasattr(tree.map_tensors(Result(X), lambda path, tensor: tensor + 1), "unset")


def test_what_is_a_dict_and_a_dataclass_has_its_items_as_fields_too():
    again = tree.map_tensors(Both(X), lambda path, tensor: tensor + 1)
    assert list(again) == ["y"]
    assert again.y is again["y"]
    assert again.none is None


def test_the_way_to_each_leaf():
    value = {"mask": (X, 3), "out": Result(X), 7: Pair("a", [None])}
    assert [path for path, _ in tree.leaves(value, "input")] == [
        "input['mask'][0]", "input['mask'][1]", "input['out'].y", "input['out'].twice",
        "input[7][0]", "input[7][1][0]",
    ]  # fmt: skip
    assert list(tree.tensors(value)) == ["['mask'][0]", "['out'].y", "['out'].twice"]
    assert list(tree.tensors(value, dataclasses=False)) == ["['mask'][0]"]
    assert tree.children(Result) is None  # the class, not an object of it
    assert tree.map_tensors(value, lambda path, tensor: tensor) is value


@pytest.mark.parametrize("kind", structures(X))
def test_scatter_and_gather_walk_as_pytorch_does(kind, gpus):
    value = structures(X)[kind]
    pieces, expected = labkit.scatter(value, [0, 1]), parallel.scatter(value, [0, 1])
    same(list(expected), list(pieces))
    outputs = [structures(X[:3].to("cuda:0"))[kind], structures(X[3:].to("cuda:1"))[kind]]
    same(parallel.gather(outputs, 0), labkit.gather(outputs, 0))


@pytest.mark.parametrize("kind", mine(X))
def test_gather_makes_what_pytorch_cannot(kind, gpus):
    outputs = [mine(X[:3].to("cuda:0"))[kind], mine(X[3:].to("cuda:1"))[kind]]
    if kind == "frozen":  # a text cannot be gathered
        with pytest.raises(TypeError, match=r"output\.name is a str"):
            labkit.gather(outputs, 0)
        return
    same(labkit.gather(outputs, 0), mine(X)[kind])


def test_a_dataclass_among_the_inputs_is_given_whole_to_every_gpu(gpus):
    value = Result(X)
    for scatter in (labkit.scatter, parallel.scatter):
        assert [piece is value for piece in scatter(value, [0, 1])] == [True, True]
    (one, other), _ = labkit.engine.scatter_kwargs((X, value), None, [0, 1])
    assert one[1] is other[1] is value


@pytest.mark.parametrize("kind", ALL)
def test_the_quick_walk_finds_the_same_tensors(kind):
    value = {**structures(X), **mine(X)}[kind]
    quick, slow = tree.tensors_in([value, 2.0, Result], None), tree.tensors(value)
    assert quick
    assert [id(tensor) for tensor in quick] == [id(tensor) for tensor in slow.values()]
