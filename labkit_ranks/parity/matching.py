"""Find the reference's tensor for each rank's piece of a parameter: by name and shape, or else by its first values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .recording import RankPiece


class Match(NamedTuple):
    """A tensor of the reference, and the places of a piece's numbers in it.

    size    how many numbers the tensor has.
    part    (number, count): the piece's tensor is this part of the reference's, cut in so many along a dimension.
    equal   whether the piece had the same first values.
    """

    name: str
    places: Tensor
    size: int
    part: tuple[int, int] = (0, 1)
    equal: bool = True


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
    found, left = dict[tuple[int, str], Match](), list[tuple[int, str, RankPiece]]()
    for rank, pieces in enumerate(ranks):
        for name, piece in pieces.items():
            equal = [one for one in _candidates(piece, [name], wholes) if one.equal]
            if not equal and (piece.value != piece.value[:1]).any():  # constants such as zeros prove nothing
                equal = [one for one in _candidates(piece, wholes, wholes) if one.equal]
                equal = equal or [*_find_values(name, piece.value, wholes)]
            if len(equal) == 1:
                found[rank, name] = equal[0]
            else:
                left.append((rank, name, piece))
    for rank, name, piece in left:  # take the part that the rank has of other tensors
        known = Counter(match.part for (at, _), match in found.items() if at == rank)
        for option in _candidates(piece, [*_sibling_names(rank, name, found), name], wholes):
            count = option.part[1]
            usual = [part for part, _ in known.most_common() if part[1] == count]
            if option.part == (usual[0] if usual else (rank % count, count)):
                found[rank, name] = option
                break
    return found


def _candidates(piece: RankPiece, names: Iterable[str], wholes: Mapping[str, Tensor]) -> Iterator[Match]:
    """Yield each tensor, or equal part of a tensor along one dimension, that has the shape of the piece's tensor."""
    for name in names:
        whole = wholes.get(name)
        if whole is None or whole.dim() != len(piece.shape):
            continue
        cut = [dim for dim, size in enumerate(piece.shape) if size != whole.shape[dim]]
        if not cut:
            parts = [piece.places]
        elif len(cut) == 1 and piece.shape[cut[0]] and whole.shape[cut[0]] % piece.shape[cut[0]] == 0:
            numbers = torch.arange(whole.numel()).reshape(whole.shape).split(piece.shape[cut[0]], cut[0])
            parts = [part.reshape(-1)[piece.places] for part in numbers]
        else:
            continue
        for at, places in enumerate(parts):
            equal = torch.allclose(whole.reshape(-1)[places], piece.value, rtol=0, atol=0, equal_nan=True)
            yield Match(name, places, whole.numel(), (at, len(parts)), equal)


def _find_values(name: str, values: Tensor, wholes: Mapping[str, Tensor]) -> Iterator[Match]:
    """Yield the place of each value in the tensor, however it was cut (as packed gates are)."""
    flat = wholes.get(name, values[:0]).reshape(-1)
    if 1 < len(values) <= len(flat):
        ordered, order = flat.sort()
        places = order[torch.searchsorted(ordered, values).clamp(max=len(flat) - 1)]
        follow = (places.roll(1) + 1).clamp(
            max=len(flat) - 1
        )  # of equal values, take the one beside the last
        places = torch.where(flat[follow] == values, follow, places)
        if torch.equal(flat[places], values) and len(places.unique()) == len(places):
            yield Match(name, places, len(flat))


def _sibling_names(rank: int, name: str, found: Mapping[tuple[int, str], Match]) -> Iterator[str]:
    """Yield possible names of ``name`` in the reference, by the names of its siblings."""
    for (at, known), match in found.items():
        ours, theirs = known.split("."), match.name.split(".")
        while ours and theirs and ours[-1] == theirs[-1]:
            ours, theirs = ours[:-1], theirs[:-1]
        if at == rank and known != match.name and name.split(".")[: len(ours)] == ours:
            yield ".".join([*theirs, *name.split(".")[len(ours) :]])
