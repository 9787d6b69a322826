"""JupyterLab and a real browser: one server and one Chromium for all browser tests.

Without Chromium these tests are left out, and the run says on one line how to get it.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import TimeoutError as PlaywrightTimeout
from playwright.sync_api import sync_playwright

from tools import warm

ROOT = Path(__file__).parents[2]
SHOTS = ROOT / "test-output"
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync",
]  # fmt: skip


def _chromium():
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


_left_out = []


def pytest_collection_modifyitems(config, items):
    if _chromium() is None:
        here = Path(__file__).parent
        _left_out[:] = [item for item in items if here in item.path.parents]
        items[:] = [item for item in items if here not in item.path.parents]
        config.hook.pytest_deselected(items=_left_out)


def pytest_terminal_summary(terminalreporter):
    if _left_out:
        terminalreporter.write_line(
            f"left out: {len(_left_out)} browser tests: no Chromium (Debian: apt install chromium fonts-noto-cjk)",
            yellow=True,
        )


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """The URL of a JupyterLab that serves copies of the lessons."""
    home = tmp_path_factory.mktemp("jupyter")
    root = tmp_path_factory.mktemp("served")
    shutil.copytree(ROOT / "notebooks", root / "notebooks")
    for path in root.rglob("*.ipynb"):
        _as_never_run(path)
    settings = home / "config" / "lab" / "user-settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text(json.dumps({"fetchNews": "false"}))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {
        "JUPYTER_CONFIG_DIR": str(home / "config"), "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "config" / "lab" / "user-settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"), "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "JUPYTER_PATH": warm.kernels(home / "warm"),
    }  # fmt: skip
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}",
        "--IdentityProvider.token=", f"--ServerApp.root_dir={root}", "--LabApp.expose_app_in_browser=True",
    ]  # fmt: skip
    log = open(home / "log", "w")  # noqa: SIM115 (closed below)
    process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_for(f"{url}/api/status", process, home / "log")
        _wait_for(f"{url}/api/kernelspecs", process, home / "log")  # the first listing is slow
        yield url, root
    finally:
        process.terminate()
        process.wait(timeout=30)
        log.close()


def _as_never_run(path):
    """Without stored outputs: what the browser then shows, it has run."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    nbformat.write(notebook, path)


def _wait_for(url, process, log):
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if process.poll() is not None:
            break
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()}")


@pytest.fixture(scope="session")
def browser():
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=_chromium(), args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def look(server, browser):
    """JupyterLab in a theme: one page for all tests, for to load it takes five seconds of a core."""

    def page_of(theme):
        if theme not in _pages:
            page = _pages[theme] = browser.new_page(viewport=WINDOW, color_scheme=theme)
            # The question which kernel to use may come at any time and lies over everything.
            question = page.locator(".jp-Dialog button.jp-mod-accept").last
            page.add_locator_handler(question, lambda button: button.click(), no_wait_after=True)
            page.goto(f"{server[0]}/lab?reset")
            page.wait_for_selector(".jp-Launcher", timeout=60_000)
            _choose_theme(page, theme)
        return _pages[theme]

    return page_of


_pages = {}


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """Closes JupyterLab when other tests follow, for it is never quite still."""
    if nextitem is not None and Path(__file__).parent not in nextitem.path.parents:
        while _pages:
            _pages.popitem()[1].close()


WINDOW = {"width": 1280, "height": 1600}
OPEN = """async path => {
  jupyterapp.shell.expandLeft();
  await jupyterapp.commands.execute('docmanager:open', {path}); }"""
# The launcher stays: where nothing is open JupyterLab opens another one, at any time, before the next notebook.
# Without the second part every kernel that a test used would live, with torch in it, until the last test has run.
CLOSE = """async () => {
  for (const opened of [...jupyterapp.shell.widgets('main')]) if (opened.context) opened.dispose();
  const headers = {'X-XSRFToken': document.cookie.match(/_xsrf=([^;]+)/)?.[1] ?? ''};
  for (const { id } of await (await fetch('/api/sessions')).json())
    await fetch(`/api/sessions/${id}`, {method: 'DELETE', headers}); }"""


