import numpy as np
import pytest
import torch

from labkit.base.language import using
from labkit.base.numbers import integer, plural


@pytest.mark.parametrize("value", [3, np.int64(3), torch.tensor(3)])
def test_what_counts_as_a_whole_number(value):
    number = integer("rows", value, 0)
    assert (type(number), number) == (int, 3)


@pytest.mark.parametrize(
    "value", [3.0, "3", None, True, np.True_, torch.tensor(3.0), torch.tensor(True), [3]]
)
def test_what_does_not(value):
    with pytest.raises(TypeError) as caught:
        integer("rows", value, 0)
    assert str(caught.value) == f"rows must be a whole number, got {value!r} ({type(value).__name__})"


def test_both_bounds_belong_to_the_range():
    assert [integer("gpus", value, 1, 3) for value in (1, 2, 3)] == [1, 2, 3]
    for value in (0, 4, -1):
        with pytest.raises(ValueError, match=f"^gpus must be from 1 to 3, got {value}$"):
            integer("gpus", value, 1, 3)
    assert integer("rows", 10**30, 0) == 10**30
    with pytest.raises(ValueError, match="^rows must be at least 0, got -1$"):
        integer("rows", -1, 0)
    assert integer("dim", 0, 0, 0) == 0
    with pytest.raises(ValueError, match="from 0 to 0, got 1"):
        integer("dim", 1, 0, 0)


@pytest.mark.parametrize(("value", "words"), [
    (0.5, "rows 必须是整数，现在是 0.5（float）"), (9, "rows 必须在 1 到 8 之间，现在是 9"),
])  # fmt: skip
def test_the_errors_speak_chinese_too(value, words):
    with using("zh"), pytest.raises((TypeError, ValueError)) as caught:
        integer("rows", value, 1, 8)
    assert str(caught.value) == words


def test_one_is_not_plural():
    assert [plural(count, "GPU") for count in (0, 1, 2)] == ["0 GPUs", "1 GPU", "2 GPUs"]
