"""The packages: built from here, installed elsewhere, used without the repository and without what nobody declared."""

import json
import os
import re
import socket
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from labkit.base.ours import PACKAGES

ROOT = Path(__file__).parents[1]


def outside(command, cwd, **more):
    """Run a command as somebody would who has never seen the repository."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "LABKIT", "JUPYTER"))
    }
    home = {"HOME": str(cwd), "USERPROFILE": str(cwd), "IPYTHONDIR": str(cwd / ".ipython")}
    return subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=inherited | home | more,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The source archive and the wheel."""
    folder = tmp_path_factory.mktemp("dist")
    done = outside([sys.executable, "-m", "hatchling", "build", "-d", folder], ROOT)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.tar.gz")), next(folder.glob("*.whl"))


def tracked(*under):
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", *under],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return {name for name in listed.stdout.splitlines() if (ROOT / name).exists()}


def test_the_wheel_has_the_library_its_content_the_lessons_and_nothing_else(built):
    with zipfile.ZipFile(built[1]) as wheel:
        held = {name for name in wheel.namelist() if ".dist-info/" not in name}
        notebooks = {name: wheel.read(name) for name in held if name.endswith(".ipynb")}
    library = tracked(*PACKAGES)
    lessons = {
        name.replace("notebooks/", "labkit_course/lessons/")
        for name in tracked("notebooks")
        if name.endswith(".ipynb")
    }
    assert held == library | lessons
    assert held >= {f"{name}/py.typed" for name in PACKAGES}, "type checkers look at what it says"
    assert len(notebooks) >= 20
    for name, content in notebooks.items():
        assert content == (ROOT / name.replace("labkit_course/lessons/", "notebooks/")).read_bytes()


def test_the_source_archive_has_what_it_takes_to_build_and_test(built):
    with tarfile.open(built[0]) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert tracked(*PACKAGES, "notebooks", "tests", "docs", "release") <= held
    assert {"pyproject.toml", "README.md", "LICENSE", "constraints.txt", "Makefile"} <= held


def test_the_source_archive_builds_the_same_wheel(built, tmp_path):
    with tarfile.open(built[0]) as archive:
        archive.extractall(tmp_path)  # our own; 3.11.2 knows no filter
    folder = next(tmp_path.iterdir())
    done = outside([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path], folder)
    assert done.returncode == 0, done.stderr
    assert next(tmp_path.glob("*.whl")).read_bytes() == built[1].read_bytes()


def test_pytest_finds_its_plugin(built):
    _, wheel = built
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith("entry_points.txt"))
        told = archive.read(name).decode()
    assert "[pytest11]\nlabkit.pytest_plugin = labkit.pytest_plugin" in told


def test_what_the_package_says_of_itself(built):
    with zipfile.ZipFile(built[1]) as wheel:
        said = metadata.PathDistribution(
            zipfile.Path(
                wheel,
                next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA")).rpartition("/")[0]
                + "/",
            )
        ).metadata
        text = said.get_payload()
    assert said["Summary"]
    assert said["License-Expression"] == "BSD-3-Clause"
    assert said["Description-Content-Type"] == "text/markdown"
    assert "Natural Language :: Chinese (Simplified)" in said.get_all("Classifier")
    urls = dict(line.split(", ") for line in said.get_all("Project-URL"))
    links = re.findall(r"\]\(([^)]+)\)", text) + re.findall(r'(?:src|href)="([^"]+)"', text)
    assert len(links) > 10
    assert [link for link in links if not link.startswith("https://")] == []
    own = [link for link in links if link.startswith(urls["Repository"])]
    assert len(own) > 10
    for link in own:
        assert (ROOT / re.sub(r"^.*?/(?:blob|raw)/HEAD/", "", link)).exists(), link


