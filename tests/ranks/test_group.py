"""What a process group does besides summing: its works, messages by tag, groups made anew, cut up and closed."""

import contextlib
import copy
import os
import time
import warnings
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import DistBackendError, distributed_c10d
from torch.nn.parallel import DistributedDataParallel

import labkit
from labkit.turns import Deadlock
from labkit_ranks.group.group_patches import NcclOptions
from labkit_ranks.group.slot import NCCL_BUFFER
from labkit_ranks.threads.world import RanksFailed, World


def begin(backend="nccl"):
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(backend)
    return dist.get_rank()


def test_a_work_is_done_when_the_last_has_come(on_ranks):
    def work(rank):
        others = dist.new_group()
        dist.all_reduce(torch.ones(1, device="cuda"), group=others)  # which connects it
        x = torch.ones(2, device="cuda")
        if rank.number == 0:
            going = dist.all_reduce(x, group=others, async_op=True)
            before = going.is_completed()
            dist.barrier()
        else:
            dist.barrier()
            going = dist.all_reduce(x, group=others, async_op=True)
            before = going.is_completed()
        going.wait()
        return before, going.is_completed(), x.tolist()

    assert on_ranks(work) == [(False, True, [2.0, 2.0]), (True, True, [2.0, 2.0])]


def test_what_is_written_into_is_recorded_by_nobody(on_ranks):
    """NCCL writes into leaves that want a gradient, and what a sum is written over keeps the function it came from."""

    def work(rank):
        weight = nn.Parameter(torch.full((2,), float(rank.number), device="cuda"))
        dist.all_reduce(weight)
        assert (weight.tolist(), weight.requires_grad, weight.grad_fn) == ([1.0, 1.0], True, None)
        summed = weight * 3
        dist.all_reduce(summed)
        if rank.number == 0:
            dist.send(summed.detach(), 1)
            return None
        received = torch.empty(2, device="cuda", requires_grad=True)
        dist.recv(received, 0)
        (received * summed).sum().backward()
        return weight.grad.tolist(), received.grad.tolist()

    assert on_ranks(work)[1] == ([18, 18], [6, 6])


@pytest.mark.parametrize(("more", "hangs"), [(0, False), (1, True)])
def test_what_fills_nccls_buffer_is_on_its_way(more, hangs):
    def exchange(rank):
        number = begin()
        x = torch.ones(NCCL_BUFFER + more, dtype=torch.uint8, device="cuda")
        dist.send(x, 1 - number)
        dist.recv(x, 1 - number)
        x.cpu()

    with World(2) as world:
        if hangs:
            with pytest.raises(RanksFailed) as caught:
                world.run(exchange)
            assert isinstance(caught.value.error, Deadlock)
        else:
            world.run(exchange)


@pytest.mark.parametrize("anybody", [False, True])
def test_gloo_tells_messages_apart_by_their_tags(anybody, on_ranks):
    def work(rank):
        x = torch.zeros(1)
        if rank.number == 0:
            for tag in (1, 2):
                dist.send(torch.full((1,), float(tag)), 1, tag=tag)
            return None
        found = []
        for tag in (2, 1):
            dist.recv(x, None if anybody else 0, tag=tag)
            found.append(x.item())
        return found

    assert on_ranks(work, backend="gloo")[1] == [2.0, 1.0]


def test_a_message_of_a_run_that_failed_is_not_received_in_the_next():
    def fail(rank):
        if begin() == 0:
            dist.send(torch.ones(1, device="cuda"), 1)
        else:
            raise KeyError

    def again(rank):
        x = torch.full((1,), 2.0, device="cuda")
        if rank.number == 0:
            dist.send(x, 1)
        else:
            dist.recv(x.zero_(), 0)
        return x.item()

    with World(2) as world:
        with pytest.raises(RanksFailed):
            world.run(fail)
        assert world.run(again) == [2.0, 2.0]


