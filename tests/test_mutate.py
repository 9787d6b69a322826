"""The table of the tool that changes labkit by chance names rooms and tests that are there."""

import tomllib
from pathlib import Path

from labkit.base.ours import PACKAGES

ROOT = Path(__file__).parent.parent


def test_what_the_table_names_is_there():
    table = tomllib.loads((ROOT / "tools/mutate.toml").read_text("utf-8"))
    named = [*table["tests"], *(path for paths in table["tests"].values() for path in paths)]
    assert [path for path in named if not (ROOT / path).exists()] == []
    assert all(row["because"] for row in table.get("equivalent", []))
    kept = {"labkit/course", "labkit/classroom", "labkit/distributed"}  # the former paths of public modules
    rooms = {f"labkit/{path.parent.name}" for path in (ROOT / "labkit").glob("*/__init__.py")} - kept
    assert rooms | set(PACKAGES[1:]) <= set(table["tests"])
