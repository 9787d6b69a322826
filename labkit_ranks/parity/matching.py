"""Find the reference's tensor for each rank's piece of a parameter, by name and shape, or else by its first values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .recording import RankPiece


class Match(NamedTuple):
    """A tensor of the reference, and the places of a piece's numbers in it.

    part    (number, count): the piece is this part of the tensor, cut in so many along a dimension.
    equal   whether the piece had the same first values.
    """

    name: str
    places: Tensor
    part: tuple[int, int]
    equal: bool


def assemble(ranks: Sequence[Mapping[str, RankPiece]]) -> dict[str, Tensor]:
    """Return whole tensors from the ranks' pieces; where several ranks hold a number, the lowest rank's."""
    found = dict[str, Tensor]()
    for pieces in reversed(ranks):
        for name, piece in pieces.items():
            whole = found.setdefault(name, torch.zeros(piece.shape))
            if whole.shape == piece.shape:
                whole.reshape(-1)[piece.places] = piece.value
    return found


def find_matches(
    ranks: Sequence[Mapping[str, RankPiece]], wholes: Mapping[str, Tensor]
) -> dict[tuple[int, str], Match]:
    """Return the matches of all pieces by rank and name; a piece without a match is left out."""
    found, left = dict[tuple[int, str], Match](), list[tuple[int, str, RankPiece, list[Match]]]()
    for rank, pieces in enumerate(ranks):
        for name, piece in pieces.items():
            same = [
                one for one in _candidates(piece, {name: wholes[name]} if name in wholes else {}) if one.equal
            ]
            constant = bool((piece.value == piece.value[:1]).all())
            if not same and not constant:
                same = [one for one in _candidates(piece, wholes) if one.equal]
            if len(same) == 1:
                found[rank, name] = same[0]
            else:
                left.append((rank, name, piece, same))
    for rank, name, piece, same in left:
        options = same or [
            one for other in _other_names(rank, name, len(ranks), found, wholes)
            for one in _candidates(piece, {other: wholes[other]})
        ]  # fmt: skip
        siblings = [one.part for (at, _), one in found.items() if at == rank]
        match = next((one for one in options if one.part == _part(rank, one.part[1], siblings)), None)
        if match is not None:
            found[rank, name] = match
    return found


def _part(rank: int, count: int, siblings: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Return the part of ``count`` that ``rank`` holds: the same as of tensors whose part is known."""
    known = Counter(one for one in siblings if one[1] == count)
    return known.most_common(1)[0][0] if known else (rank % count, count)


def _candidates(piece: RankPiece, wholes: Mapping[str, Tensor]) -> Iterator[Match]:
    """Yield each tensor, or equal part of a tensor along one dimension, that has the shape of the piece's tensor."""
    for name, whole in wholes.items():
        differ = [
            dim
            for dim, size in enumerate(whole.shape)
            if whole.dim() != len(piece.shape) or size != piece.shape[dim]
        ]
        if len(piece.shape) != whole.dim() or len(differ) > 1:
            continue
        count, numbers = 1, torch.arange(whole.numel()).reshape(whole.shape)
        if differ:
            size = piece.shape[differ[0]]
            count, rest = divmod(whole.shape[differ[0]], size or whole.shape[differ[0]] + 1)
            if rest or not count:
                continue
        for at in range(count):
            part = numbers.narrow(differ[0], at * size, size) if differ else numbers
            index = part.reshape(-1)[piece.places]
            equal = torch.equal(whole.reshape(-1)[index], piece.value)
            yield Match(name, index, (at, count), equal)


def _other_names(
    rank: int, name: str, size: int, found: Mapping[tuple[int, str], Match], wholes: Mapping[str, Tensor]
) -> Iterator[str]:
    """Yield possible names of ``name`` in the reference: by the names of its siblings, and its own."""
    for (at, known), match in found.items():
        ours, theirs = known.split("."), match.name.split(".")
        while ours and theirs and ours[-1] == theirs[-1]:
            ours.pop(), theirs.pop()
        if at == rank and known != match.name and name.split(".")[: len(ours)] == ours:
            other = ".".join([*theirs, *name.split(".")[len(ours) :]])
            if other in wholes:
                yield other
    if name in wholes:
        yield name
