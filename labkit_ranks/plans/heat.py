"""Matrices of several ranks, shown side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from labkit.base.display import Drawn
from labkit.base.numbers import must

Matrix = list[list[float | None]]
MOST = 64


class HeatMaps(Drawn):
    """Matrices on ranks, as pictures of the numbers: ``HeatMaps({"W1": [w1 of rank 0, w1 of rank 1, …], …})``.

    maps   name -> a matrix for each rank, a tensor or nested lists, at most 64 × 64; a vector counts as a row. None in
           place of a number means that the rank does not hold the number.

    Raises ValueError, naming the matrix, for other values.
    """

    def __init__(self, maps: Mapping[str, Sequence[Any]]) -> None:
        self.maps = {name: [_matrix(name, part) for part in parts] for name, parts in maps.items()}
        if len({len(parts) for parts in self.maps.values()}) != 1:
            raise ValueError(must("maps", list(maps), en="a matrix for each rank", zh="每个 rank 各一个矩阵"))

    @property
    def ranks(self) -> int:
        return len(next(iter(self.maps.values())))

    def __repr__(self) -> str:
        shapes = {name: [f"{len(m)}×{len(m[0])}" for m in parts] for name, parts in self.maps.items()}
        return "\n".join(f"{name}: {', '.join(found)}" for name, found in shapes.items())


def _matrix(name: str, part: Any) -> Matrix:
    found = part.tolist() if hasattr(part, "tolist") else part
    rows = found if isinstance(found, (list, tuple)) else []
    rows = rows if rows and isinstance(rows[0], (list, tuple)) else [rows]
    sizes = {len(row) if isinstance(row, (list, tuple)) else 0 for row in rows}
    small = len(sizes) == 1 and 0 < max(sizes) <= MOST and len(rows) <= MOST
    if not small or isinstance(rows[0][0], (list, tuple)):
        en, zh = f"a matrix of at most {MOST} × {MOST}", f"是最多 {MOST} × {MOST} 的矩阵"
        raise ValueError(must(name, type(part).__name__, en=en, zh=zh))
    return [list(row) for row in rows]
