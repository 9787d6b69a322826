"""The page that answers messages quotes them as they are said; both languages answer the same ones."""

import ast
import re
from pathlib import Path

import pytest

from labkit.base.extras import explain_missing
from labkit.base.language import using
from labkit.base.ours import PACKAGES

ROOT = Path(__file__).parents[1]
PAGES = {"en": ROOT / "docs" / "troubleshooting.md", "zh": ROOT / "docs" / "troubleshooting.zh.md"}
# What others say: pip, the shells, Python, JupyterLab, ipywidgets.
OTHERS = {
    "error: externally-managed-environment", "No matching distribution found for torch", "labkit: command not found",
    "running scripts is disabled on this system", "make", "The port 8888 is already in use, trying another port.",
    "ModuleNotFoundError: No module named 'labkit'", "NameError: name '…' is not defined", "[*]", "File Changed",
    "Error displaying widget", "The kernel for … appears to have died. It will restart automatically.",
    "The kernel for … appears to have died.", "… 的内核似乎已经死亡。它将自动重启。", "文件已更改", "Select Kernel",
    "选择内核", "File Save Error for …", "保存文件 … 时出错", "Server Connection Error", "服务器连接错误",
    "Kernel is running over TCP without encryption",
}  # fmt: skip


def headings(language):
    return re.findall(r"^### (.*)$", PAGES[language].read_text("utf-8"), re.MULTILINE)


def said():
    """All that labkit says, as one text, each field of a text as …"""
    texts = [(ROOT / "Makefile").read_text("utf-8")]
    for path in (ROOT / "labkit_cli").glob("*.txt"):
        texts.append(re.sub(r"\{\w+\}", "…", path.read_text("utf-8")))
    for path in (path for name in PACKAGES for path in (ROOT / name).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
            elif isinstance(node, ast.JoinedStr):
                parts = (p.value if isinstance(p, ast.Constant) else "…" for p in node.values)
                texts.append("".join(map(str, parts)))
    return "\n".join(texts)


@pytest.mark.parametrize("language", PAGES)
def test_the_messages_are_quoted_as_they_are_said(language):
    quoted = [quote for heading in headings(language) for quote in re.findall("`([^`]+)`", heading)]
    with using(language):
        everything = f"{said()}\n{explain_missing(ModuleNotFoundError(name='jupyterlab'))}"
    assert len(quoted) > 20
    for quote in set(quoted) - OTHERS:
        for part in quote.split("…"):
            assert part.strip() in everything, quote


def test_what_others_say_is_listed_for_a_reason():
    quoted = {
        quote
        for language in PAGES
        for heading in headings(language)
        for quote in re.findall("`([^`]+)`", heading)
    }
    assert quoted >= OTHERS


def test_both_languages_answer_the_same():
    english, chinese = (PAGES[language].read_text("utf-8") for language in PAGES)
    assert len(headings("en")) == len(headings("zh")) >= 25
    for one, other in zip(english.split("\n## "), chinese.split("\n## "), strict=True):
        assert one.count("\n### ") == other.count("\n### ")
    for name in (
        "labkit-lessons",
        "LABKIT_LESSONS",
        "LABKIT_PROGRESS",
        "ipykernel install",
        "ssh -L",
        "fonts-noto-cjk",
    ):
        assert name in english
        assert name in chinese
