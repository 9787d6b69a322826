"""The engine that grades, for tests: one fork server for all files, started when it is first wanted."""

from functools import cache

from labkit_classroom.draw import Draw
from labkit_classroom.grade import submission as grading
from labkit_classroom.sandbox import isolation
from labkit_classroom.sandbox.inside import ranks

SECRET = b"a secret"


@cache
def template():
    return isolation.start_server(isolation.best_sandbox(trust=True), ranks.MODULES)


def close():
    """End it, if it was started."""
    if template.cache_info().currsize:
        template().close()
        template.cache_clear()


def numbers_of(assignment, student):
    return assignment.numbers(Draw.from_secret(SECRET, student, assignment.name, "numbers"))


def marked(assignment, answers, student="s1", limits=None):
    """question id -> its mark, for the answers of one student."""

    def draw(question):
        return Draw.from_secret(SECRET, student, assignment.name, question)

    numbers = numbers_of(assignment, student)
    graded = grading.grade(assignment, answers, numbers, draw, template(), limits)
    assert not [note for note in graded.troubles if note.kind == "judge"], graded.troubles
    return graded.questions
