"""Right and wrong answers to the exercises of lesson 16, tried with those of the others in test_answers.py."""

import textwrap

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.pipelining.schedules import get_schedule_class

from labkit_ranks.plans.pipeline import ORDERS


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


def theirs(stage, stages, pieces):
    get_schedule_class("1F1B")
    return right(stage, stages, pieces)


ORDERED = [
    (right, None), (turned_round, None),
    (ORDERS["GPipe"], "which makes the order itself"), (theirs, "which makes the order itself"),
    (lambda s, p, m: [f"{way}{k}" for way in "FB" for k in range(m)], "this is GPipe"),
    (lambda s, p, m: [f"{way}{k}" for k in range(m) for way in "FB"], "it takes"),
    (lambda s, p, m: order(s, p, m, p - 1), "all stages keep equally many"),
    (lambda s, p, m: order(s, p, m, p - s), "runs ahead too far"),
    (lambda s, p, m: order(s, p, m, max(p - 2 - s, 0)), "it takes"),
    (lambda s, p, m: order(s, p, m, s), "no stage can go on"),
    (lambda s, p, m: right(s, p, m)[::-1], "no stage can go on"),
    (lambda s, p, m: right(s, p, m)[:-1], "B7 is missing"),
    (lambda s, p, m: [*right(s, p, m), "B0"], "B0 comes 2 times"), (unguarded, "cannot run ahead farther"),
    (swapped, "the gradient of stage 0 is wrong"),
]  # fmt: skip


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
TO_NEIGHBOURS = """out, into = [[activation.new_empty(0) for _ in range(dist.get_world_size())] for _ in range(2)]
if is_back: out[after], into[after] = activation, back
if is_on: out[before], into[before] = gradient, on
dist.all_to_all(into, out)"""
EXCHANGED = [
    (BATCH, None),
    (f"{TURNED}\n{SENT}", None),
    (f"if rank % 2 == 0:\n  {SENT}\n  {BACK}\nelse:\n  {TURNED}\n  {FIRST}", None),
    (f"{SENT}\n{BACK}", "both wait in `send`"),
    (POSTED, "both wait in `send`"),
    (f"{FIRST}\n{TURNED}", "both wait in `recv`"),
    (f"if rank == 0:\n  {SENT}\nelse:\n  {TURNED}\n  {FIRST}", "two ranks work, 3 do not"),
    (f"dist.barrier()\n{SENT}\n{BACK}", "both wait in `send`"),
    (BATCH.replace("if is_back: ", "").replace("if is_on: ", ""), "leave that message out"),
    (f"{TURNED}\n{SENT}".replace("if is_back: ", ""), "leave that message out"),
    (f"{BATCH}\nreturn back, on", "have changed places"),
    (f"{TURNED}\n{SENT}\nif is_on: activation.copy_(on)\nif is_on: on = activation", "Receive into another one"),
    (BATCH.replace("for work in", "_ =").replace(": work.wait()", ""), "second value is not the gradient"),
    (f"{BATCH}\non = activation", "first value is not the activation"),
    ("got = [torch.empty_like(activation) for _ in range(dist.get_world_size())]\ndist.all_gather(got, activation)\n"
     "if is_on: on = got[before]\ndist.all_gather(got, gradient)\nif is_back: back = got[after]",
     "sends all of it to all"),
    (TO_NEIGHBOURS, None), (TO_NEIGHBOURS.replace("new_empty(0)", "clone()"), "sends all of it to all"),
]  # fmt: skip


FOUND = [
    ([0.742, 12.0], None), ((0.7432, 11.98), None), (torch.tensor([0.742, 12.04]), None),
    (np.polyfit([32, 64, 96, 128], [35.77, 59.65, 83.11, 107.12], 1), None),
    ([12.0, 0.742], "have changed places"),
    ([71.35 / 1536, 12.0], "one row of the global batch"),
    ([71.35 / 768, 12.0], "shared out to 8 replicas first"),
    ([71.35 / 192, 12.0], "one row of a replica"),
    ([35.77 / 32, 0], "nothing is left for the bubble"),
    ([107.12 / 128, 0], "nothing is left for the bubble"), ([0.742, 35.77], "is not what is left"),
    ([2, 12], "take two of the four"),
]  # fmt: skip

RIGHT = {
    "16.length": [33],
    "16.alive": [8],
    "16.order": [answer for answer, words in ORDERED if not words],
    "16.exchange": [exchanges(body) for body, words in EXCHANGED if not words],
    "16.bloom": [answer for answer, words in FOUND if not words],
}
WRONG = {
    "16.length": [(96, "one micro-batch after another"), (24, "how long each stage computes"),
        (36, "after 4 − 1 forwards"), (27, "the last gradient has to go back"), (30, "follow the last stage")],
    "16.alive": [(32, "GPipe keeps all of them"), (1, "on the last stage it is one"), (7, "on one more"),
        (16, "how many micro-batches does stage 0")],
    "16.order": [(answer, words) for answer, words in ORDERED if words],
    "16.exchange": [(exchanges(body), words) for body, words in EXCHANGED if words],
    "16.bloom": [(answer, words) for answer, words in FOUND if words],
}  # fmt: skip
