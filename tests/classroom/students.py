"""Students' answers in files of text: sections, each a heading with fields and what stands below it."""

import importlib.util
import re
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def sections(path):
    """The sections of a text: a heading's fields, and what stands below it."""
    for heading, source in re.findall(
        r"^=== (.*)\n((?:(?!===).*\n)*)", path.read_text("utf-8"), re.MULTILINE
    ):
        yield *(field.strip() for field in heading.split("|")), source


def by_question(name):
    """Read a file of answers into parameters of a test, each with its name: assignment, question, other fields, source.

    `make test` tries those of `primitives` and the first of each other assignment, which take seconds each;
    `make test-more` tries the rest.
    """
    seen, found = {"primitives"}, []
    for title, question, *rest in sections(HERE / name):
        assignment, _, short = question.rpartition(".")
        first = assignment and assignment not in seen
        seen.add(assignment)
        marks = () if first or not assignment else pytest.mark.more
        row = (assignment or "primitives", short, *rest)
        found.append(pytest.param(*row, id=f"{question}: {title}", marks=marks))
    return found


def lost_by(parts):
    """Read "rule=floor whose=image:0.5": part -> hint, or (hint, the share of the points that is left)."""
    for part, hint in (field.split("=") for field in parts.split()):
        hint, _, share = hint.partition(":")
        yield part, (hint, float(share)) if share else hint


@cache
def wrong_answers(name):
    """The wrong answers to an assignment: title -> (question, what it loses, source)."""
    path = HERE / "wrong" / f"{name}.txt"
    if path.exists():
        return {
            title: (question, dict(lost_by(loses)), source)
            for title, question, loses, source in sections(path)
        }
    spec = importlib.util.spec_from_file_location(f"wrong_{name}", path.with_suffix(".py"))
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    return module.WRONG
