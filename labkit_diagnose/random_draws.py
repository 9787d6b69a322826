"""Replace random draws by the same values for every row, to make a batch and its pieces comparable.

On n GPUs a model draws other numbers than on one, whatever the seeds. During a check-up a draw therefore runs through a
fixed sequence along the last dimension, the same for all rows. A draw with one dimension, which may be the batch, gets
the same value everywhere; so do all draws if the last dimension turns out to be the batch.
"""

from __future__ import annotations

import pickle
import random
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from simgpu.dispatch import is_defined_in_python

# Start the sequence below one half: dropout with p=0.5 keeps the first value.
_FIRST, _STEP = 0.3, 0.6180339887498949

Rule = Callable[["Draws", Tensor, dict[str, Any]], Tensor]


class Draws:
    """A replacement of random draws: a sequence along the last dimension, or (``constant``) one value.

    drew    whether a draw was replaced.
    drawn   the tensors whose values come from here, and their copies.
    """

    def __init__(self, constant: bool = False) -> None:
        self.constant, self.drew = constant, False
        self.drawn = WeakIdKeyDictionary()
        self._local = threading.local()

    def replace_draws(self) -> AbstractContextManager[object]:
        """Return a context manager that replaces draws in the current thread."""
        return _ReplacingMode(self)

    def replace_draws_in_replicas(self, model: nn.Module, seed: int = 0) -> nn.Module:
        """Replace draws in each forward of ``model`` and its replicas; seed Python and numpy before."""
        model.register_forward_pre_hook(lambda *_: self._enter(seed), prepend=True)
        model.register_forward_hook(lambda *_: self._leave(), always_call=True)
        return model

    def _enter(self, seed: int) -> None:
        entered: list[_ReplacingMode | None] = self._local.__dict__.setdefault("entered", [])
        if entered or self._local.__dict__.get("inside"):
            entered.append(None)
            return
        seed_python(seed)
        mode = _ReplacingMode(self)
        mode.__enter__()
        entered.append(mode)

    def _leave(self) -> None:
        mode = self._local.entered.pop()
        if mode is not None:
            mode.__exit__(None, None, None)

    def uniform(self, like: Tensor) -> Tensor:
        """Return values from [0, 1) in the shape of ``like``."""
        count = like.size(-1) if like.dim() > 1 and not self.constant else 1
        steps = torch.arange(max(count, 1), dtype=torch.float64, device=like.device)
        row = (_FIRST + _STEP * steps) % 1
        if not like.numel():
            return row.new_empty(like.shape)
        return row.expand(like.shape) if like.dim() else row[0]

    def normal(self, like: Tensor) -> Tensor:
        return (2 * self.uniform(like) - 1).erfinv() * 2**0.5


class UnchangedDraws(Draws):
    """Random draws without replacement, for comparisons with the model's own numbers."""

    def replace_draws(self) -> AbstractContextManager[object]:
        return nullcontext()

    def replace_draws_in_replicas(self, model: nn.Module, seed: int = 0) -> nn.Module:
        return model


class _ReplacingMode(TorchDispatchMode):
    """Run each random operator, and replace its values by the rule in `RULES`."""

    def __init__(self, draws: Draws) -> None:
        super().__init__()
        self._draws = draws

    def __enter__(self) -> Any:
        local = self._draws._local.__dict__
        local["inside"] = local.get("inside", 0) + 1
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        self._draws._local.__dict__["inside"] -= 1
        super().__exit__(*error)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        drawn, name = self._draws.drawn, _name(func)
        if "scaled_dot_product" in name:
            args, kwargs = _without_dropout(func, args, kwargs)
        rule = RULES.get(name)
        follows = bool(drawn) and name in _FOLLOWED and args[0] in drawn
        if rule is None and not follows:
            return self._call(func, args, kwargs)
        arguments = func._schema.arguments
        named = {one.name: one.default_value for one in arguments} | kwargs
        named |= {one.name: value for one, value in zip(arguments, args, strict=False)}
        if rule is None:
            rule, result = _FOLLOWED[name], self._call(func, args, kwargs)
        else:
            result = func(*args, **kwargs)
            self._draws.drew = True
        with torch._C.DisableTorchFunction():
            result = rule(self._draws, result, named)
        if isinstance(result, Tensor):
            drawn[result] = True
        return result

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # A user's kernel is Python code, whose operators the machine must see, also under an autograd Function.
        if not torch._C._len_torch_function_stack() or (
            func.namespace != "aten" and is_defined_in_python(func)
        ):
            return func(*args, **kwargs)
        # Hide other operators from the machine: in backward, tensors made by C++ are not on a simulated GPU yet.
        with torch._C.DisableTorchFunction():
            return func(*args, **kwargs)


