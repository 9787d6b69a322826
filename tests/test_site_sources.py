"""What the site is gathered from, before it is built; the built pages themselves are in browser/test_site.py."""

import importlib.util
import re
from pathlib import Path

import nbformat
import pytest

import labkit
from labkit.base.language import LANGUAGES, using

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def build():
    spec = importlib.util.spec_from_file_location("site_build", ROOT / "docs/site/build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_has_every_public_name_once(build):
    names = [name for _, _, listed in build.REFERENCE for name in listed.split()]
    assert sorted(names) == sorted(name for name in labkit.__all__ if name != "__version__")


@pytest.mark.parametrize("language", LANGUAGES)
def test_links_of_the_repository_become_links_of_the_site(build, language):
    other = "zh" if language == "en" else "en"
    with using(language):
        lesson = f"[a](../notebooks/{language}/03_split.ipynb#x) [b](../notebooks/{other}/03_split.ipynb)"
        assert build.linked(lesson, ROOT / "docs") == (
            f'[a](lessons/03_split.ipynb#x) <a href="../{other}/lessons/03_split.html">b</a>'
        )
        assert (
            build.linked("[a](docs/simulated.md) [b](https://x.org)", ROOT)
            == "[a](simulated.md) [b](https://x.org)"
        )
        chinese = "[a](ranks.md)" if language == "zh" else '<a href="../zh/ranks.html">a</a>'
        assert build.linked("[a](ranks.zh.md)", ROOT / "docs") == chinese
        picture = '<img src="docs/call.svg">'
        assert build.linked(picture, ROOT) == f'<div class="labkit-view">{picture}</div>'
        assert build.linked(f"[a](b:c) {picture}", ROOT) == f"[a](b:c) {picture}"
        assert re.fullmatch(r"\[a\]\(https://\S+/blob/main/Makefile\)", build.linked("[a](Makefile)", ROOT))


def test_a_lesson_says_where_to_run_it_and_keeps_what_a_prediction_asks_about_closed(build):
    path = ROOT / "notebooks/en/03_split.ipynb"
    page = build.as_page(nbformat.read(path, as_version=4), path)
    assert "labkit lab en/03_split" in page.cells[1].source
    asked = [
        at for at, cell in enumerate(page.cells) if "predict(" in cell.source and cell.cell_type == "code"
    ]
    closed = [at for at, cell in enumerate(page.cells) if "hide-output" in cell.metadata.get("tags", ())]
    assert len(closed) >= 3
    for at in closed:
        assert page.cells[at].outputs
        assert any(before < at for before in asked)
    first = next(at for at, cell in enumerate(page.cells) if at > asked[0] and cell.get("outputs"))
    assert first == closed[0]
    assert all(
        "remove-cell" in cell.metadata.tags for cell in page.cells if "setup" in cell.metadata.get("tags", ())
    )
    stored = [
        output for cell in page.cells for output in cell.get("outputs", ()) if build.explorer_of(output)
    ]
    assert stored
    assert sum(len(output.data["text/html"]) for output in stored) <= build.LIMIT


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_shared_link_shows_what_the_page_is_about(build, language):
    told = build.sharing(language, 'A "title"', "What it is <about>")
    found = dict(re.findall(r'<meta (?:property|name)="([^"]+)" content="([^"]*)">', told))
    assert found["og:title"] == "A &quot;title&quot;"
    assert found["description"] == found["og:description"] == "What it is &lt;about&gt;"
    assert found["og:image"] == f"{build.URLS['Documentation']}/{language}/preview.png"


def test_the_preview_has_the_size_that_is_wanted(build, tmp_path):
    with using("zh"):
        build.preview(tmp_path / "preview.png")
    assert (tmp_path / "preview.png").read_bytes()[16:24] == bytes.fromhex("000004b000000276")  # 1200 × 630
