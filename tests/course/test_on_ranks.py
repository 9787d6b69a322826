"""Functions of learners, run on ranks: what judges of part two stand on."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

import labkit
from labkit_course.content import module
from labkit_course.judging import Unreadable

on_ranks = module("exercises.on_ranks").on_ranks
stuck = module("exercises.on_ranks").describe_waits


def passed_on(x):
    rank, size = dist.get_rank(), dist.get_world_size()
    got = torch.empty_like(x)
    ops = [dist.P2POp(dist.isend, x, (rank + 1) % size), dist.P2POp(dist.irecv, got, (rank - 1) % size)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return got, x.device.index


def given(ranks):
    return [(torch.full((2,), float(rank)),) for rank in range(ranks)]


@pytest.mark.parametrize("nodes", [1, 2])
def test_each_rank_has_its_own_arguments_and_gpu_and_what_it_called_is_known(nodes):
    ran = on_ranks(passed_on, 4, given(4), nodes=nodes).require_success()
    assert [(got.tolist(), gpu) for got, gpu in ran.results] == [
        ([3, 3], 0), ([0, 0], 1 % (4 // nodes)), ([1, 1], 2 % (4 // nodes)), ([2, 2], 3 % (4 // nodes)),
    ]  # fmt: skip
    assert all(got.device.type == "cpu" for got, _ in ran.results)
    assert sorted(ran.call_kinds()) == ["recv", "send"]
    assert ran.call_kinds("all_reduce") == []
    assert (ran.count("send", 3), ran.count_sent_bytes(3)) == (1, 8)


AFTERWARDS = {
    "a group of some ranks": ("dist.get_world_size(dist.new_group([0, 1]))", [2, 2]),
    "a group of its own": ("dist.init_process_group('nccl')\ndist.get_world_size()", [2, 2]),
    "its own GPU": ("torch.cuda.set_device(local_rank)\ntorch.ones(1).cuda().device.index", [0, 1]),
    "the version of NCCL": ("torch.cuda.nccl.version()[0]", [2, 2]),
}


@pytest.mark.parametrize("what", AFTERWARDS)
def test_what_a_world_changes_of_its_machine_is_there_after_another_world(what):
    code, wanted = AFTERWARDS[what]
    with labkit.ranks(2) as session:
        session.execute("import torch, torch.distributed as dist")
        on_ranks(passed_on, 3, given(3)).require_success()
        assert list(session.execute(code)) == wanted


def test_a_session_that_is_open_goes_on_as_it_was():
    with labkit.ranks(2) as session:
        session.execute("import torch, torch.distributed as dist\nx = torch.ones(1, device=device) + rank")
        for ranks in (2, 4):
            assert len(on_ranks(passed_on, ranks, given(ranks)).require_success().results) == ranks
        assert [x.item() for x in session.execute("dist.all_reduce(x)\nx")] == [3, 3]
    assert torch.cuda.device_count() == 0


def test_where_ranks_hang_is_told_where_no_judge_has_more_to_say():
    ran = on_ranks(lambda x: dist.get_rank() or dist.all_reduce(x), 3, given(3))
    assert ran.failure.hangs
    with pytest.raises(
        Unreadable, match="with 3 ranks it hangs: rank 0 .*Does every rank make the same calls"
    ):
        ran.require_success()


def test_an_error_is_the_learners_with_its_rank_and_line():
    def divides(x):
        print("noise")
        return 1 / (dist.get_rank() - 2)

    ran = on_ranks(divides, 3, given(3))
    assert not ran.failure.hangs
    with pytest.raises(Unreadable) as caught:
        ran.require_success()
    assert caught.value.words.en.startswith(
        "with 3 ranks, your function fails on rank 2 (test_on_ranks.py, line "
    )
    assert caught.value.words.en.endswith("ZeroDivisionError: division by zero")
    assert caught.value.words.zh.startswith("3 个 rank 时，你的函数在 rank 2 上报错（")


def test_random_numbers_and_what_is_printed_do_not_get_out(capsys):
    def draws():
        print("noise")
        return torch.rand(1)

    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    on_ranks(draws, 2)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert capsys.readouterr() == ("", "")


def test_memory_can_be_short():
    def fills():
        return torch.empty(2 << 20, dtype=torch.uint8, device="cuda").sum()

    assert "out of memory" in on_ranks(fills, 2, memory="1 MiB").failure.words


@pytest.mark.parametrize("cell", ["3812.py", "Cell In[32]"])
def test_who_waits_is_told_with_the_line_of_the_learners_function(cell):
    failure = SimpleNamespace(
        error=f"no rank can go on\n  rank 0  waits in recv from rank 3  at {cell}:4 in exchange"
    )
    assert stuck(failure) == "rank 0 waits in recv from rank 3 at line 4 of the cell, in exchange"


def test_a_files_name_that_ends_in_digits_is_kept():
    failure = SimpleNamespace(error="no rank can go on\n  rank 0  waits in recv  at line07.py:4 in exchange")
    assert stuck(failure) == "rank 0 waits in recv at line07.py:4 in exchange"
