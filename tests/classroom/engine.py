"""The engine that grades, for tests: one fork server for all assignments."""

from labkit_classroom.draw import Draw
from labkit_classroom.grade import submission as grading
from labkit_classroom.sandbox import isolation
from labkit_classroom.sandbox.inside import ranks

SECRET = b"a secret"


_servers = []


def server():
    """Return a server that has imported what ranks need."""
    if not _servers:
        _servers.append(isolation.start_server(isolation.best_sandbox(trust=True), ranks.MODULES))
    return _servers[0]


def close():
    """End the server if it was started."""
    while _servers:
        _servers.pop().close()


def numbers_of(assignment, student):
    return assignment.numbers(Draw.from_secret(SECRET, student, assignment.name, "numbers"))


def marked(assignment, answers, student="s1", limits=None):
    """question id -> its mark, for the answers of one student."""

    def draw(question):
        return Draw.from_secret(SECRET, student, assignment.name, question)

    numbers = numbers_of(assignment, student)
    graded = grading.grade(assignment, answers, numbers, draw, server(), limits)
    assert not [note for note in graded.troubles if note.kind == "judge"], graded.troubles
    return graded.questions
