"""What is said when ranks do not fit together, or none can go on: who called what, where, why, what to do."""

import queue
import re
import sys
from contextlib import nullcontext
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

import labkit
from labkit.turns import Deadlock
from labkit_ranks.calls import faults
from labkit_ranks.calls.call import CollectiveCall
from labkit_ranks.calls.faults import report
from labkit_ranks.threads.world import RanksFailed, World


def begin(rank):
    torch.cuda.set_device(rank.local)
    dist.init_process_group("nccl")
    return rank.number


def vector(size=3, dtype=torch.float32):
    return torch.ones(size, dtype=dtype, device="cuda")


def failing(program, ranks=3) -> RanksFailed:
    """What is raised when all run ``program(rank number)`` after the usual beginning."""
    with World(ranks) as world, pytest.raises(RanksFailed) as caught:
        world.run(lambda rank: program(begin(rank)))
    return caught.value


def line(function, text):
    """Where ``text`` stands in the source of ``function``."""
    import inspect

    lines, first = inspect.getsourcelines(function)
    return f"test_faults.py:{first + next(k for k, one in enumerate(lines) if text in one)}"


# Calls that do not fit.


def test_a_call_that_nobody_waits_for_is_refused_too():
    def program(n):
        dist.all_reduce(vector(3 + n), async_op=True)

    assert isinstance(failing(program).error, faults.Mismatch)


def test_as_many_numbers_in_another_shape_are_what_nccl_takes():
    def program(rank):
        begin(rank)
        x = torch.full((2, 3) if rank.number else (6,), 1.0, device="cuda")
        dist.all_reduce(x)
        return x.sum().item()

    with World(2) as world:
        assert world.run(program) == [12, 12]


# None can go on.


def test_unequal_numbers_of_batches():
    def program(n):
        # Two buckets of gradients: a backward makes two all-reduces, and is one visit of its line.
        model = torch.nn.Sequential(torch.nn.Linear(600, 600), torch.nn.Linear(600, 600)).cuda()
        model = DistributedDataParallel(model, bucket_cap_mb=1)
        for _ in range(2 + (n == 0)):
            model(torch.ones(2, 600, device="cuda")).sum().backward()
        torch.cuda.synchronize()

    error = failing(program).error
    assert isinstance(error, Deadlock)
    text = str(error)
    assert re.search(r"rank 0 +waits for ranks 1, 2 in all_reduce SUM \[360600\] float32", text)
    assert "ranks 1, 2 came to this line (`Tensor.backward`) 2 times and ended" in text
    assert "rank 0 came for the 3rd time" in text
    assert "some rank left the loop because of a number of its own" in text
    assert "drop_last" in text
    assert "Join" in text
    assert line(program, ".backward()") in text
    assert "OpType=ALLREDUCE, NumelIn=360600, NumelOut=360600, Timeout(ms)=600000)" in text


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_graph_that_was_cut_in_one_rank(goes_on):
    """The others wait in backward for a rank that ends, or that meets them with its next call."""

    def program(n):
        x = torch.ones(3, 2, device="cuda", requires_grad=True)
        y = all_to_all_single_autograd(x, None, None, dist.group.WORLD)
        (y if n else x + y.detach()).sum().backward()
        if goes_on:
            dist.all_reduce(x.grad)

    error = failing(program).error
    assert error.report.fault == "backward_in_some_ranks"
    assert "rank 0 did not make this all_to_all_single in backward" in str(error)
    assert "An empty result" in error.report.advice
    assert "print" not in error.report.advice


def test_a_wait_in_a_context_manager_of_torch_is_at_the_users_line():
    def program(n):
        model = FullyShardedDataParallel(torch.nn.Linear(2, 2).cuda())
        with FullyShardedDataParallel.summon_full_params(model) if n else nullcontext():
            pass

    text = str(failing(program).error)
    assert "contextlib" not in text
    assert line(program, "with Fully") in text


def test_the_last_message_of_a_rank_that_has_ended_names_its_peer():
    def program(n):
        if n == 0:
            dist.send(vector(), 1)
        else:
            dist.recv(vector(), n - 1)

    text = str(failing(program).error)
    assert "rank 0  has ended; its last call was send to rank 1 at" in text
    assert "rank 1  has ended; its last call was recv from rank 0 at" in text


# NCCL does the messages of two ranks in the order of the calls, whether they are waited for or not.


def send_first(n, size):
    there, here = vector(size), torch.zeros(size, device="cuda")
    works = [dist.isend(there, 1 - n), dist.irecv(here, 1 - n)]
    for work in works:
        work.wait()
    assert here.sum() == size


def receive_first(n, size):
    there, here = vector(size), torch.zeros(size, device="cuda")
    work = dist.irecv(here, 1 - n)
    dist.send(there, 1 - n)
    work.wait()
    torch.cuda.synchronize()


