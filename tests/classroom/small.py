"""A small assignment for the tests of the desk: two questions, and whatever the desk asks of one."""

import ast
from dataclasses import dataclass
from types import SimpleNamespace


def body(source):
    return ast.dump(ast.parse(source))


@dataclass(frozen=True)
class Question:
    id: str
    defines: tuple
    points: float
    stub_text: str
    solution_text: str
    parts: tuple = ()
    title: object = None

    def stub(self, numbers):
        return self.stub_text

    def solution(self, numbers):
        return self.solution_text

    def unanswered(self, source, numbers):
        return body(source) == body(self.stub_text)


SPLIT = Question(
    "split",
    ("split",),
    6,
    "def split(rows, gpus):\n    ...\n",
    "def split(rows, gpus):\n    return hidden(rows)\n",
)
SCATTER = Question(
    "scatter", ("scatter",), 4, "def scatter(x, n):\n    ...\n", "def scatter(x, n):\n    return x\n"
)
QUESTIONS = (SPLIT, SCATTER)


def cell(id, kind, role, source, question=None):
    return SimpleNamespace(id=id, kind=kind, role=role, source=source, question=question)


def cells():
    """An edition's cells, as an assignment gives them."""
    return [
        cell("intro", "text", "text", "# A small assignment"),
        cell("given", "code", "given", "import torch\nbase = 3"),
        cell("split-text", "text", "text", "## Split", "split"),
        cell("split", "code", "answer", "# labkit: small.split\n" + SPLIT.stub({}), "split"),
        cell("split-check", "code", "check", "check('small.split')", "split"),
        cell("scatter", "code", "answer", SCATTER.stub({}), "scatter"),
        cell("scatter-check", "code", "check", "check('small.scatter')", "scatter"),
    ]
