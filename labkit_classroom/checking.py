"""Check answers in a student's notebook, which calls ``begin`` at its start and ``check`` below each answer.

A check runs the judges of grading in the notebook's process, on open cases; grading draws others. An assignment whose
judges are not in the notebook, or cannot run there, declares checks in ``checks.py``::

    @visible("split", "split", en="a function of `rows` and `gpus`", zh="一个以 `rows` 和 `gpus` 为参数的函数")
    def _split(student):
        got = drivers.split(student, rows=9, gpus=4)
        if got != [3, 3, 3]:
            yield Hint("rule", en=..., zh=...)
"""

from __future__ import annotations

import ast
import importlib
import inspect
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from labkit.base.language import check_language, set_language, wrong
from labkit.base.texts import texts_beside
from labkit_course.answers import ShownVerdict
from simgpu import use_gpus

from .assignment import load
from .draw import OPEN, Draw
from .folders import names, package_of
from .in_kernel import call_in_kernel
from .judging import Ask, Reply, RubricPart
from .meeting import MeetingPoint as MeetingPoint
from .messages import Problem, Words
from .source import parse_source
from .verdict import Hint

_TEXTS = texts_beside(__file__)
GPUS = 4

Student = Mapping[str, Any]
Check = Callable[[Student], Iterator[Hint]]


@dataclass(frozen=True)
class QuestionCheck:
    """The check of one question.

    names     the names that its answer defines.
    parts     what judges it.
    without   names of functions that an answer may not use, as grading removes them.
    """

    names: tuple[str, ...]
    parts: tuple[RubricPart, ...]
    without: tuple[str, ...] = ()


@dataclass(frozen=True)
class VisibleCheck:
    """A check that an assignment declares in ``checks.py``, in place of its judges."""

    question: str
    check: QuestionCheck


def visible(question: str, *names: str, en: str, zh: str) -> Callable[[Check], VisibleCheck]:
    """Declare the check of ``question``: the decorated generator yields a hint for each mistake.

    Its argument is a mapping from the answer's ``names`` to their values, and from ``"numbers"`` to the numbers of the
    student's edition. ``en`` and ``zh`` say what the answer is.
    """

    def declare(check: Check) -> VisibleCheck:
        def judge(ask: Ask, draw: Draw) -> Iterator[Hint]:
            yield from ask(lambda student: list(islice(check(student), 1)))

        part = RubricPart(question, check.__name__, 0, Words(en, zh), judge)
        return VisibleCheck(question, QuestionCheck(names, (part,)))

    return declare


# assignment -> the checks by question, and the numbers of the student's edition
_begun: dict[str, tuple[dict[str, QuestionCheck], dict[str, Any]]] = {}


def begin(
    name: str, *, language: str, carried: Mapping[str, str] | None = None, **numbers: int | str
) -> None:
    """Begin an assignment: set the language, use four GPUs (simulated ones if need be), load the checks.

    carried   the sources of a teacher's own modules by name, {} without checks; None for labkit's assignments.
    numbers   the numbers of the student's edition.
    """
    check_language(language)
    found: dict[str, QuestionCheck] = {}
    if carried is None:
        if name not in names():
            raise Problem(
                en=f"this labkit has no assignment {name!r}: it may be newer than your installation",
                zh=f"这个版本的 labkit 没有作业 {name!r}：可能需要升级 labkit",
            )
        assignment = load(name)
        package = package_of(assignment.folder)
        numbers = assignment.numbers(None) | numbers
        for asked in assignment.questions:
            found[asked.id] = QuestionCheck(asked.defines, asked.parts, asked.without)
        has_checks = (assignment.folder / "checks.py").exists()
    else:
        package, has_checks = _import_carried_modules(carried), "checks" in carried
    declared = vars(importlib.import_module(f"{package}.checks")) if has_checks else {}
    for own in declared.values():
        if isinstance(own, VisibleCheck):
            without = found[own.question].without if own.question in found else ()
            found[own.question] = replace(own.check, without=without)
    set_language(language)
    use_gpus(GPUS)
    _begun[name] = found, numbers


def check(question: str, *answer: object) -> ShownVerdict:
    """Try an answer on open cases; ``question`` is ``"assignment.question"``.

    answer   the values that the answer cell defines, in order: ``check("primitives.split", split)``.
    """
    name, _, id = question.partition(".")
    checks, numbers = _begun.get(name, ({}, {}))
    if id not in checks:
        known = ", ".join(f"{name}.{id}" for name, (checks, _) in _begun.items() for id in checks)
        raise Problem(
            en=f"there is no check {question!r}; run the first code cell, then it is one of: {known}",
            zh=f"没有检查 {question!r}；先运行第一个代码单元格，然后可以是：{known}",
        )
    found = checks[id]
    if len(answer) != len(found.names):
        call = f'check("{question}", {", ".join(found.names)})'
        raise wrong(TypeError, en=f"write {call}", zh=f"请写成 {call}")
    if any(value is None or value is ... or _is_empty(value) for value in answer):
        return ShownVerdict(None, _TEXTS["unanswered"](), None)
    if taken := next(_find_banned_names(answer, found.without), None):
        return ShownVerdict(False, _TEXTS["taken"](taken=taken), None)
    engine = call_in_kernel({**dict(zip(found.names, answer, strict=True)), "numbers": numbers})
    draw = Draw.from_secret(OPEN, name, id)
    try:
        hints = (part.judge(engine, draw.with_numbers(numbers)) for part in found.parts)
        hint = next(filter(None, hints), None)
    except Exception as error:  # of a judge that cannot handle the object
        hint = Reply.from_error(type(error).__name__, str(error)).hint
    if hint is None:
        return ShownVerdict(True, _TEXTS["right"](), None)
    return ShownVerdict(False, str(hint), None)


def _is_empty(value: object) -> bool:
    """Return whether ``value`` is a function without a body, as in the untouched cell."""
    code = getattr(value, "__code__", None)
    return code is not None and code.co_code == (lambda: None).__code__.co_code and code.co_consts == (None,)


def _find_banned_names(answer: Sequence[object], without: Sequence[str]) -> Iterator[str]:
    """Yield the banned names in an answer's functions."""
    for value in answer:
        try:
            tree = parse_source(inspect.getsource(value))  # type: ignore[arg-type]  # TypeError without a source
        except (TypeError, OSError):
            continue
        known = getattr(value, "__globals__", {})
        for node in ast.walk(tree) if tree else ():
            chain: list[str] = []
            while isinstance(node, ast.Attribute):
                chain.insert(0, node.attr)
                node = node.value
            at = known.get(node.id) if isinstance(node, ast.Name) else None
            while chain and isinstance(at, types.ModuleType):
                at = getattr(at, chain.pop(0), None)
            name = f"{getattr(at, '__module__', '')}.{getattr(at, '__qualname__', '')}"
            if any(name.startswith(f"{gone}.") for gone in without if "." in gone):
                yield name


def _import_carried_modules(sources: Mapping[str, str]) -> str:
    """Import the modules in a notebook as a package; return the package's name."""
    with TemporaryDirectory() as folder:
        for module, source in sources.items():
            Path(folder, f"{module}.py").write_text(source, "utf-8")
        package = package_of(Path(folder))
        for module in sources:
            importlib.import_module(f"{package}.{module}")
    return package
