"""``new_group`` is a call of all ranks: in the same order, and all of them where NCCL cuts the group out of another."""

import re

import pytest
import torch
import torch.distributed as dist

import labkit
from labkit.turns import Deadlock
from labkit_ranks.calls import faults
from labkit_ranks.calls.faults.mismatch import Mismatch
from labkit_ranks.threads.world import RanksFailed, World


def begin(rank, bound=False):
    device = torch.device("cuda", rank.local)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device if bound else None)
    return torch.full((1,), float(rank.number), device="cuda")


def of_two_teams(rank, bound, lists):
    x = begin(rank, bound)
    groups = [dist.new_group(ranks) for ranks in lists(rank.number)]
    dist.all_reduce(x, group=next(g for g in groups if g != dist.GroupMember.NON_GROUP_MEMBER))
    return x.item()


TEAMS = [[0, 2], [1, 3]]


@pytest.mark.parametrize("bound", [False, True])
def test_groups_made_in_another_order_are_told_with_every_ranks_line(bound):
    with World(4) as world, pytest.raises(RanksFailed) as failed:
        world.run(lambda rank: of_two_teams(rank, bound, lambda n: TEAMS[:: -1 if n % 2 else 1]))
    error = failed.value.error
    assert isinstance(error, faults.Mismatch)
    for text in "ranks 0, 2  new_group [0, 2]", "ranks 1, 3  new_group [1, 3]", "matched by their number":
        assert text in str(error)
    assert str(error).count("test_new_groups.py:") == 2


@pytest.mark.parametrize("bound", [False, True])
def test_groups_made_by_all_in_one_order_are_the_teams(bound):
    with World(4) as world:
        assert world.run(lambda rank: of_two_teams(rank, bound, lambda n: TEAMS)) == [2.0, 4.0, 2.0, 4.0]


def test_each_team_making_its_own_alone_is_told():
    with World(4) as world, pytest.raises(RanksFailed, match=r"ranks 1, 3  new_group \[1, 3\]"):
        world.run(lambda rank: of_two_teams(rank, False, lambda n: [TEAMS[n % 2]]))


@pytest.mark.parametrize("bound", [False, True])
def test_each_rank_may_make_a_group_of_itself(bound):
    """It connects nobody, so that NCCL and gloo make it, whatever ranks the others' groups of that number have."""

    def alone(rank):
        x = begin(rank, bound)
        dist.all_reduce(x, group=dist.new_group([rank.number]))
        mine = x.item()
        dist.all_reduce(x, group=[dist.new_group(ranks) for ranks in TEAMS][rank.number % 2])
        return mine, x.item()

    with World(4) as world:
        assert world.run(alone) == [(0.0, 2.0), (1.0, 4.0), (2.0, 2.0), (3.0, 4.0)]


def test_a_group_of_itself_beside_one_of_two_is_told():
    with World(4) as world, pytest.raises(RanksFailed, match=r"rank 3\s+new_group \[3\]"):
        world.run(lambda rank: of_two_teams(rank, False, lambda n: [[3] if n == 3 else [0, 1, 2]]))


def by_members(rank, bound, **options):
    x = begin(rank, bound)
    if rank.number < 2:
        dist.all_reduce(x, group=dist.new_group([0, 1], **options))
    return x.item()


@pytest.mark.parametrize("options", [{}, {"use_local_synchronization": True}])
def test_a_group_made_by_its_members_alone_needs_a_default_group_without_a_device(options):
    with World(3) as world:
        assert world.run(lambda rank: by_members(rank, False, **options)) == [1.0, 1.0, 2.0]
    with World(3) as world, pytest.raises(RanksFailed) as failed:
        world.run(lambda rank: by_members(rank, True, **options))
    assert isinstance(failed.value.error, Deadlock)
    for text in "ranks 0, 1  wait for rank 2 in new_group [0, 1]", "`device_id=`", "if rank in ranks:":
        assert text in str(failed.value)
    assert "Watchdog" not in str(failed.value)  # there is none in ncclCommSplit


@pytest.mark.parametrize("bound", [False, True])
def test_ranks_may_each_make_their_own_group_if_no_two_overlap(bound):
    """``ncclCommSplit`` takes a color from each rank, which PyTorch derives from the members."""

    def work(rank):
        x, sums = begin(rank, bound), []
        for lists in (TEAMS, [[0, 1], [2, 3]]):
            mine = next(ranks for ranks in lists if rank.number in ranks)
            whole = x.clone()
            dist.all_reduce(whole, group=dist.new_group(mine, use_local_synchronization=True))
            sums.append(whole.item())
        return sums

    with World(4) as world:
        assert world.run(work) == [[2, 1], [4, 1], [2, 5], [4, 5]]


@pytest.mark.parametrize("last", [[1, 3], [3]])  # it overlaps the first rank's group, or only another's
def test_own_groups_that_overlap_are_told(last):
    def work(rank):
        begin(rank, bound=True)
        dist.new_group([[0, 1], [0, 1], [2, 3], last][rank.number], use_local_synchronization=True)

    with World(4) as world, pytest.raises(RanksFailed, match=re.escape(f"new_group {last}")) as failed:
        world.run(work)
    assert isinstance(failed.value.error, Mismatch)


@pytest.mark.parametrize(
    ("options", "told"),
    [({}, "group 1 (ranks 0, 2), "), ({"use_local_synchronization": True}, "group [0, 2], ")],
)
def test_a_wait_in_a_part_of_the_world_names_its_ranks(options, told):
    def work(rank):
        x = begin(rank)
        if rank.number != 1:
            group = dist.new_group([0, 2], **options)
            if rank.number == 2:
                dist.all_reduce(x, group=group)
        elif not options:
            dist.new_group([0, 2])

    with World(3) as world, pytest.raises(RanksFailed, match="call 1 of " + re.escape(told)) as failed:
        world.run(work)
    assert {wait.group for wait in failed.value.error.waits.ranks if wait.group} == {told[6:-2]}


def test_a_group_of_gloo_is_not_cut_out_of_one_of_nccl():
    with World(3) as world:

        def work(rank):
            begin(rank, bound=True)
            if rank.number < 2:
                dist.barrier(dist.new_group([0, 1], backend="gloo"))

        world.run(work)


def test_who_calls_something_else_instead_is_told_that_all_make_groups():
    def work(rank):
        x = begin(rank, bound=True)
        dist.split_group(split_ranks=[[0, 1], [2]]) if rank.number else dist.all_reduce(x)

    with World(3) as world, pytest.raises(RanksFailed, match="rank 0 did not call split_group there"):
        world.run(work)


def test_numbers_of_groups_are_alike_again_after_a_run_that_failed():
    with labkit.ranks(2) as ranks:
        with pytest.raises(Deadlock):
            ranks.execute("import torch.distributed as dist\nif rank == 0: dist.new_group([0])")
        ranks.execute("dist.barrier(dist.new_group([0, 1]))\ndist.new_group([0]); dist.new_group([1])")
