"""``labkit lab`` as a Chinese reader meets it: a copy without outputs, and a repository that nothing happens to."""

import json
import os
import re
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from playwright.sync_api import TimeoutError

ROOT = Path(__file__).parents[2]


def status():
    """The state of the lessons' folder, without the scripts that lesson 18 writes: it may run beside this test."""
    without = [":!*__pycache__*", ":!*/wide*.py"]
    command = ["git", "status", "--porcelain", "--ignored", "--", "notebooks"] + without
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    files = [path for path in (ROOT / "notebooks").rglob("*") if path.is_file()]
    return done.stdout, {path: path.read_bytes() for path in files if not path.match("wide*.py")}


@pytest.fixture
def course(tmp_path):
    """The address that ``labkit lab`` prints, and the folder of the copy."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {
        "HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "LANG": "zh_CN.UTF-8", "LC_ALL": "", "LABKIT_LANG": "",
        "LABKIT_LESSONS": "", "PYTHONUTF8": "1", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    command = [sys.executable, "-m", "labkit", "lab", "--port", str(port), "--", "--no-browser"]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8"
    ) as server:
        try:
            told = []
            for line in server.stdout:
                told.append(line)
                if found := re.fullmatch(r"  (http://127\S+)\n", line):  # our own line, once it answers
                    yield found[1], tmp_path / "labkit-lessons", "".join(told)
                    break
        finally:
            server.terminate()
            server.stdout.read()


def test_the_course_opens_in_a_copy_and_the_repository_stays_clean(course, browser, shot):
    before = status()
    url, folder, told = course
    assert f"你的课程副本在 {folder}" in told
    assert "JupyterLab 已就绪" in told
    page = browser.new_context(viewport={"width": 1280, "height": 1000}).new_page()
    try:
        page.goto(url)
        page.get_by_role("heading", name="多 GPU 训练").first.wait_for()
        assert page.locator("html").get_attribute("lang") == "zh-CN"
        assert page.locator(".jp-Notebook .jp-OutputArea-output").count() == 0
        shot(page, "lab-index-zh")
        page.get_by_role("link", name="02 · 包装模型之后，什么变了？").click()
        page.get_by_role("heading", name="02 · 包装模型之后，什么变了？").wait_for()
        shown = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")
        shown.locator(".jp-CodeCell").nth(2).wait_for()
        assert shown.locator(".jp-OutputArea-output").count() == 0
        assert not json.loads((folder / "zh" / "02_wrap.ipynb").read_text("utf-8"))["cells"][2].get("outputs")

        shown.locator('.jp-Notebook-ExecutionIndicator[data-status="idle"]').wait_for(timeout=60_000)
        for _ in range(8):  # while JupyterLab connects a kernel, it drops what it is told, or asks about it
            for asked in page.locator("dialog.jp-Dialog .jp-mod-accept").all():
                asked.click()
            shown.locator(".jp-CodeCell .cm-content").first.click()
            for _ in range(3):  # parameters, the folded installation, begin
                page.keyboard.press("Shift+Enter")
            with suppress(TimeoutError):
                shown.get_by_text("3 块模拟 GPU：cuda:0").wait_for(timeout=8_000)
                break
        shot(page, "lab-lesson-zh")
        # (A predicate of wait_for_function that is asynchronous is taken for true at once.)
        saved = re.compile(r"/api/contents/zh/02_wrap\.ipynb")
        with page.expect_response(lambda told: told.request.method == "PUT" and saved.search(told.url)):
            page.keyboard.press("Control+s")
    finally:
        page.context.close()
    assert "模拟 GPU：cuda:0" in (folder / "zh" / "02_wrap.ipynb").read_text("utf-8")
    assert status() == before
