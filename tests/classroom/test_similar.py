"""Answers that are alike: renamed, in another order, in groups of any size; and those that are like the solution."""

import random

import pytest

from labkit_classroom.results.similar import similar

SOLUTION = """def scatter(inputs, devices):
    sizes = split(len(inputs), len(devices))
    pieces = inputs.split(sizes)
    return [piece.to(device) for piece, device in zip(pieces, devices)]
"""
COPIED = """def scatter(inputs, devices):
    # mine
    result, begin = [], 0
    for number, size in enumerate(split(len(inputs), len(devices))):
        part = inputs[begin:begin + size]
        begin += size
        result.append(part.to(devices[number], non_blocking=True))
    if not result:
        raise ValueError("nothing to scatter")
    return result
"""
HELPED = (
    COPIED.replace("raise ValueError", "raise_it")
    + """
def raise_it(words):
    raise ValueError(words)
"""
)


def renamed(source, draw):
    for name in ("result", "begin", "number", "part", "size", "inputs"):
        source = source.replace(name, f"v{draw.randrange(10**6)}")
    return source


def own(draw):
    """An answer that nobody else writes."""
    lines = ["def scatter(inputs, devices):", "    found = {}"]
    for at in range(8):
        operator, number = draw.choice(["+", "-", "*", "//", "%", "<<", "|", "^"]), draw.randrange(1000)
        lines.append(
            f"    found[{at} {operator} {number}] = inputs[{draw.randrange(99)}:][: {number}] {operator} {at}"
        )
    return "\n".join(lines) + "\n    return [found[key] for key in sorted(found)]\n"


def found(sources, solution=SOLUTION):
    answers = {student: {"scatter": source} for student, source in sources.items()}
    stub = {"scatter": ["def scatter(inputs, devices):\n    ...\n"]}
    solutions = {student: {"scatter": [solution.replace("zip", "map"), solution]} for student in answers}
    return similar(answers, stub, solutions, {"scatter": ["scatter"], "split": ["split"]})


@pytest.mark.parametrize("many", [2, 3, 4, 8, 12])
def test_copies_are_one_group_whatever_its_size_and_the_names(many):
    draw = random.Random(many)
    sources = {f"c{at:02}": renamed(COPIED, draw) for at in range(many)}
    sources |= {f"o{at}": own(draw) for at in range(13 - many)}
    (group,) = found(sources)
    assert group.students == tuple(f"c{at:02}" for at in range(many))
    assert (group.as_solution, group.share) == (False, pytest.approx(1.0))
    assert any("append" in line for line in group.lines)


def test_another_order_hides_little():
    first, second = HELPED.split("\ndef raise_it")
    (group,) = found({"1": HELPED, "2": f"def raise_it{second}\n{first}\n", "3": own(random.Random(0))})
    assert group.students == ("1", "2")


@pytest.mark.parametrize("many", [1, 8])
def test_the_solution_is_known_again(many):
    draw = random.Random(0)
    sources = {f"c{at}": renamed(SOLUTION, draw) for at in range(many)} | {"o": own(draw), "p": COPIED}
    (group,) = found(sources)
    assert (group.as_solution, group.students) == (True, tuple(f"c{at}" for at in range(many)))


def test_a_solution_pasted_into_one_cell_with_others_is_known_again():
    other = "import torch\n\ndef split(rows, gpus):\n    return [rows // gpus] * gpus\n"
    cell = f"{other}\n{SOLUTION}\ncheck('x.scatter', scatter)\n"
    (group,) = found({"1": cell, "2": own(random.Random(0))})
    assert (group.as_solution, group.students) == (True, ("1",))
    assert group.lines == tuple(SOLUTION.splitlines())


def test_answers_of_their_own_and_short_ones_are_nobodys_group():
    draw = random.Random(1)
    assert found({str(at): own(draw) for at in range(13)}) == []
    assert found({str(at): "def scatter(inputs, devices):\n    return [inputs]\n" for at in range(5)}) == []
    assert found({"1": "def scatter(", "2": "", "3": "'" * 3}) == []
