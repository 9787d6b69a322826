import pytest
import torch

import labkit
from labkit.plans.batches import batches
from labkit.plans.shapes import cut_shape, gathered_shape
from labkit.plans.split import Piece, split


@pytest.mark.parametrize("gpus", range(1, 17))
def test_the_rule_is_that_of_torch_chunk(gpus):
    for batch in range(257):
        plan = split(batch, gpus)
        assert list(plan.sizes) == [len(piece) for piece in torch.arange(batch).chunk(gpus)], (batch, gpus)


def test_pieces_cover_the_batch_in_order():
    for batch in range(1, 65):
        plan = split(batch, 8)
        rows = [row for piece in plan.pieces for row in range(piece.start, piece.stop)]
        assert rows == list(range(batch))
        assert [plan.gpu_of(row) for row in rows] == [p.gpu for p in plan.pieces for _ in range(p.rows)]


def test_fifty_six_pairs_leave_a_gpu_without_work_that_could_have_some():
    pairs = [(b, n) for b in range(1, 65) for n in range(2, 9) if len(split(b, n).pieces) < min(b, n)]
    assert len(pairs) == 56
    assert (9, 4) in pairs
    assert (9, 8) in pairs


@pytest.mark.parametrize(("gpus", "full", "last"), [
    (1, (30,), (10,)), (2, (15, 15), (5, 5)), (3, (10, 10, 10), (4, 4, 2)), (8, (4,) * 7 + (2,), (2,) * 5),
])  # fmt: skip
def test_the_tutorial(gpus, full, last):
    assert labkit.split(30, gpus).sizes == full
    assert labkit.split(10, gpus).sizes == last


def test_short_piece_and_idle_gpus():
    plan = split(10, 8)
    assert plan.idle == (5, 6, 7)
    assert plan.short is None
    assert split(30, 8).short == Piece(7, 28, 30)
    assert str(plan) == "10 rows on 8 GPUs: 2, 2, 2, 2, 2; idle: cuda:5, cuda:6, cuda:7"


def test_no_rows_give_every_gpu_an_empty_piece():
    assert split(0, 3).sizes == (0, 0, 0)
    assert split(0, 3).idle == (0, 1, 2)


@pytest.mark.parametrize(("arguments", "error", "text"), [
    (("eight", 2), TypeError, "batch must be a whole number, got 'eight'"),
    ((3, "eight"), TypeError, "gpus must be a whole number, got 'eight'"),
    ((3, 2.0), TypeError, "gpus must be a whole number"),
    ((True, 2), TypeError, "batch must be a whole number, got True"),
    ((-1, 2), ValueError, "batch must be at least 0, got -1"),
    ((3, 0), ValueError, "gpus must be from 1 to 1024, got 0"),
])  # fmt: skip
def test_bad_arguments_are_named(arguments, error, text):
    with pytest.raises(error, match=text):
        split(*arguments)


def test_a_row_outside_the_batch_is_refused():
    with pytest.raises(ValueError, match="row must be from 0 to 9, got 10"):
        split(10, 8).gpu_of(10)


@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_are_those_of_a_loader(drop_last):
    for rows in (0, 1, 29, 30, 31, 90, 100):
        for size in (1, 7, 30, 101):
            loader = torch.utils.data.DataLoader(range(rows), batch_size=size, drop_last=drop_last)
            plan = batches(rows, size, gpus=3, drop_last=drop_last)
            sizes = [len(batch) for batch in loader]
            assert list(plan) == [split(size, 3) for size in sizes]
            assert (len(plan), list(plan.sizes)) == (len(sizes), sizes)
            assert plan.dropped == rows - sum(sizes)
            assert [kind for kind, times in plan.kinds for _ in range(times)] == list(plan)


def test_batches_are_a_sequence_of_which_none_is_kept():
    plan = batches(100, 30, gpus=3)
    assert plan[3] == plan[-1] == split(10, 3)
    assert plan[1:3] == (split(30, 3),) * 2
    assert split(10, 3) in plan
    with pytest.raises(IndexError):
        plan[4]
    many = batches(10**30 + 1, 2)
    assert many.total == 5 * 10**29 + 1
    assert many[many.total - 1] == split(1, 1)
    assert [times for _, times in many.kinds] == [5 * 10**29, 1]
    assert batches(3, 5, drop_last=True).kinds == batches(0, 5).kinds == ()


