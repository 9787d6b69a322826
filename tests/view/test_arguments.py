"""Figures refuse what they cannot draw, naming the argument."""

import pytest

import labkit
from labkit import cost


@pytest.mark.parametrize(("call", "text"), [
    (lambda: labkit.draw_timeline("x"), "data must be what labkit.record"),
    (lambda: labkit.draw_memory(None), "data must be what labkit.data_parallel_memory gives, got None"),
    (lambda: labkit.draw_scaling(5), "data must be what labkit.predict_scaling gives, got 5"),
    (lambda: labkit.draw_split(10, 2, ax="q"), "ax must be a matplotlib Axes, got 'q'"),
    (lambda: cost.predict_scaling(5, 5), "work must be a Workload, got 5"),
])  # fmt: skip
def test_the_argument_is_named(call, text):
    with pytest.raises(TypeError, match=text):
        call()


def test_a_slip_of_the_keyboard_does_not_fill_the_memory():
    with pytest.raises(ValueError, match="gpus must be from 1 to 1024, got 1000000000"):
        labkit.split(3, 10**9)


def test_a_missing_dimension_is_called_as_the_argument_is():
    with pytest.raises(ValueError, match="batch_dim"):
        labkit.draw_shapes((65, 32, 5530), 2, batch_dim=7)
