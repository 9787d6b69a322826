"""Find the reference's tensor for each rank's piece of a parameter, by name and shape, or else by its first values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .recording import RankPiece

Wholes = Mapping[str, Tensor]


class Match(NamedTuple):
    """A tensor of the reference, and the places of a piece's numbers in it.

    part    (number, count): the piece's tensor is this part of the reference's, cut in so many along a dimension.
    size    how many numbers the tensor has; ``equal`` whether the piece had the same first values.
    """

    name: str
    places: Tensor
    part: tuple[int, int]
    size: int
    equal: bool


Matches = Mapping[tuple[int, str], Match]


def assemble(ranks: Sequence[Mapping[str, RankPiece]]) -> dict[str, Tensor]:
    """Return whole tensors from the ranks' pieces; where several ranks hold a number, the lowest rank's."""
    found = dict[str, Tensor]()
    for pieces in reversed(ranks):
        for name, piece in pieces.items():
            whole = found.setdefault(name, torch.zeros(piece.shape))
            if whole.shape == piece.shape:
                whole.reshape(-1)[piece.places] = piece.value
    return found


def find_matches(ranks: Sequence[Mapping[str, RankPiece]], wholes: Wholes) -> dict[tuple[int, str], Match]:
    """Return the matches of all pieces by rank and name; a piece without a match is left out."""
    found, left = dict[tuple[int, str], Match](), list[tuple[int, str, RankPiece, list[Match]]]()
    for rank, pieces in enumerate(ranks):
        for name, piece in pieces.items():
            named = {name: wholes[name]} if name in wholes else {}
            equal = [one for one in _candidates(piece, named) if one.equal]
            if not equal and (piece.value != piece.value[:1]).any():  # constants such as zeros prove nothing
                equal = [one for one in _candidates(piece, wholes) if one.equal]
            if not equal and (places := _find_values(piece.value, wholes.get(name))) is not None:
                equal = [Match(name, places, (0, 1), wholes[name].numel(), True)]
            if len(equal) == 1:
                found[rank, name] = equal[0]
            else:
                left.append((rank, name, piece, equal))
    for rank, name, piece, equal in left:
        others = [*_sibling_names(rank, name, found), name]
        options = equal or _candidates(piece, {one: wholes[one] for one in others if one in wholes})
        known = Counter(match.part for (at, _), match in found.items() if at == rank)
        for option in options:
            count = option.part[1]
            usual = [part for part, _ in known.most_common() if part[1] == count]
            if option.part == (usual[0] if usual else (rank % count, count)):
                found[rank, name] = option
                break
    return found


def _candidates(piece: RankPiece, wholes: Wholes) -> Iterator[Match]:
    """Yield each tensor, or equal part of a tensor along one dimension, that has the shape of the piece's tensor."""
    for name, whole in wholes.items():
        if whole.dim() != len(piece.shape):
            continue
        cut = [dim for dim, size in enumerate(piece.shape) if size != whole.shape[dim]]
        dim, numbers = cut[0] if cut else 0, torch.arange(whole.numel()).reshape(whole.shape)
        size = piece.shape[dim] if cut else 0
        if len(cut) > 1 or (cut and (not size or whole.shape[dim] % size)):
            continue
        parts = numbers.split(size, dim) if cut else [numbers]
        for at, part in enumerate(parts):
            places = part.reshape(-1)[piece.places]
            equal = torch.allclose(whole.reshape(-1)[places], piece.value, rtol=0, atol=0, equal_nan=True)
            yield Match(name, places, (at, len(parts)), whole.numel(), equal)


def _find_values(values: Tensor, whole: Tensor | None) -> Tensor | None:
    """Return the place of each value in ``whole``, however it was cut (as packed gates are); None if one is missing."""
    if whole is None or not 1 < len(values) <= whole.numel():
        return None
    flat = whole.reshape(-1)
    ordered, order = flat.sort()
    places = order[torch.searchsorted(ordered, values).clamp(max=len(flat) - 1)]
    follow = (places.roll(1) + 1).clamp(max=len(flat) - 1)  # of equal values, take the one beside the last
    places = torch.where(flat[follow] == values, follow, places)
    return places if torch.equal(flat[places], values) and len(places.unique()) == len(places) else None


def _sibling_names(rank: int, name: str, found: Matches) -> Iterator[str]:
    """Yield possible names of ``name`` in the reference, by the names of its siblings."""
    for (at, known), match in found.items():
        ours, theirs = known.split("."), match.name.split(".")
        while ours and theirs and ours[-1] == theirs[-1]:
            ours, theirs = ours[:-1], theirs[:-1]
        if at == rank and known != match.name and name.split(".")[: len(ours)] == ours:
            yield ".".join([*theirs, *name.split(".")[len(ours) :]])
