"""The table of the tool that changes labkit by chance names rooms and tests that are there."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_what_the_table_names_is_there():
    table = tomllib.loads((ROOT / "tools/mutate.toml").read_text("utf-8"))
    named = [*table["tests"], *(path for paths in table["tests"].values() for path in paths)]
    assert [path for path in named if not (ROOT / path).exists()] == []
    assert all(row["because"] for row in table.get("equivalent", []))
    rooms = {f"labkit/{path.name}" for path in (ROOT / "labkit").iterdir() if (path / "__init__.py").exists()}
    assert rooms <= set(table["tests"])