def test_who_is_missing_is_known_after_a_run_that_failed():
    def fail(rank):
        begin()
        for _ in range(3):
            dist.barrier()
        raise KeyError

    def skip(rank):
        if rank.number != 1:
            dist.barrier()

    with World(3) as world:
        with pytest.raises(RanksFailed):
            world.run(fail)
        with pytest.raises(RanksFailed, match="ranks 0, 2  wait for rank 1"):
            world.run(skip)


def test_messages_are_not_counted_among_the_collectives_of_who_is_missing(on_ranks):
    def work(rank):
        x = torch.ones(1, device="cuda")
        dist.barrier()
        for _ in range(3):
            if rank.number < 2:
                dist.send(x, 1) if rank.number == 0 else dist.recv(x, 0)
        if rank.number:
            dist.barrier()

    with pytest.raises(RanksFailed, match="ranks 1, 2  wait for rank 0"):
        on_ranks(work, 3)


def test_what_a_rank_came_to_in_a_former_run_is_forgotten():
    def work(rank):
        if not dist.is_initialized():
            begin()
        for _ in range(times[rank.number]):
            dist.barrier()

    times = [3, 3]
    with World(2) as world:
        world.run(work)
        times[1] = 0
        with pytest.raises(RanksFailed, match="rank 1 never came to this line"):
            world.run(work)


def test_a_group_made_anew_does_not_meet_what_the_former_left(on_ranks):
    def work(rank):
        if rank.number == 0:
            dist.all_reduce(torch.full((1,), 100.0), async_op=True)
        dist.destroy_process_group()
        dist.init_process_group("gloo")
        x = torch.ones(1)
        if rank.number == 0:
            time.sleep(0.01)  # the other comes first
        dist.all_reduce(x)
        return x.item()

    assert on_ranks(work, backend="gloo") == [2.0, 2.0]


def test_a_group_is_cut_up():
    def work(rank):
        torch.cuda.set_device(rank.local)
        dist.init_process_group("nccl", device_id=torch.device("cuda", rank.local))
        half = dist.split_group(split_ranks=[[0, 1], [3, 2]])
        x = torch.full((1,), float(rank.number), device="cuda")
        dist.all_reduce(x, group=half)
        return dist.get_rank(half), x.item()

    with World(4) as world:
        assert world.run(work) == [(0, 1.0), (1, 1.0), (0, 5.0), (1, 5.0)]


def test_a_group_is_cut_up_and_some_are_left():
    def work(rank):
        torch.cuda.set_device(rank.local)
        dist.init_process_group("nccl", device_id=torch.device("cuda", rank.local))
        group = dist.group.WORLD.split_group([0, 2], timeout=timedelta(seconds=7))
        return None if group is None else (group.rank(), group.ranks, group.timeout.total_seconds())

    with World(3) as world:
        assert world.run(work) == [(0, (0, 2), 7.0), None, (1, (0, 2), 7.0)]


def test_a_destroyed_group_is_of_no_use(on_ranks):
    def work(rank):
        group = dist.group.WORLD
        dist.destroy_process_group()
        with pytest.raises(DistBackendError, match=f"NCCL communicator was aborted on rank {rank.number}"):
            group.allreduce([torch.ones(1, device="cuda")])

    on_ranks(work)


def test_rows_go_by_both_lists_of_sizes_and_pieces_come_from_the_root(on_ranks):
    def work(rank):
        x = torch.arange(3.0, device="cuda") + 10 * rank.number
        y = torch.zeros(2 if rank.number == 0 else 4, device="cuda")
        if rank.number == 0:
            dist.all_to_all_single(y, x, output_split_sizes=[1, 1], input_split_sizes=[1, 2])
        else:
            dist.all_to_all_single(y, x, output_split_sizes=[2, 2], input_split_sizes=[1, 2])
        piece = torch.zeros(1, device="cuda")
        dist.scatter(piece, list(x.split(1))[:2] if rank.number == 1 else None, src=1)
        return y.tolist(), piece.item()

    assert on_ranks(work) == [([0.0, 10.0], 10.0), ([1.0, 2.0, 11.0, 12.0], 11.0)]


