"""Context parallelism: which rank computes which pair of tokens at which step of the ring, and what ranks send.

Pairs are (query, key) with the key not after the query. In step 0 a rank's queries meet its own keys, in step t those
that the rank t places before it had at first.
"""

from __future__ import annotations

from dataclasses import dataclass

TOKENS = 32
LAYOUTS = ("contiguous", "zig-zag", "striped")


def owners(tokens: int, ranks: int, layout: str) -> list[int]:
    """Return the rank of each token. "zig-zag" gives each rank one chunk of the first half and one of the second."""
    if layout == "striped":
        return [token % ranks for token in range(tokens)]
    if layout == "contiguous":
        return [token * ranks // tokens for token in range(tokens)]
    chunks = [token * 2 * ranks // tokens for token in range(tokens)]
    return [min(chunk, 2 * ranks - 1 - chunk) for chunk in chunks]


@dataclass(frozen=True)
class ContextRing:
    """Causal attention over ``tokens`` tokens on a ring of ``ranks`` ranks."""

    ranks: int
    layout: str = "contiguous"
    tokens: int = TOKENS

    def work(self) -> list[list[int]]:
        """Return the number of pairs, by step and rank."""
        owner = owners(self.tokens, self.ranks, self.layout)
        found = [[0] * self.ranks for _ in range(self.ranks)]
        for query in range(self.tokens):
            for key in range(query + 1):
                found[(owner[query] - owner[key]) % self.ranks][owner[query]] += 1
        return found

    @property
    def efficiency(self) -> float:
        """Return the share of the ranks' time that is work, if each step takes as long as its busiest rank."""
        work = self.work()
        return sum(map(sum, work)) / (self.ranks * sum(map(max, work)))


# Of a layer's forward: heads in all, and heads of keys and values.
HEADS, KV_HEADS = 32, 8


def sent(ranks: int) -> dict[str, float]:
    """Return what a rank sends in a layer's forward, as a share of the activations s·b·h."""
    others, kv = ranks - 1, KV_HEADS / HEADS
    return {
        "ring": others * 2 * kv / ranks,  # keys and values, to the next rank
        "Ulysses": (2 + 2 * kv) * others / ranks**2,  # queries, keys, values; then the output back
        "TP + SP": 4 * others / ranks,  # all-gather and reduce-scatter around attention, and around the MLP
    }
