"""The published table of measurements says what the benchmarks said."""

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in ("pairs", "table"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import pairs
    import table

    yield pairs, table
    for name in ("pairs", "table"):
        sys.modules.pop(name, None)


def test_the_table_has_every_benchmark(benchmarks):
    _, table = benchmarks
    assert set(table.sections(table.TABLE.read_text("utf-8"))) <= set(table.NAMES)
