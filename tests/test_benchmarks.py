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


def test_every_kind_of_line_becomes_a_row(benchmarks, capsys):
    pairs, table = benchmarks
    pairs.report("met: a claim", 1.02, 1.05)
    pairs.report("missed, and worse", 20.5, 16, " ms")
    pairs.report("at least", 0.9, 0.8, "×", at_least=True)
    pairs.bound("what could be reached", 1.3)
    found = [table._LINE.match(line).groups() for line in capsys.readouterr().out.splitlines()]
    assert [row[1:] for row in found] == [
        ("met: a claim", "1.02", "×", "≤ 1.05×"), ("missed, and worse", "20.50", " ms", "≤ 16 ms"),
        ("at least", "0.90", "×", "≥ 0.8×"), ("what could be reached", "1.30", "×", None),
    ]  # fmt: skip
    assert [row[0].strip() for row in found] == ["ok", "MISSED", "ok", ""]


def test_a_benchmark_that_is_run_again_leaves_the_others(benchmarks, tmp_path, monkeypatch):
    _, table = benchmarks
    monkeypatch.setattr(table, "TABLE", tmp_path / "benchmarks.md")
    monkeypatch.setattr(table, "rows", lambda name: [f"| {name} | 1× | | |"])
    monkeypatch.setattr(sys, "argv", ["table.py"])
    assert table.main() == 0
    monkeypatch.setattr(table, "rows", lambda name: [f"| {name} | 2× | | |"])
    monkeypatch.setattr(sys, "argv", ["table.py", "cost"])
    assert table.main() == 0
    parts = table.sections(table.TABLE.read_text("utf-8"))
    assert list(parts) == table.NAMES
    assert ["| 2× |" in parts[name] for name in table.NAMES] == [name == "cost" for name in table.NAMES]
    monkeypatch.setattr(sys, "argv", ["table.py", "nothing"])
    assert table.main() == 2


def test_the_table_has_every_benchmark(benchmarks):
    _, table = benchmarks
    assert set(table.sections(table.TABLE.read_text("utf-8"))) <= set(table.NAMES)