@pytest.mark.parametrize("single", [False, True])
def test_all_to_all_in_place_is_refused(single, on_ranks):
    def work(rank):
        x = torch.ones(2, device="cuda")
        if single:
            dist.all_to_all_single(x, x)
        else:
            dist.all_to_all(list(x.split(1)), list(x.split(1)))

    with pytest.raises(RanksFailed, match="shares memory with an input"):
        on_ranks(work)


def test_what_was_posted_together_is_held_no_longer(on_ranks):
    def work(rank):
        x, y = torch.ones(1, device="cuda"), torch.ones(1, device="cuda")
        with dist.distributed_c10d._coalescing_manager(device=x.device):
            dist.isend(x, 1 - rank.number)
            dist.irecv(y, 1 - rank.number)
        before = torch.cuda.memory_allocated()
        dist.all_reduce(torch.ones(2**20, device="cuda"))
        return torch.cuda.memory_allocated() - before

    assert on_ranks(work) == [0, 0]


def test_messages_are_counted_by_pair_and_gradients_are_of_the_backward_pass():
    def work(rank):
        number = begin()
        x = torch.ones(1, device="cuda")
        for _ in range(2):
            dist.send(x, 1) if number == 0 else dist.recv(x, 0)
        dist.recv(x, 1) if number == 0 else dist.send(x, 0)
        model = DistributedDataParallel(nn.Linear(1, 1).cuda(), device_ids=[number])
        model(x).sum().backward()

    with World(2) as world, labkit.record() as trace:
        world.run(work)
    events = trace.only(phase="collective").events
    for kind, rank, numbers in (("send", 0, [1, 2]), ("recv", 1, [1, 2]), ("send", 1, [1]), ("recv", 0, [1])):
        told = [event for event in events if (event.name, event.rank) == (kind, rank)]
        assert [event.sequence for event in told] == numbers
        assert {event.ranks for event in told} == {
            (0, 1) if (kind, rank) in (("send", 0), ("recv", 1)) else (1, 0)
        }
    assert {event.direction for event in events if event.name == "all_reduce"} == {"backward"}
    assert {event.direction for event in events if event.name == "broadcast"} == {"forward"}


def test_a_groups_timeout_is_set_later():
    def work(rank):
        begin()
        distributed_c10d._set_pg_timeout(timedelta(seconds=5))
        group = dist.new_group([0, 1])
        distributed_c10d._set_pg_timeout(timedelta(seconds=7), group)
        return dist.group.WORLD.timeout.seconds, group.timeout.seconds

    with World(2) as world, warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns where it takes no group for one of its own
        assert world.run(work) == [(5, 7)] * 2


def test_torchcomms_changes_nothing(monkeypatch):
    monkeypatch.setattr(distributed_c10d, "_TORCHCOMM_AVAILABLE", True)

    def work(rank):
        begin()
        x = torch.ones(2, device="cuda")
        dist.all_reduce(x)
        return x.tolist()

    with distributed_c10d.dist_config.patch(use_torchcomms=True), World(2) as world:
        assert world.run(work) == [[2, 2]] * 2


