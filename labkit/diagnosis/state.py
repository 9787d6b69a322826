"""What a module keeps besides parameters and buffers, and what a forward pass changes of it.

A replica is a shallow copy that lives for one call. An attribute written in forward is written on that
copy, and lost; a list or a dict is the same object in every replica, written by all their threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor, nn

# What nn.Module itself keeps.
_OWN = frozenset(nn.Module().__dict__)
_SIMPLE = (int, float, complex, str, bytes, bool, type(None))


@dataclass(frozen=True)
class Loose:
    """A tensor that a module holds and has not registered."""

    where: str
    tensor: Tensor
    learned: bool


def loose_tensors(model: nn.Module) -> list[Loose]:
    """Tensors in plain attributes, lists, tuples and dicts of modules: ``.to()`` does not move them."""
    registered = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    found = {}
    for path, module in model.named_modules():
        for name, value in _attributes(module):
            for where, tensor in _tensors_in(value, f"{path}.{name}".lstrip(".")):
                if id(tensor) not in registered:
                    found.setdefault(id(tensor), Loose(where, tensor, isinstance(tensor, nn.Parameter)))
    return list(found.values())


def move_loose_tensors(model: nn.Module, device) -> None:
    """Move what :func:`loose_tensors` finds, as its owner would have to do by hand."""
    wanted = {id(loose.tensor) for loose in loose_tensors(model)}
    for module in model.modules():
        for name, value in _attributes(module):
            moved = _moved(value, wanted, device)
            if moved is not value:
                module.__dict__[name] = moved


@dataclass(frozen=True)
class Changes:
    """What a forward pass changed, by name: ``rnn.last_hidden``.

    lost     attributes and buffers that were given a new value.
    shared   containers and plain tensors that were changed in place.
    """

    lost: tuple[str, ...]
    shared: tuple[str, ...]


class Watch:
    """Takes note of a module's state when it is made; :meth:`changes` compares."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._before = {where: (value, inside) for where, value, inside in _state(model)}

    def changes(self) -> Changes:
        """What differs now."""
        lost, shared = [], []
        missing = object()
        for where, value, inside in _state(self._model):
            before, contents = self._before.get(where, (missing, None))
            if value is not before:
                if not (
                    isinstance(value, _SIMPLE) and isinstance(before, _SIMPLE) and _equal(value, before)
                ):
                    lost.append(where)
            elif inside is not None and not _alike(inside, contents):
                shared.append(where)
        return Changes(tuple(lost), tuple(shared))


def _state(model: nn.Module) -> Iterator[tuple[str, object, list | tuple | None]]:
    for path, module in model.named_modules():
        for name, value in _attributes(module):
            yield f"{path}.{name}".lstrip("."), value, _inside(value)
        for name, value in module._buffers.items():
            # A buffer that is changed in place is kept, from the first replica; only a new tensor is lost.
            yield f"{path}.{name}".lstrip("."), value, None


def _attributes(module: nn.Module) -> list[tuple[str, object]]:
    """The module's own attributes, without what nn.Module keeps and what weight norms compute."""
    return [
        (name, value)
        for name, value in module.__dict__.items()
        if name not in _OWN
        and not name.startswith("_forward_")
        and not {f"{name}_g", f"{name}_orig"} & module._parameters.keys()
    ]


def _tensors_in(value, where: str, depth: int = 3):
    if isinstance(value, Tensor):
        yield where, value
    elif depth and isinstance(value, dict):
        for key, item in value.items():
            yield from _tensors_in(item, f"{where}[{key!r}]", depth - 1)
    elif depth and isinstance(value, (list, tuple)):
        for at, item in enumerate(value):
            yield from _tensors_in(item, f"{where}[{at}]", depth - 1)


def _moved(value, wanted: set[int], device):
    if isinstance(value, Tensor):
        if id(value) not in wanted:
            return value
        moved = value.detach().to(device).requires_grad_(value.requires_grad)
        return nn.Parameter(moved, value.requires_grad) if isinstance(value, nn.Parameter) else moved
    if isinstance(value, dict):
        items = {key: _moved(item, wanted, device) for key, item in value.items()}
        if all(items[key] is value[key] for key in value):
            return value
        value.update(items)
        return value
    if isinstance(value, (list, tuple)):
        items = [_moved(item, wanted, device) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def _inside(value):
    """What can change inside ``value`` while it stays the same object; None if nothing can."""
    if isinstance(value, Tensor):
        return None if isinstance(value, nn.Parameter) else (value._version,)
    if isinstance(value, (list, set)):
        return list(value)
    if isinstance(value, dict):
        return [part for pair in value.items() for part in pair]
    return None


def _alike(now: list, before: list) -> bool:
    return len(now) == len(before) and all(
        a is b or (isinstance(a, _SIMPLE) and isinstance(b, _SIMPLE) and _equal(a, b))
        for a, b in zip(now, before, strict=True)
    )


def _equal(one, other) -> bool:
    return type(one) is type(other) and (one == other or one != one)
