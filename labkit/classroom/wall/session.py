"""Questions to a student's code: what a judge sees of a worker."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...base.language import say
from .inside import frames
from .workers import Bare, Ended, Limits, Template, Worker


@dataclass(frozen=True)
class Error:
    """What the student's code raised. All of it is the worker's word: plain text within bounds.

    line  of the answer's cell, None if it is not known.
    """

    kind: str
    message: str
    line: int | None = None


@dataclass(frozen=True)
class Answer:
    """What came back.

    value    plain data (see :mod:`.worker.frames`); None unless ``ok``.
    printed  the first letters of what the code printed.
    ended    why nothing came: "cpu", "wall", "memory", "died", "garbled"; None if something did.
    """

    value: Any = None
    error: Error | None = None
    printed: str = ""
    ended: str | None = None

    @property
    def ok(self) -> bool:
        return self.error is None and self.ended is None


@dataclass
class Session:
    """One part of one question: a worker with the student's answers in it, started when it is first asked.

    sources   (name, source) of what is run before the first question is asked, in order; the last is the answer.
    troubles  why workers came to their end: (``Answer.ended``, in words).
    """

    template: Template | Bare
    sources: Sequence[tuple[str, str]]
    limits: Limits = field(default_factory=Limits)
    troubles: list[tuple[str, str]] = field(default_factory=list)
    _worker: Worker | None = None
    _undefined: Answer | None = None

    def answer(self, driver: Callable[..., Any], data: dict[str, Any], limits: Limits) -> Answer:
        """What ``driver(student, **data)`` gives, if the answers can be run at all."""
        module, source = _source(driver)
        if self._undefined:
            return self._undefined
        if self._worker is None:
            defined = self._define(self.sources)
            if defined.ended and len(self.sources) > 2:
                # It may have been another answer that this one may call; an error there costs nothing here.
                defined = self._define([self.sources[0], self.sources[-1]])
            if not defined.ok:
                self._undefined = defined
                return defined
        question = {
            "do": "ask",
            "module": source,
            "module_name": module,
            "driver": driver.__name__,
            "data": data,
        }
        return self._ask(question, limits)

    def _define(self, sources: Sequence[tuple[str, str]]) -> Answer:
        self._worker = self.template.worker(self.limits)
        return self._ask({"do": "define", "sources": [list(pair) for pair in sources]}, self.limits)

    @property
    def undefined(self) -> bool:
        """Whether the answers end their process when they are run, whatever is asked."""
        return self._undefined is not None and self._undefined.ended is not None

    def _ask(self, message: dict[str, Any], limits: Limits) -> Answer:
        assert self._worker is not None
        try:
            reply = self._worker.request(message, limits)
            return _read(reply)
        except (Ended, frames.Garbled) as ended:
            why, told = (ended.why, ended.told) if isinstance(ended, Ended) else ("garbled", str(ended))
            self.troubles.append((why, told))
            self.close()
            return Answer(ended=why)

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@dataclass(frozen=True)
class Ask:
    """What a judge is given: ``ask(drivers.split, rows=30, gpus=8)`` -> :class:`Answer`."""

    session: Session
    limits: Limits

    def __call__(self, driver: Callable[..., Any], /, **data: Any) -> Answer:
        return self.session.answer(driver, data, self.limits)

    def within(self, *, cpu: float) -> Ask:
        """The same with another limit: seconds of processor time for each answer."""
        return Ask(self.session, self.limits.with_cpu(cpu))


def _read(reply: dict[str, Any]) -> Answer:
    """A reply whose every field is looked at before it is believed to be there."""
    error, printed = reply["error"], reply["printed"]
    if type(printed) is not str:
        raise frames.Garbled("no reply")
    printed = harmless(printed[: 1 << 16])
    if error is None:
        return Answer(reply["value"], None, printed)
    if (
        type(error) is not dict
        or set(error) != {"kind", "message", "line"}
        or not all(type(error[name]) is str for name in ("kind", "message"))
        or type(error["line"]) not in (int, type(None))
    ):
        raise frames.Garbled("no error")
    line = error["line"] if error["line"] is None or 0 < error["line"] < 1 << 31 else None
    told = Error(harmless(error["kind"][:200]) or "Exception", harmless(error["message"][:2000]), line)
    return Answer(None, told, printed)


def harmless(text: str) -> str:
    """``text`` without what steers a terminal or turns the direction of writing; line ends and tabs stay."""
    return "".join(c if c in "\n\t" or (c.isprintable() and not _steers(c)) else "\ufffd" for c in text)


def _steers(letter: str) -> bool:
    return "\u202a" <= letter <= "\u202e" or "\u2066" <= letter <= "\u2069"


_sources: dict[str, str] = {}


def _source(driver: Callable[..., Any]) -> tuple[str, str]:
    """The name and the source of the module in which ``driver`` stands; ValueError if it may not be sent."""
    module = inspect.getmodule(driver)
    if module is None or not inspect.isfunction(driver) or driver.__qualname__ != driver.__name__:
        raise ValueError(
            say(
                en=f"ask: {driver!r} must be a function at the top of a module of drivers",
                zh=f"ask：{driver!r} 必须是 drivers 模块顶层的函数",
            )
        )
    if module.__name__ not in _sources:
        source = inspect.getsource(module)
        for node in ast.parse(source).body:
            name = getattr(node, "name", "")
            if name.startswith(("judge", "solution")) or _declares_part(node):
                raise ValueError(
                    say(
                        en=f"{module.__name__} is sent to the student's process and holds `{name}`: "
                        "keep drivers in a module of their own",
                        zh=f"{module.__name__} 会发送到学生的进程里，却含有 `{name}`：请把 drivers 放在单独的模块中",
                    )
                )
        _sources[module.__name__] = source
    return module.__name__, _sources[module.__name__]


def _declares_part(node: ast.AST) -> bool:
    calls = [d.func for d in getattr(node, "decorator_list", ()) if isinstance(d, ast.Call)]
    return any(getattr(call, "id", getattr(call, "attr", "")) == "part" for call in calls)
