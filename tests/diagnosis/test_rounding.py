"""When two results are the same up to rounding."""

import pytest
import torch

import labkit
from labkit_diagnose.rounding import difference, largest_gap, lowest_precision, same

ONE = torch.tensor([1.0, -2.0, 4.0])


@pytest.mark.parametrize(
    ("one", "other"),
    [(torch.float16, torch.bfloat16), (torch.float32, torch.float64), (torch.int32, torch.int64)],
)
def test_equal_values_of_another_type_are_not_the_same(one, other):
    assert difference(ONE.to(one), ONE.to(one)) == 0
    assert difference(ONE.to(one), ONE.to(other)) == float("inf")
    assert not same(ONE.to(one), ONE.to(other), torch.bfloat16)


def test_a_difference_is_in_units_of_the_largest_value():
    assert difference(ONE, ONE + torch.tensor([0.0, 1.0, 0.0])) == 0.25
    assert difference(ONE, ONE[:2]) == float("inf")


def test_what_is_no_number_differs_from_what_is_one():
    odd = torch.tensor([float("nan"), float("inf"), 1.0])
    assert difference(odd, odd.clone()) == 0
    assert difference(odd, torch.tensor([float("nan"), float("inf"), 1.5])) == 0.5
    assert difference(odd, torch.ones(3)) == float("inf")
    assert largest_gap(ONE, ONE - 3) == 3


def test_how_much_may_differ_is_that_of_the_least_precise_type():
    other = ONE * (1 + 3e-2)
    assert not same(ONE, other, torch.float16)
    assert same(ONE, other, torch.bfloat16)
    assert same(ONE.bfloat16(), other.bfloat16())
    assert not same(ONE.half(), other.half())


def test_the_least_precise_type_is_found_in_the_graph():
    weight = ONE.clone().requires_grad_()
    assert lowest_precision([ONE.half(), ONE.bfloat16()]) is torch.bfloat16
    assert lowest_precision([weight.half().float() * 2]) is torch.float16
    assert lowest_precision([weight * 2]) is torch.float32


def test_nothing_differs_from_nothing():
    assert difference(torch.ones(0, 3), torch.ones(0, 3)) == 0
    assert difference(torch.ones(0, 3), torch.ones(0, 2)) == float("inf")


@pytest.mark.parametrize("kind", [torch.int64, torch.bool])
def test_what_is_no_measure_is_the_same_or_not(kind):
    one = torch.tensor([1, 0, 1]).to(kind)
    assert difference(one, one.clone()) == 0
    assert difference(one, ~one if kind is torch.bool else one + 1) == float("inf")


def test_sparse_and_complex_values_are_compared():
    sparse = torch.diag(ONE).to_sparse()
    assert difference(sparse, sparse.clone()) == 0
    assert difference(sparse, torch.diag(ONE + torch.tensor([0.0, 1.0, 0.0])).to_sparse()) == 0.25
    assert difference(ONE.cfloat(), ONE.cfloat() + 1j) == 0.25


def test_values_without_a_measure_of_their_own():
    infinite = torch.tensor([float("inf")])
    assert difference(infinite, infinite.clone()) == 0
    assert difference(infinite, -infinite) == float("inf")
    assert difference(torch.zeros(2), torch.full((2,), 1e-7)) == pytest.approx(0.1)  # in units of a millionth


def test_a_gap_that_the_tolerance_decides_is_told():
    class Half(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x) * (1.02 if len(x) < 16 else 1)

    found = labkit.diagnose(Half(5, 5, dtype=torch.bfloat16), torch.ones(16, 5, dtype=torch.bfloat16), gpus=2)
    assert found.ok
    assert "%" in found.compared[0]
