"""Cut shapes of tensors over GPUs and join them again: integers alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..base.display import Drawn
from ..base.language import wrong
from ..base.numbers import integer, must
from .split import split

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Cut(Drawn):
    """The tensors in a model's inputs, each a name and a shape, as scatter cuts them over ``gpus`` GPUs.

    returned   what each replica returns, in words; "" if it raises an error. Empty: not known.
    """

    tensors: tuple[tuple[str, Shape], ...]
    gpus: int
    returned: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return "\n".join(
            f"{name} {list(shape)}: {', '.join(str(list(piece)) for piece in cut_shape(shape, self.gpus))}"
            for name, shape in self.tensors
        )


def cut_shape(shape: Shape, gpus: int, dim: int = 0) -> tuple[Shape, ...]:
    """Return the shapes of the pieces of a tensor cut over ``gpus`` GPUs along dimension ``dim``.

    >>> cut_shape((32, 512, 65), 2)
    ((16, 512, 65), (16, 512, 65))

    Raises ValueError if the tensor has no such dimension; a negative ``dim`` counts from the end.
    """
    shape = tuple(integer("shape", size, 0) for size in shape)
    dim = dimension("dim", dim, len(shape))
    return tuple((*shape[:dim], rows, *shape[dim + 1 :]) for rows in split(shape[dim], gpus).sizes)


def gathered_shape(shapes: Sequence[Shape], dim: int = 0) -> Shape:
    """Return the shape of tensors of these shapes, gathered along dimension ``dim``.

    >>> gathered_shape([(65, 16, 5530), (65, 16, 5530)])
    (130, 16, 5530)

    Scalars become one vector. Raises ValueError, naming the piece, if the shapes differ in any other dimension
    than ``dim``: gather fails there too.
    """
    shapes = [tuple(integer("shapes", size, 0) for size in shape) for shape in shapes]
    if not shapes:
        raise ValueError(
            must("shapes", shapes, en="the shape of at least one piece", zh="至少给出一个分块的形状")
        )
    if all(shape == () for shape in shapes):
        return (len(shapes),)
    dim = dimension("dim", dim, len(shapes[0]))
    for at, shape in enumerate(shapes):
        if (shape[:dim], shape[dim + 1 :]) != (shapes[0][:dim], shapes[0][dim + 1 :]):
            raise wrong(
                en=f"pieces cannot be concatenated along dimension {dim}: piece 0 is {list(shapes[0])}, "
                f"piece {at} is {list(shape)}; all other dimensions must be equal",
                zh=f"这些分块不能沿第 {dim} 维拼接：第 0 块是 {list(shapes[0])}，"
                f"第 {at} 块是 {list(shape)}；其余各维必须相等",
            )
    return (*shapes[0][:dim], sum(shape[dim] for shape in shapes), *shapes[0][dim + 1 :])


def shape_text(shape: Shape) -> str:
    """Format a shape as PyTorch's messages do: ``[32, 65]``."""
    return str(list(shape))


def dimension(name: str, dim: int, dims: int) -> int:
    """Return ``dim`` counted from the front; raise an error naming the argument if it is out of range."""
    if not dims:
        raise wrong(
            en=f"{name} names a dimension, but a scalar has none",
            zh=f"{name} 指的是某一维，而标量没有维度",
        )
    return integer(name, dim, -dims, dims - 1) % dims
