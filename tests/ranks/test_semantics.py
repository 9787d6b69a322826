"""What collectives compute, from the calls of all members alone: against the same by hand."""

import pytest
import torch

from labkit_ranks.calls.call import CollectiveCall
from labkit_ranks.calls.semantics import compute_outputs, reduce_tensors, write_outputs


def met(*calls: CollectiveCall) -> list[list[list[float]]]:
    """The outputs of each member once all have met."""
    for at in range(len(calls)):
        write_outputs(compute_outputs(calls, at))
    return [[out.tolist() for out in call.outputs] for call in calls]


def each(kind, inputs, outs, **options):
    """A call of each member."""
    return [CollectiveCall(kind, i, o, **options) for i, o in zip(inputs, outs, strict=True)]


T = torch.tensor


@pytest.mark.parametrize(("op", "dtype", "values", "result"), [
    ("SUM", torch.int64, ([1, 2], [3, 4], [5, 6]), [9, 12]),
    ("PRODUCT", torch.int64, ([1, 2], [3, 4], [5, 6]), [15, 48]),
    ("MIN", torch.int64, ([1, 9], [3, 4], [5, 6]), [1, 4]),
    ("MAX", torch.int64, ([1, 9], [3, 4], [5, 6]), [5, 9]), ("BAND", torch.int64, ([7], [6], [12]), [4]),
    ("BOR", torch.int64, ([1], [2], [2]), [3]), ("BXOR", torch.int64, ([1], [3], [3]), [1]),
    ("AVG", torch.int64, ([-3], [-2], [-2]), [-3]),  # rounded down
    ("AVG", torch.float32, ([1.0], [2.0], [6.0]), [3.0]),
    ("AVG", torch.float32, ([3.0],), [3.0]),  # a rank alone
    ("SUM", torch.bool, ([True, False], [True, False], [True, True]), [True, True]),
    ("PRODUCT", torch.bool, ([True, True], [True, False], [True, True]), [True, False]),
])  # fmt: skip
def test_a_reduction(op, dtype, values, result):
    tensors = [T(value, dtype=dtype) for value in values]
    before = [tensor.clone() for tensor in tensors]
    found = reduce_tensors(tensors, op)
    assert (found.tolist(), found.dtype) == (result, dtype)
    assert all(torch.equal(*pair) for pair in zip(tensors, before, strict=True)), "an input was changed"


def test_a_mean_is_of_numbers_that_were_divided_first():
    """NCCL multiplies by 1/n before it adds, so that the sum of large halves does not overflow."""
    large = T([40000.0], dtype=torch.float16)
    assert reduce_tensors([large, large], "AVG").tolist() == [40000.0]
    x, y, z = (T([value], dtype=torch.float16) for value in (0.1, 0.7, 1.3))
    third = 1 / 3
    assert torch.equal(reduce_tensors([x, y, z], "AVG"), (x * third + y * third) + z * third)


def test_the_sum_of_one_is_no_view_of_it():
    x = T([1.0])
    assert reduce_tensors([x], "SUM").data_ptr() != x.data_ptr()


def test_as_many_numbers_in_another_shape_are_summed():
    assert reduce_tensors([T([[1.0], [2.0]]), T([3.0, 4.0])], "SUM").tolist() == [[4.0], [6.0]]
    call, other = (
        CollectiveCall("all_reduce", [t], [t], op="SUM") for t in (T([[1.0], [2.0]]), T([3.0, 4.0]))
    )
    assert met(call, other) == [[[[4.0], [6.0]]], [[4.0, 6.0]]]


def test_only_the_root_has_the_sum():
    tensors = [T([1.0]), T([2.0]), T([4.0])]
    calls = each("reduce", [[t] for t in tensors], [[t] for t in tensors], op="SUM", root=1)
    assert met(*calls) == [[[1.0]], [[7.0]], [[4.0]]]


def test_each_gets_its_own_piece():
    pieces = [T([10.0]), T([20.0]), T([30.0])]
    outs = [[torch.zeros(1)] for _ in range(3)]
    assert met(*each("scatter", [[], pieces, []], outs, root=1)) == [[[10.0]], [[20.0]], [[30.0]]]


def test_the_root_alone_gathers():
    outs = [[], [torch.zeros(1) for _ in range(3)], []]
    calls = each("gather", [[T([1.0])], [T([2.0])], [T([3.0])]], outs, root=1)
    assert met(*calls) == [[], [[1.0], [2.0], [3.0]], []]


def test_a_sum_is_scattered_into_a_tensor_whose_rows_lie_apart():
    apart = [torch.zeros(2, 2).t() for _ in range(2)]
    brought = [torch.arange(8.0).reshape(4, 2), torch.ones(4, 2)]
    calls = each("reduce_scatter_single", [[x] for x in brought], [[out] for out in apart], op="SUM")
    assert met(*calls) == [[[[1.0, 2.0], [3.0, 4.0]]], [[[5.0, 6.0], [7.0, 8.0]]]]


def test_rows_go_where_the_splits_say():
    brought = [T([0.0, 1.0, 2.0]), T([10.0])]
    outs = [[torch.zeros(1)], [torch.zeros(3)]]
    calls = [
        CollectiveCall("all_to_all_single", [brought[0]], outs[0], splits=([1, 2], [1, 0])),
        CollectiveCall("all_to_all_single", [brought[1]], outs[1], splits=([0, 1], [2, 1])),
    ]
    assert met(*calls) == [[[0.0]], [[1.0, 2.0, 10.0]]]


@pytest.mark.parametrize("kind", ["gathered into its own place", "gathered into another's"])
def test_what_is_gathered_may_lie_where_it_is_gathered(kind):
    """``all_gather(outs, outs[k])``: NCCL reads all inputs before anything is written."""
    outs = [[T([1.0]), T([2.0])] for _ in range(2)]
    at = [0, 1] if kind == "gathered into its own place" else [1, 0]
    calls = each("all_gather", [[outs[0][at[0]]], [outs[1][at[1]]]], outs)
    expected = [outs[0][at[0]].item(), outs[1][at[1]].item()]
    assert met(*calls) == [[[value] for value in expected]] * 2


def test_a_call_says_where_it_was_made_with_and_without_the_folder():
    (code,) = (
        one
        for one in compile("def step(): pass", "/me/train.py", "exec").co_consts
        if hasattr(one, "co_code")
    )
    call = CollectiveCall("all_reduce", [], [], group="0", seq=2, code=code, line=31)
    assert (call.place, call.short_place) == ("/me/train.py:31 in step", "train.py:31 in step")
    assert str(call) == "all_reduce #2 of group 0 at /me/train.py:31 in step"
    assert CollectiveCall("all_reduce", [], []).place == ""