@pytest.mark.parametrize("async_op", [False, True])
def test_several_tensors_are_gathered_in_one_call_on_gloo_and_not_on_nccl(async_op):
    def gather(rank, backend, device):
        number = begin(backend)
        mine = [torch.full((rows,), float(number), device=device) for rows in (1, 2)]
        found = [[torch.zeros(rows, device=device) for rows in (1, 2)] for _ in range(2)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # it is deprecated
            going = dist.all_gather_coalesced(found, mine, async_op=async_op)
        if async_op:
            going.wait()
        return [[tensor.tolist() for tensor in row] for row in found]

    with World(2) as world:
        assert (
            world.run(lambda rank: gather(rank, "gloo", "cpu"))
            == [[[[0.0], [0.0, 0.0]], [[1.0], [1.0, 1.0]]]] * 2
        )
    with World(2) as world, pytest.raises(RanksFailed) as caught:
        world.run(lambda rank: gather(rank, "nccl", "cuda"))
    assert isinstance(caught.value.error, NotImplementedError)
    assert str(caught.value.error) == "ProcessGroupNCCL does not support allgather_coalesced"


def test_a_copy_of_nccls_options_has_its_own_list_of_ranks():
    options = NcclOptions(is_high_priority_stream=True)
    options._timeout, options.global_ranks_in_group = timedelta(seconds=7), [0, 2]
    copied = copy.deepcopy(options)
    assert vars(copied) == vars(options)
    assert copied.global_ranks_in_group is not options.global_ranks_in_group


def test_a_group_and_one_split_from_it_keep_the_options_that_were_given():
    def work(rank):
        torch.cuda.set_device(rank.number)
        given = NcclOptions(is_high_priority_stream=True)
        dist.init_process_group("nccl", pg_options=given, device_id=torch.device("cuda", rank.number))
        part = dist.split_group(split_ranks=[[1, 0]])
        kept = [group._get_backend(torch.device("cuda")).options for group in (dist.group.WORLD, part)]
        return kept[0] is given, [one.is_high_priority_stream for one in kept], kept[1].global_ranks_in_group

    with World(2) as world:
        assert world.run(work) == [(True, [True, True], [0, 1])] * 2


def test_works_say_what_they_came_to(on_ranks):
    def work(rank):
        x, here = torch.ones(2, device="cuda"), torch.zeros(2, device="cuda")
        first, second = (dist.all_reduce(x, async_op=True) for _ in range(2))
        first.synchronize()
        second.block_current_stream()
        with dist._coalescing_manager(device=x.device, async_ops=True) as together:
            dist.isend(x, 1 - rank.number)
            dist.irecv(here, 1 - rank.number)
        both = together.works[-1]
        both.wait()
        assert [one.is_success() and one.is_completed() for one in (first, second, both)] == [True] * 3
        return first.exception(), here.tolist()

    assert on_ranks(work) == [(None, [4, 4])] * 2


def test_a_group_is_asked_and_made_as_by_cpp(on_ranks):
    def work(rank):
        group, x = dist.group.WORLD, torch.full((2,), float(rank.number), device="cuda")
        group.broadcast([x], 1, timedelta(seconds=5)).wait()
        group.allreduce([x], timedelta(seconds=5)).wait()
        with pytest.raises(RuntimeError, match=r"^Could not find the backend type for device type xpu\.$"):
            group._get_backend("xpu")
        store = dist.FileStore("own")
        made = [
            dist.ProcessGroupNCCL(store, rank.number, 2, timedelta(seconds=7)),
            dist.ProcessGroupNCCL(store, rank.number, 2, timeout=timedelta(seconds=8)),
            dist.ProcessGroupGloo(store, rank.number, 2, timedelta(seconds=9)),
        ]
        limits = [one.timeout.seconds for one in made]
        return x.tolist(), group._get_sequence_number_for_group(), group.uid, limits

    assert on_ranks(work) == [([2, 2], 2, 0, [7, 8, 9])] * 2


def test_subgroups_of_one_rank_within_subgroups():
    def work(rank):
        begin()
        half, _ = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
        own, groups = dist.new_subgroups(group_size=1, group=half)
        x = torch.ones(1, device="cuda")
        dist.all_reduce(x, group=own)
        return own.size(), len(groups), x.item()

    with contextlib.closing(World(4)) as world:
        assert world.run(work) == [(1, 2, 1.0)] * 4
