"""Asks a student's code behind the wall, on the judge's side."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..judging import Answer, Part, Raised
from ..words import Problem, harmless
from .templates import Bare, Template
from .workers import Ended, Limits, Worker


@dataclass
class Session:
    """One question of a submission: a worker with the student's answers in it, started when it is first asked.

    The answers run once. Each part's questions are answered by a process forked of that, so that what one leaves
    behind costs the next nothing; where that ends, the answers run again.

    sources   (name, source) of what is run before the first question is asked, in order; the last is the answer.
    limits    of each request from now on.
    without   dotted names of what does not exist for them.
    troubles  why workers came to their end: (``Answer.ended``, in words).
    """

    template: Template | Bare
    sources: Sequence[tuple[str, str]]
    limits: Limits = field(default_factory=Limits)
    without: Sequence[str] = ()
    troubles: list[tuple[str, str]] = field(default_factory=list)
    _worker: Worker | None = None
    _undefined: Answer | None = None
    _in_part: bool = False

    def answer(
        self, driver: Callable[..., Any], data: dict[str, Any], cpu: float | None = None, meet: int = 0
    ) -> Answer:
        """Gives the result of ``driver(student, **data)``, if the answers can be run; the rest: :data:`.Engine`."""
        module, source = _source(driver)
        if self._worker is None and self._undefined is None:
            defined = self._define(self.sources)
            if defined.ended and len(self.sources) > 2:
                # It may have been another answer that this one may call; an error there costs nothing here.
                defined = self._define([self.sources[0], self.sources[-1]])
            self._undefined = None if defined.ok else defined
        if self._undefined is not None:
            return self._undefined
        if not self._in_part:
            begun = self._ask({"do": "part"}, self.limits)
            if not begun.ok:
                return begun
            self._in_part = True
        limits = self.limits if cpu is None else replace(self.limits, cpu=cpu)
        asked = {"module": source, "module_name": module, "driver": driver.__name__, "data": data}
        found = self._ask({"do": "ask", "meet": meet, **asked}, limits, meet)
        if meet and not found.met:  # numbers are left that the next meeting must not find
            self.close()
        return found

    def end_part(self) -> None:
        """No more is asked for this part of the question."""
        if self._in_part and self._worker is not None:
            self._ask({"do": "done"}, self.limits)
        self._in_part = False

    def _define(self, sources: Sequence[tuple[str, str]]) -> Answer:
        self._worker = self.template.worker(self.limits, self.without)
        return self._ask({"do": "define", "sources": [list(pair) for pair in sources]}, self.limits)

    def _ask(self, message: dict[str, Any], limits: Limits, meet: int = 0) -> Answer:
        assert self._worker is not None
        try:
            found = _read(self._worker.request(message, limits, meet))
            return replace(found, met=tuple(self._worker.met))
        except Ended as ended:
            self.troubles.append((ended.why, str(ended)))
            self.close()
            return Answer(ended=ended.why)

    def close(self) -> None:
        self._in_part = False
        if self._worker is not None:
            self._worker.close()
            self._worker = None


def _read(reply: dict[str, Any]) -> Answer:
    """Makes an answer of a reply, after a look at every field of it."""
    error = reply["error"]
    if error is None:
        return Answer(reply["value"])
    if (
        type(error) is not dict
        or set(error) != {"kind", "message", "line"}
        or not all(type(error[name]) is str for name in ("kind", "message"))
        or type(error["line"]) not in (int, type(None))
    ):
        raise Ended("garbled", "no error")
    line = error["line"] if error["line"] is None or 0 < error["line"] < 1 << 31 else None
    told = Raised(harmless(error["kind"][:200]) or "Exception", harmless(error["message"][:2000]), line)
    return Answer(error=told)


_sources: dict[str, str] = {}


def _source(driver: Callable[..., Any]) -> tuple[str, str]:
    """Gives name and source of the module in which ``driver`` stands; Problem if it may not be sent."""
    module = inspect.getmodule(driver)
    if module is None or not inspect.isfunction(driver) or driver.__qualname__ != driver.__name__:
        raise Problem(
            en=f"ask: {driver!r} must be a function at the top of a module of drivers",
            zh=f"ask：{driver!r} 必须是 drivers 模块顶层的函数",
        )
    if module.__name__ not in _sources:
        for name, value in vars(module).items():
            if isinstance(value, Part) or name.startswith(("judge", "solution")):
                raise Problem(
                    en=f"{module.__name__} is sent to the student's process and holds `{name}`: "
                    "keep drivers in a module of their own",
                    zh=f"{module.__name__} 会发送到学生的进程里，却含有 `{name}`：请把 drivers 放在单独的模块中",
                )
        _sources[module.__name__] = inspect.getsource(module)
    return module.__name__, _sources[module.__name__]
