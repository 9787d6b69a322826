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
from labkit.cli.doctor import NEWEST, OLDEST

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


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_what_runs_with_another_users_rights_has_the_python_that_was_set_up(workflow):
    """sudo has a PATH of its own."""
    for step in steps(workflow):
        for part in re.findall(r"sudo (.*?)(?:&&|$|#)", step.get("run", ""), re.MULTILINE):
            words = [word for word in shlex.split(part) if not word.startswith("-")]
            assert words[0] in ("apt-get", "sysctl") or words[:2] == ["env", "PATH=$PATH"], part


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_job_that_runs_the_tests_has_installed_what_they_need(workflow):
    for job in read(workflow)["jobs"].values():
        commands = [step.get("run", "") for step in job["steps"]]
        for at, command in enumerate(commands):
            for extra in re.findall(r'\.\[(.+?)\]"', command):
                assert extra in PROJECT["optional-dependencies"]
            if "-m pytest" in command:
                assert any('-e ".[test]"' in before for before in commands[:at])


def test_the_pythons_that_the_package_names_are_run():
    named = [text.rpartition(" ")[2] for text in PROJECT["classifiers"] if "Python :: 3." in text]
    assert named
    assert set(named) <= {row["python"] for row in matrices() if "python" in row}


def test_the_main_workflow_is_the_projects_own_check():
    assert any(".ci/run" in step.get("run", "") for step in steps(ROOT / ".github/workflows/tests.yml"))


def test_the_projects_own_check_runs_the_tests_of_both_kinds():
    """Its last line counts them together."""
    text = (ROOT / ".ci/run").read_text("utf-8")
    assert [name for name in ("make lint", "in test test-more;") if name not in text] == []
    count = text.partition("awk '")[2].partition('\' "$said"')[0]
    said = (
        "= 2 failed, 7 passed, 3 warnings in 60.50s (0:01:00) =\n1 error, 5 passed, 9 deselected in 3.00s\n"
    )
    done = subprocess.run(["awk", count], input=said, capture_output=True, text=True, check=True)
    assert done.stdout == "2 failed, 12 passed, 1 error in 63.50s\n"


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


def test_the_sites_reference_has_a_place_for_every_public_name():
    text = (ROOT / "docs/site/build.py").read_text("utf-8")
    listed = (
        text.partition("REFERENCE = (")[2].partition("\n)")[0].replace('"\n', " ").replace('"', " ").split()
    )
    assert [name for name in labkit.__all__ if name not in listed and name != "__version__"] == []


def test_the_citation_is_of_this_version():
    citation = read(ROOT / "CITATION.cff")
    assert citation["version"] == labkit.__version__
    assert citation["license"] == PROJECT["license"]


def test_a_commit_is_checked_with_the_projects_own_tools():
    (group,) = read(ROOT / ".pre-commit-config.yaml")["repos"]
    assert group["repo"] == "local", "one version of each tool: that of constraints.txt"
    lint = (ROOT / "Makefile").read_text("utf-8").partition("\nlint:")[2].partition("\n\n")[0]
    for hook in group["hooks"]:
        program, *words = hook["entry"].split()
        assert program.startswith(".venv/bin/")
        if program.endswith(("ruff", "mypy")):
            assert program.rpartition("/")[2] in lint
        for word in words:
            assert "/" not in word or (ROOT / word).exists(), word


def test_links_of_the_hosts_pages_lead_somewhere():
    for page in (ROOT / ".github").glob("*.md"):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text("utf-8")):
            if not target.startswith("http"):
                assert (page.parent / target).resolve().exists(), f"{page.name}: {target}"


def test_nothing_hidden_is_left_out_of_git():
    tracked = subprocess.run(
        ["git", "ls-files", ".github", ".pre-commit-config.yaml"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert len(tracked) >= 9


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