@pytest.fixture
def lab(server, look):
    """Opens notebooks: ``lab("notebooks/en/03_split.ipynb")`` gives the page with all cells run."""
    _, root = server
    pages = []

    def open_notebook(path, *, theme="light", cells=None):
        if cells is not None:
            make = {True: nbformat.v4.new_markdown_cell, False: nbformat.v4.new_code_cell}
            made = [make[source.startswith("<")](source) for source in cells]
            notebook = nbformat.v4.new_notebook(cells=made)
            notebook.metadata["kernelspec"] = {
                "name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python",
            }  # fmt: skip
            nbformat.write(notebook, root / path)
        page = look(theme)
        pages.append(page)
        page.set_default_timeout(30_000)
        page.set_viewport_size(WINDOW)
        page.evaluate(OPEN, path)
        page.wait_for_selector(".jp-Notebook .jp-CodeCell", timeout=60_000)
        # Cells that are run before the kernel is there are silently not run.
        page.wait_for_selector('.jp-Notebook-ExecutionIndicator[data-status="idle"]', timeout=60_000)
        run_all(page, path)
        return page

    yield open_notebook
    for page in pages:
        page.evaluate(CLOSE)


def _choose_theme(page, theme):
    """Through the Settings menu, unless JupyterLab (which remembers) has it already."""
    light = "true" if theme == "light" else "false"
    if page.locator("body").get_attribute("data-jp-theme-light") == light:
        return
    page.get_by_role("menuitem", name="Settings").click()
    page.locator(".lm-Menu-itemLabel", has_text="Theme").first.hover()
    page.get_by_text(f"JupyterLab {theme.title()}", exact=True).click()
    page.wait_for_selector(f"body[data-jp-theme-light={light}]", state="attached")


# Wait for the kernel's answer before the command: JupyterLab drops silently what is run while it connects. Bring the
# notebook to the front too, for a launcher that opened late may lie before it. Return when all cells have ended.
RUN_ALL = """async path => {
  const panel = [...jupyterapp.shell.widgets('main')].find(widget => widget.context?.path === path);
  const late = new Promise(resolve => setTimeout(() => resolve('late'), 60_000));
  const ready = async () => {
    await panel.context.ready;
    await panel.sessionContext.ready;
    await panel.sessionContext.session.kernel.info;
    jupyterapp.shell.activateById(panel.id);
    return jupyterapp.commands.execute('notebook:run-all-cells'); };
  const ended = await Promise.race([late, ready().catch(error => `${error}`)]);
  const kernel = panel.sessionContext.session?.kernel;
  return [ended, jupyterapp.shell.currentWidget === panel, kernel?.connectionStatus, kernel?.status]; }"""
NUMBERS = """() => [...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt:not(.jp-Placeholder-prompt)')]
  .map(prompt => prompt.textContent)"""
KERNELS = "async () => (await (await fetch('/api/kernels')).json()).map(kernel => kernel.execution_state)"


def run_all(page, path):
    """Run all cells of the notebook at ``path``, and return when every code cell has a number (a folded one has none).

    Give the command again only after JupyterLab has ended the one before: a second run would put new widgets in the
    place of those that the test has clicked by then.
    """
    tried = []
    for _ in range(4):
        tried.append(page.evaluate(RUN_ALL, path))
        try:
            # (While JupyterLab loads the notebook anew there are no prompts, and of none all have a number.)
            all_numbered = (
                f"() => (texts => texts.length && texts.every(text => /\\d/.test(text)))(({NUMBERS})())"
            )
            page.wait_for_function(all_numbered, timeout=8_000)
            return
        except PlaywrightTimeout:
            tried.append(page.evaluate(NUMBERS))
    raise AssertionError(f"not all cells were run: {tried}; kernels: {page.evaluate(KERNELS)}")


@pytest.fixture
def shot():
    """Keeps a screenshot: ``shot(page_or_element, "name")``."""
    SHOTS.mkdir(exist_ok=True)

    def keep(element, name):
        element.screenshot(path=SHOTS / f"{name}.png")

    return keep
