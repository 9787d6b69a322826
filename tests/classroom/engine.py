"""The engine that grades, for tests: a fork server for assignments with ranks and one for the others."""

from labkit_classroom.draw import Draw
from labkit_classroom.grade import submission as grading
from labkit_classroom.sandbox import isolation
from labkit_classroom.sandbox.inside import ranks

SECRET = b"a secret"


_servers = {}  # whether it has imported what ranks need -> the fork server


def _server(assignment):
    has_ranks = bool(
        assignment.preload
    )  # they open a simulated machine in the server, on which threads take turns
    if has_ranks not in _servers:
        way = isolation.best_sandbox(trust=True)
        _servers[has_ranks] = isolation.start_server(way, ranks.MODULES if has_ranks else ())
    return _servers[has_ranks]


def close():
    """End the servers that were started."""
    while _servers:
        _servers.popitem()[1].close()


def numbers_of(assignment, student):
    return assignment.numbers(Draw.from_secret(SECRET, student, assignment.name, "numbers"))


def marked(assignment, answers, student="s1", limits=None):
    """question id -> its mark, for the answers of one student."""

    def draw(question):
        return Draw.from_secret(SECRET, student, assignment.name, question)

    numbers = numbers_of(assignment, student)
    graded = grading.grade(assignment, answers, numbers, draw, _server(assignment), limits)
    assert not [note for note in graded.troubles if note.kind == "judge"], graded.troubles
    return graded.questions
