"""Facts that stand in several files are the same in each, and the README's examples print what it shows."""

import ast
import itertools
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

import labkit
from labkit.base.extras import EXTRA_OF
from labkit.base.language import using
from labkit.base.ours import PACKAGES

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PINS = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text("utf-8").split())
CONDA = {"torch": "pytorch-cpu", "matplotlib": "matplotlib-base"}


def tracked():
    """The files of the repository."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.splitlines() if (ROOT / name).exists()]


def names(requirements):
    return {re.match(r"[\w-]+", requirement)[0] for requirement in requirements}


def test_every_dependency_is_pinned():
    wanted = names(PROJECT["dependencies"]) | names(sum(PROJECT["optional-dependencies"].values(), []))
    assert wanted - {"labkit"} <= set(PINS)
    assert "+" not in PINS["torch"]


def test_the_pins_fit_the_oldest_python_that_is_promised():
    """Debian 12's own Python is 3.11.2: a pin that wants more would leave `make lab` without a solution."""
    from importlib import metadata

    oldest = "3.11.2"
    for name, pin in PINS.items():
        try:
            found = metadata.metadata(name)
        except metadata.PackageNotFoundError:
            continue  # another platform's
        if found["Version"].partition("+")[0] == pin and found["Requires-Python"]:
            assert SpecifierSet(found["Requires-Python"]).contains(oldest), name


def test_no_grammar_is_compiled_where_notebooks_are_read():
    """jsonschema imports rfc3987-syntax from 4.25 on: 1.5 s of each start of pytest and JupyterLab."""
    assert "rfc3987-syntax" not in PINS


def test_every_dependency_has_its_reason():
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    listed = re.findall(r'^    "[a-z][^"]*",.*$', text.partition("[project.scripts]")[0], re.MULTILINE)
    assert len(listed) >= len(PROJECT["dependencies"])
    assert [line for line in listed if "#" not in line and '"labkit[' not in line] == []


def test_what_is_imported_is_declared():
    """Also what another package brings today; and who lacks it is told the extra that has it."""
    files = [file for name in PACKAGES for file in (ROOT / name).rglob("*.py")]
    found = set()
    for node in (node for file in files for node in ast.walk(ast.parse(file.read_text("utf-8")))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module.partition(".")[0])
    beyond = found - set(sys.stdlib_module_names) - names(PROJECT["dependencies"]) - set(PACKAGES)
    assert len(beyond) > 5
    # (The plugin is imported by pytest.)
    assert beyond - set(EXTRA_OF) - {"sitecustomize", "pytest", "_pytest"} == set()
    for package, extra in EXTRA_OF.items():
        assert package in names(PROJECT["optional-dependencies"][extra])


def test_the_environment_is_that_of_pip():
    text = (ROOT / "environment.yml").read_text("utf-8")
    stated = dict(re.findall(r"^  - ([\w-]+)=([\d.]+)$", text, re.MULTILINE))
    wanted = names(PROJECT["dependencies"]) | names(PROJECT["optional-dependencies"]["lab"])
    assert stated.pop("python") >= PROJECT["requires-python"].strip(">=")
    assert "pip:" not in text, "a list for pip takes no --no-deps, and . would be binder/"
    assert stated == {CONDA.get(name, name): PINS[name] for name in wanted}


def test_binder_has_the_same_environment_and_installs_labkit():
    post_build = ROOT / "binder/postBuild"
    assert "pip install --no-deps" in post_build.read_text("utf-8")
    assert post_build.stat().st_mode & 0o111, "Binder runs it"
    assert (ROOT / "binder/environment.yml").read_bytes() == (ROOT / "environment.yml").read_bytes()


def test_no_registry_is_named():
    hosts = re.compile("py" + r"pi\.org|files\.python" + r"hosted|download\.py" + r"torch")
    for name in tracked():
        if not name.endswith(".png"):
            assert not hosts.search((ROOT / name).read_text("utf-8")), name


READMES = {language: ROOT / name for language, name in (("en", "README.md"), ("zh", "README.zh.md"))}
TEXTS = {language: path.read_text("utf-8") for language, path in READMES.items()}


def test_chinese_pages_have_no_false_paragraph_breaks():
    """A line that merely ends becomes a space in the middle of a Chinese sentence."""
    special = re.compile(r"\s*([#>|<-]|\d+\.|```|!\[|$)")
    for page in [READMES["zh"], *(ROOT / "docs").glob("*.zh.md")]:
        prose = re.sub(r"```.*?```", "\n", page.read_text("utf-8"), flags=re.DOTALL).splitlines()
        for line, following in itertools.pairwise(prose):
            began = special.match(line) and not re.match(r"\s*(-|\d+\.) ", line)
            assert began or special.match(following), f"{page.name}: {line[-20:]} / {following[:20]}"


def targets(text):
    return re.findall(r"\]\(([^)#\s]+)\)", text) + re.findall(r'(?:src|href)="([^"]+)"', text)


@pytest.mark.parametrize("target", sorted({target for text in TEXTS.values() for target in targets(text)}))
def test_the_readme_links_lead_somewhere(target):
    if not target.startswith("http"):
        assert (ROOT / target).exists()


def test_the_readme_is_one_page_in_two_languages():
    """Heading for heading, command for command, link for link: what one says, the other says."""
    english, chinese = TEXTS["en"], TEXTS["zh"]
    for pattern in (r"^(#+) ", r"^\| ", r"^```.*"):
        assert re.findall(pattern, english, re.MULTILINE) == re.findall(pattern, chinese, re.MULTILINE)
    blocks = [re.findall(r"^(```.*?)^```$", text, re.DOTALL | re.MULTILINE) for text in (english, chinese)]
    commands = [[block for block in found if not block.startswith("```text")] for found in blocks]
    assert commands[0] == commands[1]

    def plain(target):
        return target.replace(".zh.", ".").replace("/zh/", "/en/")

    both = [{plain(t) for t in targets(text)} for text in (english, chinese)]
    assert both[0] == both[1]
    for language, text in TEXTS.items():
        notebooks = [target for target in targets(text) if "notebooks" in target]
        assert notebooks
        assert all(f"/{language}/" in target for target in notebooks)
    assert all(len(text.splitlines()) <= 110 for text in (english, chinese))
    for command in "make lab", "make test":
        assert command in english[: english.index("<img")], "the two commands are on the first screen"


def test_the_moving_picture_is_that_of_the_explorer():
    """``make renew ARGS=printed`` draws it again."""
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        import picture
    finally:
        sys.path.pop(0)
    for language, name in (("en", "call.svg"), ("zh", "call.zh.svg")):
        with using(language):
            assert (ROOT / "docs" / name).read_text("utf-8") == picture.call_in_motion()


def test_every_link_is_at_the_projects_one_address():
    """``python docs/address.py`` puts them there, after the address in pyproject.toml has changed."""
    done = subprocess.run(
        [sys.executable, ROOT / "docs/address.py", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


def test_the_changelog_knows_this_version():
    assert f"## {labkit.__version__}" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_every_place_that_contributing_names_exists():
    named = set(re.findall(r"`([a-z_]+/[a-z_/.]*)`", (ROOT / "CONTRIBUTING.md").read_text("utf-8")))
    missing = {path for path in named if not (ROOT / path).exists()}
    assert len(named) > 30
    assert not missing
