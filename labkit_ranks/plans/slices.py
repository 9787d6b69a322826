"""Two layers cut over ranks, W1 by columns and W2 by rows, in small whole numbers that can be checked by eye.

output = relu(x @ W1) @ W2. A rank has neighbouring columns of W1 and the same rows of W2; ``split`` gives their number.
"""

from __future__ import annotations

from collections.abc import Sequence

from labkit.plans.split import split

Matrix = list[list[int | None]]
ROWS, WIDTH, HIDDEN = 2, 3, 8
# The matrices at the beginning, and those that each step adds.
STEPS = (("x", "W1", "W2"), ("hidden",), ("partial",), ("output",))
NAMES = ("x", "W1", "hidden", "W2", "partial", "output")

_X = [[(row + 2 * column) % 3 for column in range(WIDTH)] for row in range(ROWS)]
_W1 = [[(2 * row + 3 * column) % 5 - 2 for column in range(HIDDEN)] for row in range(WIDTH)]
_W2 = [[(2 * row + column * column) % 5 - 2 for column in range(WIDTH)] for row in range(HIDDEN)]


def column_row(ranks: int, step: int) -> dict[str, list[Matrix]]:
    """Return each rank's part of each matrix after ``step`` (0 to 3); None for numbers of other ranks."""
    hidden = [[max(value, 0) for value in row] for row in _product(_X, _W1, range(WIDTH))]
    there = {name for names in STEPS[: step + 1] for name in names}
    found: dict[str, list[Matrix]] = {name: [] for name in NAMES}
    first = 0
    for size in split(HIDDEN, ranks).rows_by_gpu:
        mine, every = range(first, first + size), range(HIDDEN)
        first += size
        partial, output = (_product(hidden, _W2, some) for some in (mine, every))
        parts = (
            (_X, every, every), (_W1, every, mine), (hidden, every, mine), (_W2, mine, every), (partial, every, every),
            (output, every, every),
        )  # fmt: skip
        for name, (matrix, rows, columns) in zip(NAMES, parts, strict=True):
            shown = rows if name in there else range(0)
            found[name].append(
                [[value if i in shown and j in columns else None for j, value in enumerate(row)]
                 for i, row in enumerate(matrix)]
            )  # fmt: skip
    return found


def _product(one: Sequence[Sequence[int]], other: Sequence[Sequence[int]], along: range) -> list[list[int]]:
    """Return the matrix product, summed over the columns ``along`` of ``one`` only."""
    return [[sum(row[k] * other[k][j] for k in along) for j in range(len(other[0]))] for row in one]
