"""The exercises of lesson 16: right answers of several kinds pass, and each wrong one gets the hint that is meant."""

import textwrap

import pytest
import torch
import torch.distributed as dist

import labkit
from labkit.course.exercise import find
from labkit.plans.pipeline import ORDERS


def order(stage, stages, pieces, ahead):
    tasks = [f"F{k}" for k in range(min(ahead, pieces))]
    for k in range(pieces):
        tasks += [f"F{k + ahead}"] * (k + ahead < pieces) + [f"B{k}"]
    return tasks


def right(stage, stages, pieces):
    return order(stage, stages, pieces, stages - 1 - stage)


def turned_round(stage, stages, pieces):
    """The same with the micro-batches in another order, the same on all stages."""
    return [f"{name[0]}{pieces - 1 - int(name[1:])}" for name in right(stage, stages, pieces)]


def swapped(stage, stages, pieces):
    """Stage 0 has time to do F3 before F2; the others expect F2."""
    tasks = right(stage, stages, pieces)
    if stage == 0 and tasks[2:4] == ["F2", "F3"]:
        tasks[2:4] = ["F3", "F2"]
    return tasks


def unguarded(stage, stages, pieces):
    ahead = stages - 1 - stage
    turns = [[f"F{k + ahead}"] * (k + ahead < pieces) + [f"B{k}"] for k in range(pieces)]
    return [f"F{k}" for k in range(ahead)] + sum(turns, [])


ORDERED = [
    (right, None),
    (turned_round, None),
    (ORDERS["GPipe"], "borrowed"),
    (lambda s, p, m: ORDERS["GPipe"](s, p, m), "borrowed"),
    (lambda s, p, m: [f"{way}{k}" for way in "FB" for k in range(m)], "all_first"),
    (lambda s, p, m: [f"{way}{k}" for k in range(m) for way in "FB"], "long"),
    (lambda s, p, m: order(s, p, m, p - 1), "same_ahead"),
    (lambda s, p, m: order(s, p, m, p - s), "alive"),
    (lambda s, p, m: order(s, p, m, max(p - 2 - s, 0)), "long"),
    (lambda s, p, m: order(s, p, m, s), "stuck"),
    (lambda s, p, m: right(s, p, m)[::-1], "stuck"),
    (lambda s, p, m: right(s, p, m)[:-1], "missing"),
    (unguarded, "few"),
    (swapped, "gradient"),
]


@pytest.mark.parametrize(("answer", "hint"), ORDERED)
def test_an_order_is_judged_by_running_it(answer, hint):
    found = find("16.order").hint(answer)
    assert (found and found.id) == hint


def test_pytorchs_own_order_is_borrowed():
    from torch.distributed.pipelining.schedules import _get_1f1b_rank_ops

    def theirs(stage, stages, pieces):
        _get_1f1b_rank_ops(1, stages, stages - 1 - stage, pieces, pieces, stages - 1 - stage, stage, stage)
        return right(stage, stages, pieces)

    assert find("16.order").hint(theirs).id == "borrowed"


def exchanges(body):
    names = {"dist": dist, "torch": torch}
    head = "def exchange(activation, gradient, before, after):\n" + textwrap.indent(
        "on, back = torch.empty_like(activation), torch.empty_like(gradient)\nrank = dist.get_rank()\n"
        "is_on, is_back = before is not None, after is not None\n" + body + "\nreturn on, back", "    "
    )  # fmt: skip
    exec(head, names)
    return names["exchange"]


SENT = "if is_back: dist.send(activation, after); dist.recv(back, after)"
BACK = "if is_on: dist.send(gradient, before); dist.recv(on, before)"
TURNED = "if is_on: dist.recv(on, before); dist.send(gradient, before)"
FIRST = "if is_back: dist.recv(back, after); dist.send(activation, after)"
POSTED = """works = []
if is_back: works += [dist.isend(activation, after), dist.irecv(back, after)]
if is_on: works += [dist.isend(gradient, before), dist.irecv(on, before)]
for work in works: work.wait()"""
BATCH = """ops = []
if is_back: ops += [dist.P2POp(dist.isend, activation, after), dist.P2POp(dist.irecv, back, after)]
if is_on: ops += [dist.P2POp(dist.isend, gradient, before), dist.P2POp(dist.irecv, on, before)]
for work in dist.batch_isend_irecv(ops): work.wait()"""
EXCHANGED = [
    (POSTED, None),
    (BATCH, None),
    (f"{TURNED}\n{SENT}", None),
    (f"if rank % 2 == 0:\n  {SENT}\n  {BACK}\nelse:\n  {TURNED}\n  {FIRST}", None),
    (f"{SENT}\n{BACK}", "both_send"),
    (f"{FIRST}\n{TURNED}", "both_receive"),
    (f"if rank == 0:\n  {SENT}\nelse:\n  {TURNED}\n  {FIRST}", "two_alone"),
    (f"dist.barrier()\n{SENT}\n{BACK}", "both_send"),
    (f"{POSTED}\nreturn back, on", "turned"),
    (POSTED.replace("for work in works: work.wait()", ""), "not_there"),
    (f"{POSTED}\non = activation", "not_on"),
    ("got = [torch.empty_like(activation) for _ in range(dist.get_world_size())]\ndist.all_gather(got, activation)\n"
     "if is_on: on = got[before]\ndist.all_gather(got, gradient)\nif is_back: back = got[after]", "everybody"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "hint"), EXCHANGED)
def test_an_exchange_is_judged_by_long_messages_on_several_numbers_of_ranks(body, hint):
    found = find("16.exchange").hint(exchanges(body))
    assert (found and found.id) == hint


FOUND = [
    ([0.742, 12.0], None),
    ((0.7432, 11.98), None),
    (torch.tensor([0.742, 12.04]), None),
    ([12.0, 0.742], "turned"),
    ([71.35 / 1536, 12.0], "by_row"),
    ([71.35 / 768, 12.0], "by_replica"),
    ([71.35 / 192, 12.0], "by_two"),
    ([35.77 / 32, 0], "divided"),
    ([107.12 / 128, 0], "divided"),
    ([0.742, 35.77], "fixed"),
    ([2, 12], "slope"),
]


@pytest.mark.parametrize(("answer", "hint"), FOUND)
def test_the_bubble_is_found_in_four_times(answer, hint):
    found = find("16.bloom").hint(answer)
    assert (found and found.id) == hint


def test_a_notebooks_session_goes_on():
    with labkit.ranks(2) as session:
        assert find("16.order").hint(right) is None
        assert list(session.run(dist.get_rank)) == [0, 1]