def _without_dropout(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Set ``dropout_p`` of an attention kernel to 0: the kernel draws inside, out of reach of the rules."""
    names = [one.name for one in func._schema.arguments]
    args = tuple(0.0 if name == "dropout_p" else value for name, value in zip(names, args, strict=False))
    return args, kwargs | ({"dropout_p": 0.0} if "dropout_p" in kwargs else {})


def python_state() -> object:
    """Return the states of Python's and numpy's generators, for comparison."""
    numpy = sys.modules.get("numpy")
    return random.getstate(), numpy and pickle.dumps(numpy.random.get_state())


def seed_python(seed: int) -> None:
    """Seed the generators of Python and numpy, which all threads share."""
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed)


def _fill(values: Callable[[Draws, Tensor, dict[str, Any]], Any]) -> Rule:
    """Return a rule that writes ``values(draws, result, arguments)`` into the result."""

    def rule(draws: Draws, result: Tensor, given: dict[str, Any]) -> Tensor:
        result.copy_(values(draws, result, given).expand(result.shape))
        return result

    return rule


@_fill
def _integers(draws: Draws, result: Tensor, given: dict[str, Any]) -> Tensor:
    low, high = given.get("low", given.get("from")) or 0, given.get("high", given.get("to"))
    high = low + 100 if high is None else high
    return (low + (high - low) * draws.uniform(result)).floor()


def _multinomial(draws: Draws, result: Tensor, given: dict[str, Any]) -> Tensor:
    weights: Tensor = given["self"].detach().double()
    if given["replacement"]:
        edges: Tensor = weights.cumsum(-1)
        return torch.searchsorted(edges, (draws.uniform(result) * edges[..., -1:]).contiguous())
    keys = weights / -(-draws.uniform(weights)).log1p()
    # Among equal keys take the last, as in `_reverse_equal`.
    ordered = keys.flip(-1).sort(dim=-1, descending=True, stable=True).indices
    return keys.size(-1) - 1 - ordered[..., : given["num_samples"]]


def _dropout(draws: Draws, result: Any, given: dict[str, Any]) -> Any:
    out, mask = result
    keep = 1 - given["p"]
    mask.copy_(draws.uniform(mask) < keep)
    out.copy_(given["input"] * mask / (keep or 1.0))
    return result


def _reverse_equal(draws: Draws, result: Any, given: dict[str, Any]) -> Any:
    """Sort values that are all equal in reverse order, so that a random shuffle still moves rows."""
    drawn, (_, places), dim = given["self"], result, given["dim"]
    if drawn.dim() and drawn.numel() and (drawn == drawn.narrow(dim, 0, 1)).all():
        last = drawn.size(dim) - 1
        order = torch.arange(last, last - places.size(dim), -1, device=places.device)
        places.copy_(order.expand(places.movedim(dim, -1).shape).movedim(-1, dim))
    return result


@_fill
def _coins(draws: Draws, result: Tensor, given: dict[str, Any]) -> Any:
    p = given.get("p")
    return draws.uniform(result) < (given["self"] if p is None else p)


@_fill
def _uniform(draws: Draws, result: Tensor, given: dict[str, Any]) -> Any:
    low, high = given.get("from", 0), given.get("to", 1)
    return low + (high - low) * draws.uniform(result)


_normal = _fill(lambda draws, result, by: by.get("mean", 0) + by.get("std", 1) * draws.normal(result))


# Results of a model that draws otherwise (cauchy_, geometric_, log_normal_, rrelu) count as random.
RULES: dict[str, Rule] = {
    **dict.fromkeys(("rand", "rand_like", "uniform_"), _uniform),
    **dict.fromkeys(("randn", "randn_like", "normal", "normal_"), _normal),
    "exponential_": _fill(lambda draws, result, by: -(-draws.uniform(result)).log1p() / by["lambd"]),
    **dict.fromkeys(("randint", "randint_like", "random_"), _integers),
    # Reverse the order, so that a model that shuffles the rows of a batch still differs.
    "randperm": _fill(lambda draws, result, by: torch.arange(len(result) - 1, -1, -1)),
    **dict.fromkeys(("bernoulli", "bernoulli_"), _coins),
    "multinomial": _fill(_multinomial),
    "poisson": _fill(lambda draws, result, by: by["self"].round()),
    "binomial": _fill(lambda draws, result, by: (by["count"] * by["prob"]).round()),
    "_standard_gamma": _fill(lambda draws, result, by: by["self"]),
    "_sample_dirichlet": _fill(lambda draws, result, by: by["self"] / by["self"].sum(-1, keepdim=True)),
    "native_dropout": _dropout,
}

# Operators whose result counts as drawn, if their input was drawn.
_FOLLOWED: dict[str, Rule] = {
    **dict.fromkeys(("_to_copy", "clone", "detach", "alias"), lambda draws, result, given: result),
    "sort": _reverse_equal,
    "topk": _reverse_equal,
}


@cache
def _name(func: Any) -> str:
    name: str = func._schema.name
    return name.removeprefix("aten::")
