"""The teacher's page: one page in two languages, whose commands exist; the workflow for GitHub Classroom."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from labkit_cli import _parser
from labkit_course.outline import lessons

ROOT = Path(__file__).parents[2]
PAGES = {"en": "teaching.md", "zh": "teaching.zh.md"}
TEXTS = {language: (ROOT / "docs" / name).read_text("utf-8") for language, name in PAGES.items()}
WORKFLOW = ROOT / "docs" / "github-classroom.yml"


def blocks(text):
    return re.findall(r"^```\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def links(text):
    return [
        link.replace("/zh/", "/en/").replace(".zh.md", ".md")
        for link in re.findall(r"\]\(([^)]+)\)", text)
        if "teaching" not in link
    ]


def test_it_is_one_page_in_two_languages():
    english, chinese = TEXTS.values()
    assert blocks(english) == blocks(chinese)
    assert links(english) == links(chinese)
    for pattern in (r"^(#+) ", r"^\| [0-9]", r"^(\|)"):
        assert re.findall(pattern, english, re.MULTILINE) == re.findall(pattern, chinese, re.MULTILINE)


def commands():
    found = [line for text in blocks(TEXTS["en"]) for line in text.splitlines()]
    steps = yaml.safe_load(WORKFLOW.read_text("utf-8"))["jobs"]["grade"]["steps"]
    found += [step["run"].partition(" |")[0] for step in steps if "run" in step]
    return [line for line in found if re.match(r"(\S*/)?labkit ", line)]


@pytest.mark.parametrize("line", commands())
def test_every_command_is_one(line):
    _, *arguments = shlex.split(line)
    if arguments[0] == "lessons":
        pytest.importorskip("labkit_cli.lessons")
    assert _parser(arguments[0]).parse_args(arguments).command == arguments[0]


def test_there_are_some_commands():
    assert len(commands()) >= 7


@pytest.mark.parametrize("language", PAGES)
def test_its_links_lead_somewhere_and_every_lesson_has_its_place(language):
    text = TEXTS[language]
    for link in re.findall(r"\]\(([^)]+)\)", text):
        assert (ROOT / "docs" / link).resolve().exists(), link
    plan = "\n".join(line for line in text.splitlines() if re.match(r"\| \d+ \|", line))
    assert [entry.number for entry in lessons() if entry.number not in plan] == []


@pytest.mark.parametrize("language", PAGES)
def test_its_minutes_are_those_of_the_lessons(language):
    minutes = {entry.number: entry.minutes for entry in lessons()}
    for row in re.findall(r"^\| \d+ \| (.*?) \|", TEXTS[language], re.MULTILINE):
        each = [minutes[number] for number in re.findall(r"\[(\d\d)\]", row)]
        assert list(map(int, re.findall(r"(\d+) (?:and|和|min|分钟)", row))) in (each, [sum(each)])


def test_the_workflow_may_read_and_nothing_more():
    told = yaml.safe_load(WORKFLOW.read_text("utf-8"))
    assert told["permissions"] == {"contents": "read"}
    assert "pull_request_target" not in WORKFLOW.read_text("utf-8")
