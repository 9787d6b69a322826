"""Outputs as torch's gather takes them apart: more than tuples, lists and dicts."""

from __future__ import annotations

from itertools import islice
from typing import Any

from torch import Tensor

from ..base.tree import children, leaves, rebuilt, tensors

# What gives more items than this is no output of a model.
_MOST = 10_000


def opened(value: Any) -> Any:
    """Return ``value`` with tuples for all objects in it that gather takes apart and puts together again.

    torch/nn/parallel/scatter_gather.py makes ``type(output)`` of the items that are gathered: that is right of each
    class that is made of what it gives, such as caches of keys and values.
    """
    inside = children(value)
    if inside is None:
        items = _items(value)
        return tuple(map(opened, items)) if tensors(items) else value
    items = [opened(item) for _, item in inside]
    same = all(new is old for new, (_, old) in zip(items, inside, strict=True))
    return value if same else rebuilt(value, items)


def _items(value: Any) -> list[Any]:
    """Return the items of an object that is made of them; none of another."""
    kind = type(value)
    if isinstance(value, (Tensor, str, bytes, set, frozenset)) or not hasattr(kind, "__iter__"):
        return []
    try:
        items = [] if (each := iter(value)) is value else list(islice(each, _MOST))
        again = list(islice(kind(iter(items)), _MOST))
    except Exception:
        return []
    return items if _shapes(again) == _shapes(items) else []


def _shapes(items: list[Any]) -> list[tuple[str, object]]:
    # The tensors may be others: some caches put what they are given behind what they have, which is nothing yet.
    return [(way, leaf.shape if isinstance(leaf, Tensor) else type(leaf)) for way, leaf in leaves(items)]
