"""The site, as a reader meets it: built once, served, every page opened in a real browser."""

import os
import re
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pytest

import labkit
from labkit.base.language import LANGUAGES

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.more  # what the pages are gathered from is held by tests/test_site_sources.py


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, ROOT / "docs/site/build.py", folder, "--most", "40"],  # a site has more of them
        cwd=ROOT, capture_output=True, text=True, encoding="utf-8",
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def address(site):
    """The site as a host serves it: searching fetches pages, which no browser does from a folder."""

    class Silent(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield lambda page: f"http://127.0.0.1:{server.server_port}/{Path(page).relative_to(site).as_posix()}"
        server.shutdown()


def pages(site):
    return sorted(site.rglob("*.html"))


def links(page):
    text = re.sub(r"<script.*?</script>", "", page.read_text("utf-8"), flags=re.DOTALL)
    return re.findall(r'(?:href|src)="([^"]*)"', text)


def test_both_languages_have_the_same_pages(site):
    english, chinese = (
        {page.relative_to(site / language) for page in (site / language).rglob("*.html")}
        for language in LANGUAGES
    )
    assert english == chinese
    lessons = {path.with_suffix(".html").name for path in (ROOT / "notebooks/en").glob("*.ipynb")}
    assert {path.name for path in english if path.parts[0] == "lessons"} == lessons
    assert {path.name.split(".")[0] for path in (ROOT / "docs").glob("*.md")} <= {
        path.stem for path in english
    }


def test_no_link_is_dead(site):
    dead = []
    for page in pages(site):
        for link in links(page):
            path, _, part = link.partition("#")
            if re.match(r"[a-z]+:", link) or path.startswith("data:"):
                continue
            target = (page.parent / unquote(path).partition("?")[0]).resolve() if path else page
            if not target.is_file():
                dead.append(f"{page.relative_to(site)}: {link}")
            elif part and target.suffix == ".html" and not part.startswith("svg-"):
                text = target.read_text("utf-8")
                if f'id="{unquote(part)}"' not in text and f'name="{part}"' not in text:
                    dead.append(f"{page.relative_to(site)}: {link}")
    assert not dead, "\n".join(dead)


def left(request):
    """Whether the reader had gone on before it was answered."""
    return "ERR_ABORTED" in request.failure


@pytest.fixture(scope="module")
def window(browser):
    """A page that remembers what went wrong in it."""
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    page = context.new_page()
    page.wrong = []
    page.on("console", lambda message: message.type == "error" and page.wrong.append(message.text))
    page.on("pageerror", lambda error: page.wrong.append(str(error)))
    page.on("requestfailed", lambda request: left(request) or page.wrong.append(f"not there: {request.url}"))
    yield page
    context.close()


def test_every_page_opens_without_an_error(site, address, window):
    for page in pages(site):
        window.goto(address(page))
        assert not window.wrong, (page.relative_to(site), window.wrong)


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_page_is_readable_on_a_phone(site, address, browser, language):
    context = browser.new_context(viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True)
    page = context.new_page()
    wide = []
    for path in (site / language).rglob("*.html"):
        page.goto(address(path))
        if page.evaluate("document.documentElement.scrollWidth") > 362:
            wide.append(path.relative_to(site))
    context.close()
    assert not wide


def test_the_language_is_switched_on_the_same_page(site, address, window):
    window.goto(address(site / "en/lessons/03_split.html"))
    window.locator(".labkit-language a").click()
    window.wait_for_url("**/zh/lessons/03_split.html")
    assert window.locator("html").get_attribute("lang").startswith("zh")
    window.locator(".labkit-language a").click()
    window.wait_for_url("**/en/lessons/03_split.html")


@pytest.mark.parametrize(("language", "word"), [("en", "idle"), ("zh", "空闲"), ("zh", "permute")])
def test_a_word_is_found(site, address, window, language, word):
    window.goto(address(site / language / "search.html") + f"?q={word}")
    window.locator("#search-results li a").first.wait_for()
    assert window.locator("#search-results li a").count() >= 2


@pytest.mark.parametrize("name", [n for n in labkit.__all__ if n.endswith("Explorer") and n != "Explorer"])
def test_an_explorer_is_alive_in_all_its_controls(site, address, window, name):
    """On its own page, with the keyboard alone, without a kernel."""
    window.goto(address(site / "zh/explorers" / f"{name.removesuffix('Explorer').lower()}.html"))
    controls = window.locator("input[type=range], select")
    explorer = getattr(labkit, name)()
    assert controls.count() == len(explorer._controls) - len(explorer.stays)
    for at in range(controls.count()):
        picture = window.locator(".labkit-view").first.inner_html()
        controls.nth(at).focus()
        for key in ("ArrowRight", "ArrowDown", "ArrowLeft", "ArrowLeft", "ArrowUp"):
            window.keyboard.press(key)
            if window.locator(".labkit-view").first.inner_html() != picture:
                break
        else:
            raise AssertionError(f"{name}: control {at} moves nothing")


@pytest.mark.parametrize("language", LANGUAGES)
def test_an_explorers_own_page_has_a_heading_a_way_back_and_the_readers_theme(
    site, address, browser, language
):
    context = browser.new_context(color_scheme="dark")
    page = context.new_page()
    for path in (site / language / "explorers").glob("*.html"):
        page.goto(address(path))
        assert page.locator("h1").inner_text().endswith("Explorer")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
        page.locator("header a").click()
        page.wait_for_url(f"**/{language}/explorers.html")
    context.close()


@pytest.mark.parametrize("language", LANGUAGES)
def test_words_in_pictures_can_be_read_on_a_phone(site, address, browser, language):
    """A word of 11 pixels is drawn with 11 pixels: the picture is moved in its box. Bars are drawn for a phone."""
    context = browser.new_context(viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True)
    page = context.new_page()
    for path in ("index.html", "explorers/split.html", "explorers.html", "lessons/03_split.html"):
        page.goto(address(site / language / path))
        page.locator(".labkit-view").first.wait_for()
        pictures = page.evaluate(
            "[...document.querySelectorAll('.labkit-view > svg, .labkit-view > img')]"
            ".map(p => [p.clientWidth, p.outerHTML.includes('labkit-narrow')])"
        )
        assert pictures, path
        assert all(width >= (320 if narrow else 700) for width, narrow in pictures), path
    context.close()