def test_long_lists_are_counted():
    assert (
        repr(split(10, 1000))
        == "10 rows on 1000 GPUs: 1, 1, 1, 1, 1, 1, 1, 1, 1, 1; idle: cuda:10 to cuda:999"
    )
    assert repr(split(30, 10)) == "30 rows on 10 GPUs: 3, 3, 3, 3, 3, 3, 3, 3, 3, 3"
    assert repr(split(31, 11)) == "31 rows on 11 GPUs: 10 × 3, 1"  # the last one counts, too
    assert repr(split(63, 32)) == "63 rows on 32 GPUs: 31 × 2, 1"
    assert repr(split(0, 1024)) == "0 rows on 1024 GPUs: 1024 × 0; idle: cuda:0 to cuda:1023"
    assert repr(batches(10**9, 1)) == "1000000000 rows in batches of 1: 1000000000 × 1"
    assert repr(labkit.ring_all_reduce(1024)).startswith("ring all-reduce over 1024 ranks: 2046 steps")


def test_batches_say_what_they_are():
    assert str(batches(100, 30)) == "100 rows in batches of 30: 30, 30, 30, 10"
    assert str(batches(100, 30, gpus=8)) == "100 rows in batches of 30: 30, 30, 30, 10 (on 8 GPUs)"
    assert str(batches(100, 30, drop_last=True)) == "100 rows in batches of 30: 30, 30, 30; 10 dropped"
    assert str(batches(100, 3)) == "100 rows in batches of 3: 33 × 3, 1"
    assert str(batches(1000, 4)) == "1000 rows in batches of 4: 250 × 4"
    assert str(batches(0, 3)) == "0 rows in batches of 3: none"


@pytest.mark.parametrize(("arguments", "error", "text"), [
    (("many", 3), TypeError, "rows must be a whole number, got 'many'"),
    ((3, 0), ValueError, "batch_size must be at least 1, got 0"),
    ((3, None), TypeError, "batch_size must be a whole number, got None"),
])  # fmt: skip
def test_batches_name_bad_arguments(arguments, error, text):
    with pytest.raises(error, match=text):
        batches(*arguments)
    with pytest.raises(ValueError, match="gpus must be from 1 to 1024, got 0"):
        batches(3, 3, gpus=0)


def test_shapes_are_cut_and_glued_as_torch_does():
    for shape, gpus, dim in [((32, 512, 65), 2, 0), ((65, 33, 7), 4, 1), ((9,), 4, 0), ((2, 10), 8, -1)]:
        pieces = torch.empty(shape).chunk(gpus, dim)
        assert cut_shape(shape, gpus, dim) == tuple(tuple(piece.shape) for piece in pieces)
        assert gathered_shape(cut_shape(shape, gpus, dim), dim) == shape
    assert gathered_shape([(65, 16, 5530)] * 2) == (130, 16, 5530)
    assert gathered_shape([(), (), ()]) == (3,)


@pytest.mark.parametrize(("call", "text"), [
    (lambda: gathered_shape([(65, 17), (65, 16)]), r"piece 0 is \[65, 17\], piece 1 is \[65, 16\]"),
    (lambda: gathered_shape([(2, 3), (2, 3, 4)]), "piece 1 is"),
    (lambda: gathered_shape([(2, 3), (4, 3)], 1),
     r"along dimension 1: piece 0 is \[2, 3\], piece 1 is \[4, 3\]"),
    (lambda: gathered_shape([]), "at least one piece"),
    (lambda: cut_shape((), 2), "a scalar has none"),
    (lambda: cut_shape((2, 3), 2, 2), "dim must be from -2 to 1, got 2"),
])  # fmt: skip
def test_shapes_that_do_not_fit_are_refused(call, text):
    with pytest.raises(ValueError, match=text):
        call()
