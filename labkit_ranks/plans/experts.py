"""Tokens routed to experts, an expert on each rank: who computes which token, and what the router's gradient is.

Scores are drawn once. A weight is the softmax of a token's scores over all experts, and the loss of a token is the sum
over its experts of weight × a drawn number, as if each expert's output were one number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, exp
from random import Random

TOKENS = 8  # of each rank
_SKEW = 0.6  # by which a step of skew raises the score of expert 0

Row = tuple[int, int, int]  # rank, token, expert


@dataclass(frozen=True)
class Routing:
    """Each of ``ranks`` ranks sends its tokens to the ``k`` experts with the highest scores.

    skew       0 for scores of equal chances; more raise the scores of expert 0.
    capacity   of an expert, in percent of an even share of the rows; the rows that come later are dropped.
    """

    ranks: int
    skew: int
    capacity: int
    k: int

    @property
    def room(self) -> int:
        """Return the number of rows that an expert takes."""
        return ceil(self.capacity * min(self.k, self.ranks) * TOKENS / 100)

    @cached_property
    def _drawn(self) -> list[list[tuple[list[float], list[float]]]]:
        """The weights and losses of each token by expert, for each rank."""
        random, found = Random(2), []
        usual = [random.gauss(0, 1) for _ in range(self.ranks)]
        for _ in range(self.ranks):
            tokens = []
            for _ in range(TOKENS):
                scores = [random.gauss(0, 1) + _SKEW * self.skew * (e == 0) for e in range(self.ranks)]
                whole = sum(map(exp, scores))
                losses = [value + random.gauss(0, 1) for value in usual]
                tokens.append(([exp(score) / whole for score in scores], losses))
            found.append(tokens)
        return found

    @cached_property
    def arrivals(self) -> list[list[Row]]:
        """The rows for each expert in order: first choices first, then by token and rank; ``kept`` cuts at room."""
        found: list[list[Row]] = [[] for _ in range(self.ranks)]
        for choice in range(min(self.k, self.ranks)):
            for token in range(TOKENS):
                for rank in range(self.ranks):
                    weights = self._drawn[rank][token][0]
                    expert = sorted(range(self.ranks), key=weights.__getitem__, reverse=True)[choice]
                    found[expert].append((rank, token, expert))
        return found

    @cached_property
    def kept(self) -> frozenset[Row]:
        """The rows that an expert computes."""
        return frozenset(row for rows in self.arrivals for row in rows[: self.room])

    @property
    def counts(self) -> list[list[int]]:
        """Return how many rows of each rank (outer) each expert computes."""
        every = range(self.ranks)
        return [[sum(row[0] == r and row[2] == e for row in self.kept) for e in every] for r in every]

    def gradient(self, ranks: Sequence[int]) -> list[float]:
        """Return the gradient of the mean loss over the tokens of ``ranks``, by the expert whose score grows."""
        found = [0.0] * self.ranks
        for rank, token, expert in self.kept:
            if rank in ranks:
                weights, losses = self._drawn[rank][token]
                for other, weight in enumerate(weights):
                    found[other] += losses[expert] * weights[expert] * ((other == expert) - weight)
        return [value / (len(ranks) * TOKENS) for value in found]

    def distance(self, rank: int) -> float:
        """Return the distance of a rank's router gradient from that of all tokens, as a share of its length."""
        own, whole = self.gradient([rank]), self.gradient(range(self.ranks))
        far = sum((one - other) ** 2 for one, other in zip(own, whole, strict=True))
        return float((far / (sum(value**2 for value in whole) or 1)) ** 0.5)
