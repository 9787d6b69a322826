"""A stand-in for the engine that grades: answers run in this process. For tests of assignments, never for marks."""

import signal
import sys
import types
from contextlib import contextmanager, suppress

from labkit.classroom.draw import Draw
from labkit.classroom.verdict import Verdict


class Error:
    def __init__(self, error):
        self.kind, self.message, self.line = type(error).__name__, str(error), None


class Answer:
    def __init__(self, value=None, error=None, ended=None):
        self.value, self.error, self.ended = value, error, ended


class Stopped(BaseException):
    pass


@contextmanager
def limited(seconds):
    def stop(*_):
        raise Stopped

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


class Ask:
    def __init__(self, sources, cpu=10.0):
        self.sources, self.cpu = sources, cpu

    def within(self, *, cpu):
        return Ask(self.sources, cpu)

    def __call__(self, driver, /, **data):
        student = {"__name__": "__main__"}
        module = types.ModuleType("driver_in_process")
        sys.modules[module.__name__] = module
        with open(sys.modules[driver.__module__].__file__, encoding="utf-8") as file:
            exec(compile(file.read(), "<driver>", "exec"), module.__dict__)
        try:
            with limited(self.cpu):
                *before, last = self.sources
                for source in before:
                    with suppress(Exception):
                        exec(source, student)
                exec(last, student)
                return Answer(getattr(module, driver.__name__)(student, **data))
        except Stopped:
            return Answer(ended="cpu")
        except Exception as error:
            return Answer(error=Error(error))


def judged(assignment, question, source, student="s1", numbers=None):
    """part id -> verdict of one answer, the others being the solutions."""
    secret = b"a secret"
    if numbers is None:
        numbers = assignment.numbers(Draw.of(secret, student, assignment.name, "numbers"))
    refused = question.refused(source)
    sources = [assignment.prologue(numbers)]
    sources += [other.solution(numbers) for other in assignment.questions if other.id in question.needs]
    found: dict[str, Verdict] = {}
    for part in question.parts:
        draw = Draw.of(secret, student, assignment.name, question.id, part.id).having(numbers)
        found[part.id] = refused or part.judge(Ask([*sources, source]), draw)
    return found