@pytest.mark.parametrize(
    ("program", "size", "then", "first"),
    [(send_first, 2**21, "irecv", "isend"), (receive_first, 3, "send", "irecv")],
)
def test_what_is_posted_alone_waits_for_what_was_posted_before(program, size, then, first):
    text = str(failing(lambda n: program(n, size), 2).error)
    assert f"rank 0  waits in {first} to rank 1" in text or f"rank 0  waits in {first} from rank 1" in text
    assert re.search(
        rf"The {then} of rank \d at test_faults.py:.* has not begun: .* and the {first} before it", text
    )
    assert "Do: make both one operation: `batch_isend_irecv" in text


def turned(n):
    (receive_first if n else send_first)(n, 2**21)


def batch(n):
    there, here = vector(2**21), torch.zeros(2**21, device="cuda")
    for _ in range(2):
        ops = [dist.P2POp(dist.isend, there, 1 - n), dist.P2POp(dist.irecv, here, 1 - n)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
    assert here.sum() == 2**21


def held_up(n):
    """Two receives and a send of rank 0 stand behind a large send, and go when rank 1 comes to receive it."""
    boxes = [torch.zeros(3, device="cuda") for _ in range(2)]
    if n == 0:
        works = [
            dist.isend(vector(2**21), 1), *(dist.irecv(box, 1) for box in boxes), dist.isend(vector() + 4, 1),
        ]  # fmt: skip
        for work in works:
            work.wait()
        assert [int(box[0]) for box in boxes] == [2, 3]
    else:
        works = [dist.isend(vector() + 1, 0), dist.isend(vector() + 2, 0)]
        large = torch.zeros(2**21, device="cuda")
        dist.recv(large, 0)
        dist.recv(boxes[0], 0)
        assert (large.sum(), boxes[0][0]) == (2**21, 5)


@pytest.mark.parametrize("program", [turned, batch, held_up, lambda n: send_first(n, 3)])
def test_messages_in_an_order_that_nccl_can_do_come(program):
    with World(2) as world:
        world.run(lambda rank: program(begin(rank)), to_end=True)


def test_gloo_does_messages_beside_each_other():
    def program(rank):
        dist.init_process_group("gloo")
        here, n = torch.zeros(2**21), rank.number
        work = dist.irecv(here, 1 - n)
        dist.send(torch.ones(2**21), 1 - n)
        work.wait()
        assert here.sum() == 2**21

    with World(2) as world:
        world.run(program, to_end=True)


def test_all_wait_for_something_else():
    text = str(failing(lambda n: queue.Queue().get()).error)
    assert "wait for Queue.get" in text
    assert "each rank has its own locks" in text


def test_who_waits_for_whom_is_there_as_data():
    waits = failing(lambda n: dist.barrier() if n else None).error.waits
    assert [one.state for one in waits.ranks] == ["ended", "waits", "waits"]
    assert waits.ranks[1].waits_for == (0,)
    assert waits.ranks[1].call == "barrier"


@pytest.mark.parametrize("away", [0, 2])
def test_a_first_call_names_the_rank_whose_key_is_missing_only_if_it_is(away):
    text = str(failing(lambda n: None if n == away else dist.all_reduce(vector())).error)
    assert "On real GPUs" in text
    assert ("data from rank 0" in text, "600 s" in text) == (away == 0, away == 0)


def test_in_a_cycle_only_ranks_whose_key_is_missing_are_told_to_end():
    """Ranks 0 and 2 are the first of the groups they wait in, so only they wait for good."""

    def program(n):
        rows, columns = (
            [dist.new_group(lists[0]), dist.new_group(lists[1])]
            for lists in ([[0, 1], [2, 3]], [[0, 2], [1, 3]])
        )
        for groups in (columns, rows) if n in (0, 3) else (rows, columns):
            mine = next(group for group in groups if group != dist.GroupMember.NON_GROUP_MEMBER)
            dist.all_reduce(vector(), group=mine)

    text = str(failing(program, 4).error)
    assert "For ranks 1, 3" in text
    assert "600 s" in text


def of_steps(skip, last):
    """Ten steps of a wrapped model, of which rank 1 skips one, or has fewer."""

    def program(n):
        model = DistributedDataParallel(torch.nn.Linear(2, 1).cuda())
        for step in range(10 - (n == 1 and last)):
            loss = model(torch.ones(3, 2, device="cuda")).sum()
            if n == 1 and step == skip:
                continue
            loss.backward()
        torch.cuda.synchronize()

    return program


def test_a_skipped_step_is_told_as_one_and_fewer_batches_are_told_as_such():
    report = failing(of_steps(skip=4, last=0)).error.report
    assert "rank 1 ran the forward of the model as often as rank 0" in str(report)
    assert "only 9 times, rank 0 10 times: the rest of a step was skipped" in str(report)
    assert "`continue` in all of them" in report.advice
    assert report.fault == "collective_in_some_ranks"
    report = failing(of_steps(skip=None, last=1)).error.report
    assert "unequal numbers of batches" in str(report)
    assert report.fault == "uneven_inputs"


def test_it_is_said_in_chinese_too():
    labkit.set_language("zh")
    text = str(failing(lambda n: dist.barrier() if n else None).error)
    assert "走不下去" in text
    assert "怎么办：" in text


def test_the_same_program_fails_with_the_same_words_again():
    def program(n):
        if n:
            dist.all_reduce(vector())

    assert str(failing(program).error) == str(failing(program).error)


def test_a_rank_that_comes_after_the_timeout():
    def program(rank):
        torch.cuda.set_device(rank.local)
        dist.init_process_group("nccl", timeout=timedelta(seconds=30))
        pair = dist.new_group([1, 2])
        dist.barrier(device_ids=[rank.local])
        if rank.number:
            rank.wait_until(rank.clock() + 31)
            dist.barrier(group=pair)
        dist.all_reduce(vector())

    with World(3) as world, pytest.raises(RanksFailed) as caught:
        world.run(program)
    text = str(caught.value.error)
    assert text.startswith(
        "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, OpType=ALLREDUCE, NumelIn=3, "
        "NumelOut=3, Timeout(ms)=30000) ran for 30000 milliseconds before timing out."
    )
    assert "did not come" in text


# Words.


def test_ranks_in_words():
    assert faults.format_ranks([3]) == "rank 3"
    assert faults.format_ranks([0, 5, 3, 4, 2, 7, 8]) == "ranks 0, 2–5, 7, 8"
    assert [report.format_ordinal(n) for n in (1, 2, 3, 4, 11, 12, 21, 41, 112)] == [
        "1st", "2nd", "3rd", "4th", "11th", "12th", "21st", "41st", "112th",
    ]  # fmt: skip


def test_a_thousand_ranks_take_a_few_lines():
    def call(rank):
        made = CollectiveCall("all_reduce", [torch.ones(2)], [], op="SUM")
        made.rank, made.ranks, made.group, made.seq = rank, tuple(range(1024)), "0", 5
        made.code, made.line = sys._getframe().f_code, 1
        return made

    standings = [faults.RankState(0)] + [
        faults.RankState(rank, call(rank), seqs={"0": 5}) for rank in range(1, 1024)
    ]
    text = str(faults.deadlock_report(standings))
    assert "ranks 1–1023  wait for rank 0" in text
    assert len(text.splitlines()) < 8


def test_a_line_to_which_all_came_once_says_nothing_of_batches():
    def standing(rank, line, seq):
        made = CollectiveCall("all_reduce", [torch.ones(2)], [], op="SUM")
        made.rank, made.ranks, made.group, made.seq = rank, (0, 1), "0", seq
        made.code, made.line = sys._getframe().f_code, line
        lines = {(call.short_place, "all_reduce"): 1 for call in calls} | {
            (made.short_place, "all_reduce"): 1
        }
        calls.append(made)
        return faults.RankState(rank, made, came=lines, seqs={"0": seq})

    calls = []
    standings = [standing(0, 1, 2), standing(1, 2, 1)]
    assert faults.deadlock_report(standings).fault == "deadlock"


def test_ranks_that_failed_are_told_with_their_error_and_drawn_so():
    call = CollectiveCall("all_reduce", [torch.ones(2)], op="SUM")
    call.ranks, call.group, call.seq = (0, 1), "0", 2
    found = [
        faults.RankState(0, call),
        faults.RankState(1, error=("ValueError", "no such file"), seqs={"0": 1}),
    ]
    assert faults.state_lines(found)[1].split(maxsplit=2) == [
        "rank", "1", "failed with ValueError: no such file"
    ]  # fmt: skip
    waits = faults.wait_graph(found).ranks
    assert [(one.state, one.call, one.waits_for) for one in waits] == [
        ("waits", "all_reduce", (1,)), ("failed", "ValueError", ())
    ]  # fmt: skip


def test_lists_of_other_lengths_do_not_fit():
    one, two = (CollectiveCall("all_reduce", [torch.ones(2)] * count, op="SUM") for count in (1, 2))
    one.ranks = two.ranks = (0, 1)
    two.rank = 1
    assert faults.calls_fit(one, one)
    assert not faults.calls_fit(one, two)
    assert faults.mismatch_error([one, two]).report.fault == "calls_differ"


def test_of_many_shapes_three_are_named():
    tensors = [torch.ones(size) for size in range(5)]
    assert report.describe_call(CollectiveCall("send", tensors, [])) == (
        "send [0] float32 [1] float32 [2] float32 …"
    )
