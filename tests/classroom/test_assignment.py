"""An assignment's folder, read: its notebook in both languages, its stubs and solutions, its rubric."""

import pytest

from labkit.classroom.assignment import load
from labkit.classroom.folders import names
from labkit.classroom.source import unanswered


@pytest.mark.parametrize("name", names())
def test_the_students_notebook_has_no_solution(name):
    assignment = load(name)
    numbers = assignment.numbers(None)
    for language in ("en", "zh"):
        sources = [cell.source for cell in assignment.cells(language, numbers)]
        for question in assignment.questions:
            assert question.stub(numbers) in sources
            assert question.solution(numbers) not in sources
            assert unanswered(f"\n{question.stub(numbers)}\n# nothing yet", question.stub(numbers))
            assert not unanswered(question.solution(numbers), question.stub(numbers))
