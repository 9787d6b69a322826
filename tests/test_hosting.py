"""Files for a host of repositories: the Pythons that are run, the citation, the action of others' workflows."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import yaml
from packaging.specifiers import SpecifierSet

import labkit
from labkit_cli.doctor import NEWEST, OLDEST

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def read(path: Path):
    return yaml.safe_load(path.read_text("utf-8"))


def matrices():
    for workflow in WORKFLOWS:
        for job in read(workflow)["jobs"].values():
            yield from job.get("strategy", {}).get("matrix", {}).get("include", [])


def test_the_pythons_that_the_package_names_are_run():
    named = [text.rpartition(" ")[2] for text in PROJECT["classifiers"] if "Python :: 3." in text]
    assert named
    assert set(named) <= {row["python"] for row in matrices() if "python" in row}


def test_the_pythons_and_torches_that_are_run_are_those_that_are_promised():
    rows = [row for row in matrices() if "torch" in row]
    python = SpecifierSet(PROJECT["requires-python"])
    (torch,) = [SpecifierSet(d[len("torch") :]) for d in PROJECT["dependencies"] if d.startswith("torch")]
    assert len(rows) >= 4
    minors = [(int(major), int(minor)) for major, minor in (row["python"].split(".") for row in rows)]
    assert (min(minors), max(minors)) == (OLDEST, NEWEST), "labkit doctor tells of the same"
    assert python == SpecifierSet(">=" + ".".join(map(str, OLDEST)))
    for row in rows:
        assert torch.contains(row["torch"].replace("*", "0")), row


def test_the_citation_is_of_this_version():
    citation = read(ROOT / "CITATION.cff")
    assert citation["version"] == labkit.__version__
    assert citation["license"] == PROJECT["license"]


def test_the_action_runs_commands_that_are_here():
    action = read(ROOT / "action.yml")
    steps = action["runs"]["steps"]
    assert all(step.get("uses") or step["shell"] == "bash" for step in steps)
    commands = "\n".join(step.get("run", "") for step in steps)
    assert set(re.findall(r"inputs\.([\w-]+)", str(steps))) == set(action["inputs"])
    assert "labkit check --sarif" in commands
    command = [sys.executable, "-m", "labkit", "check", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "--sarif FILE" in done.stdout
