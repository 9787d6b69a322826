"""Find the reference's tensor for each rank's piece of a parameter: by name and shape, or else by its first values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class RankPiece(NamedTuple):
    """A rank's part of a tensor of ``shape``: the part's ``value``, and the ``places`` of its numbers in the whole."""

    shape: tuple[int, ...]
    places: Tensor
    value: Tensor


_Pieces = Mapping[str, RankPiece]


class Match(NamedTuple):
    """A tensor of the reference, its shape, and the places of a piece's numbers in it.

    part    (number, count): the piece's tensor is this part of the reference's, cut in so many along a dimension.
    equal   whether the piece had the same first values.
    """

    name: str
    shape: tuple[int, ...]
    places: Tensor
    part: tuple[int, int] = (0, 1)
    equal: bool = True


def assemble(ranks: Sequence[_Pieces]) -> dict[str, Tensor]:
    """Return whole tensors from the ranks' pieces; where several ranks hold a number, the lowest rank's."""
    found = dict[str, Tensor]()
    for pieces in reversed(ranks):
        for name, piece in pieces.items():
            whole = found.setdefault(name, torch.zeros(piece.shape))
            if whole.shape == piece.shape:
                whole.reshape(-1)[piece.places] = piece.value
    return found


def find_matches(rank: int, pieces: _Pieces, wholes: Mapping[str, Tensor]) -> dict[str, Match]:
    """Return the matches of a rank's pieces by name; a piece without a match is left out."""
    found = dict[str, Match]()
    # A rank that has all names renames nothing: with one seed everywhere, halves of other tensors may be equal.
    others = () if wholes.keys() <= pieces.keys() else wholes
    for name, piece in pieces.items():
        equal = [one for one in _candidates(piece, [name], wholes) if one.equal]
        if not equal and (piece.value != piece.value[:1]).any():  # constants such as zeros prove nothing
            equal = [one for one in _candidates(piece, others, wholes) if one.equal]
            equal = equal or [*_find_values(name, piece.value, wholes)]
        if len(equal) == 1:
            found[name] = equal[0]
    known = Counter(match.part for match in found.values())
    left = [name for name in pieces if name not in found]
    for name in left:  # take the part that the rank has of other tensors
        for option in _candidates(pieces[name], [*_sibling_names(name, found), name], wholes):
            count = option.part[1]
            usual = [part for part, _ in known.most_common() if part[1] == count]
            if option.part == (usual[0] if usual else (rank % count, count)):
                found[name] = option
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
            yield Match(name, tuple(whole.shape), places, (at, len(parts)), equal)


def _find_values(name: str, values: Tensor, wholes: Mapping[str, Tensor]) -> Iterator[Match]:
    """Yield the place of each value in the tensor, however it was cut (as packed gates are)."""
    flat = wholes.get(name, values[:0]).reshape(-1)
    if 1 < len(values) <= len(flat):
        last = len(flat) - 1
        ordered, order = flat.sort()
        places = order[torch.searchsorted(ordered, values).clamp(max=last)]
        follow = (places.roll(1) + 1).clamp(max=last)  # of equal values, take the one beside the last
        places = torch.where(flat[follow] == values, follow, places)
        if torch.equal(flat[places], values) and len(places.unique()) == len(places):
            yield Match(name, tuple(wholes[name].shape), places)


def _sibling_names(name: str, found: Mapping[str, Match]) -> list[str]:
    """Return possible names of ``name`` in the reference, by the names of its siblings."""
    names = list[str]()
    for known, match in found.items():
        ours, theirs = known.split("."), match.name.split(".")
        while ours and theirs and ours[-1] == theirs[-1]:
            ours, theirs = ours[:-1], theirs[:-1]
        if known != match.name and name.split(".")[: len(ours)] == ours:
            names.append(".".join([*theirs, *name.split(".")[len(ours) :]]))
    return names
