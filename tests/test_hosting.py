"""Files for a host of repositories: workflows that call the same commands as at home, templates, the citation."""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.specifiers import SpecifierSet

import labkit
from labkit_cli.doctor import NEWEST, OLDEST

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
TEMPLATES = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))


def read(path: Path):
    return yaml.safe_load(path.read_text("utf-8"))


def steps(workflow):
    return [step for job in read(workflow)["jobs"].values() for step in job["steps"]]


def matrices():
    for workflow in WORKFLOWS:
        for job in read(workflow)["jobs"].values():
            yield from job.get("strategy", {}).get("matrix", {}).get("include", [])


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_what_is_here(workflow):
    commands = "\n".join(step["run"] for step in steps(workflow) if "run" in step)
    targets = re.findall(r"make ([a-z-]+)", commands)
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in targets:
        assert re.search(rf"^{target}:.*##", makefile, re.MULTILINE), f"make {target}"
    for path in re.findall(r"(?:tests/|\.ci/)[\w/]+", commands):
        assert (ROOT / path).exists(), path
    for module in re.findall(r"-m ((?:labkit|tools)[\w.]*)", commands):
        assert (ROOT / (module.replace(".", "/") + ".py")).exists() or (
            ROOT / module.replace(".", "/")
        ).is_dir()
    assert "permissions" in read(workflow), "a token may do no more than it must"


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_the_commands_of_a_workflow_are_commands(workflow):
    """``act`` would run them; this much can be said without it: the shell can read each, and none is left to chance."""
    for step in steps(workflow):
        assert ("run" in step) != ("uses" in step), step
        if "uses" in step:
            assert re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step["uses"])
            continue
        script = re.sub(r"\$\{\{.*?\}\}", "filled-in", step["run"])
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
        for words in (shlex.split(line, comments=True) for line in script.splitlines()):
            programs = {"sudo", "python", "make", "pipx"}
            assert words[0] in programs, words


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


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
def test_an_issue_template_asks_in_both_languages(template):
    form = read(template)
    if template.stem == "config":
        return
    assert {"name", "description", "body"} <= set(form)
    for field in form["body"]:
        words = field["attributes"].get("label") or field["attributes"]["value"]
        assert re.search(r"[一-鿿]", words) or "labkit doctor" in words


def test_the_citation_is_of_this_version():
    citation = read(ROOT / "CITATION.cff")
    assert citation["version"] == labkit.__version__
    assert citation["license"] == PROJECT["license"]


def test_links_of_the_hosts_pages_lead_somewhere():
    for page in (ROOT / ".github").glob("*.md"):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text("utf-8")):
            if not target.startswith("http"):
                assert (page.parent / target).resolve().exists(), f"{page.name}: {target}"


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