def closure(requirements):
    """The distributions of this environment that ``requirements`` bring, their own requirements included."""
    found, waiting = {}, [Requirement(line) for line in requirements]
    while waiting:
        wanted = waiting.pop()
        for extra in {"", *wanted.extras}:
            if (wanted.name, extra) in found or (
                wanted.marker and not any(wanted.marker.evaluate({"extra": e}) for e in {"", extra})
            ):
                continue
            there = found[wanted.name, extra] = metadata.distribution(wanted.name)
            for line in there.requires or ():
                inner = Requirement(line)
                if not inner.marker or inner.marker.evaluate({"extra": extra}):
                    inner.marker = None
                    waiting.append(inner)
    return {there.metadata["Name"] for there in found.values()}, list(found.values())


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """``installed("lab")`` gives the folder of a virtual environment with the wheel and what its metadata asks for."""

    def install(extra):
        folder = tmp_path_factory.mktemp(f"env-{extra or 'core'}")
        venv.create(folder, with_pip=False)
        scripts = folder / ("Scripts" if os.name == "nt" else "bin")
        done = outside(
            [
                sys.executable, "-m", "pip", "--python", scripts / "python", "install", "-q", "--no-compile",
                "--no-deps", "--no-index", built[1],
            ],
            folder,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        site = next(folder.rglob("site-packages"))
        own = next(iter(metadata.distributions(path=[str(site)])))
        asked = [Requirement(line) for line in own.requires]
        names, distributions = closure(
            [str(r).partition(";")[0] for r in asked if not r.marker or r.marker.evaluate({"extra": extra})]
        )
        for there in distributions:  # as they lie in this environment, which has room for one torch
            for top in {
                file.parts[0] for file in there.files if not file.parts[0].startswith((".", "__pycache__"))
            }:
                if not (site / top).exists():
                    (site / top).symlink_to(there.locate_file(top))
        if extra:
            (folder / "share").symlink_to(Path(sys.prefix, "share"))  # JupyterLab's pages
        return scripts, names

    return install


def test_the_core_needs_torch_numpy_and_filelock(installed, tmp_path):
    scripts, names = installed("")
    assert not names & {"jupyterlab", "ipywidgets", "matplotlib", "nbformat", "IPython"}
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, labkit\n"
        "print(torch.cuda.device_count(), labkit.__file__)\n"
        "print(labkit.diagnose(torch.nn.Linear(5, 2), torch.randn(8, 5), gpus=2).ok)\n"
        "for make in (lambda: labkit.draw_split(10, 8), lambda: labkit.SplitExplorer):\n"
        "    try:\n"
        "        make()\n"
        "    except ImportError as error:\n"
        "        print(error)\n"
    )
    done = outside([scripts / "labkit", "run", "--gpus", "8", script], tmp_path)
    assert done.returncode == 0, done.stderr
    count, ok, figure, explorer = done.stdout.splitlines()
    assert count == f"8 {next(scripts.parent.rglob('site-packages'))}/labkit/__init__.py"
    assert ok == "True"
    assert figure == 'this needs matplotlib: pip install "labkit[lab]"'
    assert explorer == 'this needs ipywidgets: pip install "labkit[lab]"'
    done = outside([scripts / "labkit", "lab"], tmp_path)
    assert (done.returncode, done.stdout) == (69, "")
    assert done.stderr.startswith("labkit: this needs jupyterlab, ipykernel")
    assert outside([scripts / "labkit", "lessons", "copy", "here"], tmp_path).returncode == 0
    assert (tmp_path / "here" / "zh" / "03_split.ipynb").is_file()


def answer(url, server):
    """The server's answer; it is asked again while it does not listen yet, for it says its address just before."""
    while server.poll() is None:
        try:
            return urllib.request.urlopen(url)
        except urllib.error.URLError as error:
            if not isinstance(error.reason, ConnectionRefusedError):
                raise
    raise AssertionError(server.stdout.read())


@pytest.mark.more  # tests/browser and tests/course/test_sweep.py open and run the repository's
def test_the_course_opens_and_runs_without_the_repository(installed, tmp_path):
    scripts, _ = installed("lab")
    done = outside(
        [scripts / "labkit", "sweep", "00_start", "--gpus", "2", "--lang", "zh"], tmp_path, PYTHONUTF8="1"
    )
    assert done.returncode == 0, done.stderr
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {
        "HOME": str(tmp_path), "LABKIT_LESSONS": "", "PYTHONPATH": "", "PYTHONUTF8": "1",
    }  # fmt: skip
    with subprocess.Popen(
        [scripts / "labkit", "lab", "--port", str(port), "--lang", "zh", "--", "--no-browser"],
        cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8",
    ) as server:  # fmt: skip
        try:
            url = next(found[0] for line in server.stdout if (found := re.search(r"http://127\S+", line)))
            page, _, token = url.partition("?")
            assert "/lab/tree/zh/index.ipynb" in page
            assert answer(url, server).status == 200
            contents = page.replace("lab/tree", "api/contents") + f"?{token}"
            cells = json.load(urllib.request.urlopen(contents))["content"]["cells"]
            assert not any(cell.get("outputs") for cell in cells)
        finally:
            server.terminate()
            server.stdout.read()
    assert (tmp_path / "labkit-lessons" / "zh" / "index.ipynb").is_file()
