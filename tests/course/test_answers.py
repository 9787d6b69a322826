"""Exercises judge, hint and reveal, in both languages; no answer of any kind breaks a lesson."""

import copy
import itertools
import re
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from random import Random
from threading import Thread

import experts_answers
import mesh_answers
import numpy as np
import pipeline_answers
import plan_answers
import pytest
import ranks_answers
import same_answers
import torch
from torch.nn.parallel import data_parallel

import labkit
from labkit.base.language import using
from labkit.cost.plan import forecast
from labkit.cost.sizes import MODELS
from labkit_course import check, glossary, reveal
from labkit_course.content import module
from labkit_course.exercise import derive_facts, find, ids
from labkit_course.verdict_html import as_html
from tools.author import sync

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def chunks(rows, gpus):
    return [len(piece) for piece in torch.arange(rows).chunk(gpus)]


def on_copies(model, batch, devices):
    outputs = [
        copy.deepcopy(model).to(d)(b.to(d)) for b, d in zip(batch.chunk(len(devices)), devices, strict=False)
    ]
    return torch.cat([output.to(devices[0]) for output in outputs])


def at_home(model):
    return model.to("cuda:0" if torch.cuda.is_available() else "cpu")


def anywhere(model):
    return at_home(torch.nn.DataParallel(model) if torch.cuda.device_count() > 1 else model)


def whole_batch_everywhere(model, batch, devices):
    return [copy.deepcopy(model).to(device)(batch.to(device)) for device in devices][0]


def reader():
    """The model of lesson 06 that is to be repaired, from its cell."""
    cells = sync.read(NOTEBOOKS, "en", "06_batch_dim").cells
    made = {"nn": torch.nn}
    exec(next(cell.source for cell in cells if cell.id == "digits"), made)
    return made["Digits"]


def functions(lesson, *ids):
    """What the named cells of a lesson define."""
    cells = {cell.id: cell.source for cell in sync.read(NOTEBOOKS, "en", lesson).cells}
    made = {"torch": torch, "copy": copy, "Thread": Thread}
    exec("\n".join(cells[name] for name in ids), made)
    return made


FOUR = functions("04_primitives", "scatter", "gather", "replicate", "apply")


def one_call(model, batch, devices, order=slice(None), home=0):
    """The whole call by the four functions of lesson 04."""
    pieces = FOUR["scatter"](batch, devices)
    replicas = FOUR["replicate"](model, devices[: len(pieces)])
    return FOUR["gather"](FOUR["parallel_apply"](replicas, pieces)[order], devices[home])


def for_all_devices(model, batch, devices):
    """The line of the lesson's own cell: replicas that get no piece, where rows are few."""
    pieces = FOUR["scatter"](batch, devices)
    return FOUR["gather"](FOUR["parallel_apply"](FOUR["replicate"](model, devices), pieces), devices[0])


Digits = reader()


def total(parts):
    return sum(len(part) for part in parts)


def in_parts(loss=lambda y, parts: y.sum() / total(parts), wrap=lambda model: model, scale=False, zero=False):
    """Gradients added up over parts; ``scale`` divides the rows instead of the loss."""

    def accumulate(model, parts):
        for part in parts:
            if zero:
                model.zero_grad()
            if scale:
                wrap(model)(part / total(parts)).sum().backward()
            else:
                loss(wrap(model)(part), parts).backward()

    return accumulate


def scaled_afterwards(model, parts):
    in_parts(lambda y, parts: y.sum())(model, parts)
    model[0].weight.grad /= total(parts)


def counted_first(model, parts):
    with torch.no_grad():
        rows = sum(len(model(part)) for part in parts)
    in_parts(lambda y, parts: y.sum() / rows)(model, parts)


class Repaired(Digits):
    """The reader with its two results passed through functions."""

    def __init__(self, scores=lambda x: x.transpose(0, 1), hidden=lambda x: x.transpose(0, 1)):
        super().__init__()
        self.turn = scores, hidden

    def forward(self, images):
        return tuple(turn(result) for turn, result in zip(self.turn, super().forward(images), strict=True))


class AsksForWeights(Repaired):
    """A repaired reader that needs its parameters, which a replica has not."""

    def forward(self, images):
        return super().forward(images) if list(self.parameters())[0].dim() else None


class BatchFirst(Digits):
    """The reader with batch_first=True; ``order`` says what is done to the CNN's [batch, 4, 12]."""

    def __init__(self, order, turned=True):
        super().__init__()
        self.rnn = torch.nn.GRU(4, 7, batch_first=True)
        self.order, self.turned = order, turned

    def forward(self, images):
        output, hidden = self.rnn(self.cnn(images).squeeze(2).permute(self.order))
        if self.order[0]:  # the RNN went along the images
            return self.scores(output).transpose(0, 1), hidden.reshape(-1)[: 7 * len(images)].reshape(
                -1, 1, 7
            )
        return self.scores(output), hidden.transpose(0, 1) if self.turned else hidden


class ColumnsAsBatch(Digits):
    """The batch goes first into an RNN without ``batch_first``."""

    def forward(self, images):
        output, hidden = self.rnn(self.cnn(images).squeeze(2).transpose(1, 2))
        return self.scores(output), hidden.transpose(0, 1)


class Squeezed(Digits):
    def forward(self, images):
        output, hidden = self.rnn(self.cnn(images).squeeze().permute(2, 0, 1))
        return self.scores(output).transpose(0, 1), hidden.transpose(0, 1)


class Fixed(Repaired):
    """The reader repaired for these numbers of images, and for no other."""

    def __init__(self, *counts):
        super().__init__()
        self.counts = counts

    def forward(self, images):
        scores, hidden = super().forward(images)
        return (scores, hidden) if len(images) in self.counts else (scores * 2, hidden)


class Returns(torch.nn.Module):
    def __init__(self, value=None):
        super().__init__()
        self.value = value

    def forward(self, images):
        return self.value


def of_lesson(lesson, cell, **names):
    """What a cell of a lesson of part two defines, and these names."""
    made = {"torch": torch, "dist": torch.distributed, "nn": torch.nn, **names}
    exec(next(one.source for one in sync.read(NOTEBOOKS, "en", lesson).cells if one.id == cell), made)
    return made


DDP = of_lesson("12_ddp", "pack")


def in_buckets(
    full=lambda held, most: held >= most, packed=list, cleared=True, sent_at_once=True, received=False
):
    """A ``ready`` of lesson 12: when a bucket is full, what is given to ``send``, what becomes of it after that."""

    def ready(gradient, bucket, sent, most):
        bucket.append(gradient)
        if sent_at_once and full(sum(one.nbytes for one in bucket), most):
            one = DDP["send"](packed(bucket))
            DDP["receive"](*one) if received else sent.append(one)
            if cleared:
                bucket.clear()

    return ready


def always_last(bucket, sent):
    sent.append(DDP["send"](list(bucket)))
    for one in sent:
        DDP["receive"](*one)


def ready_when_the_next_does_not_fit(gradient, bucket, sent, most):
    if bucket and sum(one.nbytes for one in bucket) + gradient.nbytes > most:
        sent.append(DDP["send"](list(bucket)))
        bucket.clear()
    bucket.append(gradient)


def ready_and_waits(gradient, bucket, sent, most):
    in_buckets()(gradient, bucket, sent, most)
    for work, *_ in sent:
        work.wait()


def ready_in_pieces(gradient, bucket, sent, most):
    bucket.append(gradient)
    if sum(one.nbytes for one in bucket) >= most:
        sent.extend(DDP["send"](list(bucket)))
        bucket.clear()


def first_part_is_sent(parallel, parts):
    (parallel(parts[0]).square().mean() / len(parts)).backward()
    for part in parts[1:]:
        with parallel.no_sync():
            (parallel(part).square().mean() / len(parts)).backward()


def last_part_undivided(parallel, parts):
    for part in parts[:-1]:
        with parallel.no_sync():
            (parallel(part).square().mean() / len(parts)).backward()
    parallel(parts[-1]).square().mean().backward()


def counts_on_the_cpu(losses):
    count = torch.tensor(float(len(losses)))
    torch.distributed.all_reduce(count)
    return losses.sum() * torch.distributed.get_world_size() / count


def last_bucket(bucket, sent):
    if bucket:
        sent.append(DDP["send"](list(bucket)))
    for one in sent:
        DDP["receive"](*one)


def accumulated(
    inside, scale=lambda n: 1 / n, passes=lambda parts: parts[:-1], last=lambda parallel: parallel
):
    """A ``step`` of lesson 12; ``inside``: whether forward is inside of ``no_sync``."""

    def step(parallel, parts):
        for part in passes(parts):
            loss = None if inside else parallel(part).square().mean()
            with parallel.no_sync():
                loss = parallel(part).square().mean() if loss is None else loss
                (loss * scale(len(parts))).backward()
        if last is not None:
            (last(parallel)(parts[-1]).square().mean() * scale(len(parts))).backward()

    return step


def back_at_once(parallel, parts):
    sum(parallel(part).square().mean() / len(parts) for part in parts).backward()


def back_after_all(parallel, parts):
    with parallel.no_sync():
        losses = [parallel(part).square().mean() / len(parts) for part in parts[:-1]]
        for loss in losses:
            loss.backward()
    (parallel(parts[-1]).square().mean() / len(parts)).backward()


def synced_at_last(parallel, parts):
    for number, part in enumerate(parts, 1):
        parallel.require_backward_grad_sync = number == len(parts)
        (parallel(part).square().mean() / len(parts)).backward()


def all_at_once(parallel, parts):
    parallel(parts.flatten(0, 1)).square().mean().backward()


def prepared(model=0, order=0, noise=1, drawn=torch.manual_seed):
    """A ``prepare`` of lesson 13: each is how many times the rank is added to the seed before this is drawn."""

    def prepare(seed):
        def seeded(times):
            if times is not None:
                drawn(seed + times * torch.distributed.get_rank())

        seeded(model)
        weight = torch.nn.Linear(3, 1).weight
        seeded(order if order else None)
        rows = torch.randperm(12)
        seeded(noise)
        return weight, rows, torch.randn(4)

    return prepare


def scaled_noise(seed):
    weight, rows, noise = prepared(noise=0)(seed)
    return weight, rows, noise * (1 + torch.distributed.get_rank())


def part_by_part(parallel, parts):
    for rows, labels in parts:
        count = (labels != -100).sum()
        torch.distributed.all_reduce(count)
        loss = torch.nn.functional.cross_entropy(parallel(rows), labels, reduction="sum")
        (loss * torch.distributed.get_world_size() / count).backward()


def loss_by(made):
    """A ``loss_of`` of lesson 13: ``made`` of the losses, of all ranks' count of them, and of the number of ranks."""

    def loss_of(losses):
        count = torch.tensor(float(len(losses)), device=losses.device)
        torch.distributed.all_reduce(count)
        return made(losses, count, torch.distributed.get_world_size())

    return loss_of


def recipe(scale, reduction="sum", of_all=True, counted=lambda labels: (labels != -100).sum()):
    """A ``step`` of lesson 13: ``scale`` of the count, the ranks and the parts is what a loss is multiplied by."""

    def step(parallel, parts):
        count = sum(counted(labels) for _, labels in parts)
        if of_all:
            torch.distributed.all_reduce(count)
        for rows, labels in parts:
            loss = torch.nn.functional.cross_entropy(parallel(rows), labels, reduction=reduction)
            (loss * scale(count, torch.distributed.get_world_size(), len(parts))).backward()

    return step


def reduced(scale=lambda total, ranks: total / ranks, ranks=None, first=False):
    """An ``average`` of lesson 08: what is made of the sum; the ranks that call; ``first``: divided before."""

    def mine(gradient):
        count = torch.distributed.get_world_size()
        gradient = gradient / count if first else gradient
        if ranks is None or torch.distributed.get_rank() in ranks:
            torch.distributed.all_reduce(gradient)
        return gradient if first else scale(gradient, count)

    return mine


def returned_by_the_first(gradient):
    mean = reduced()(gradient)
    return mean if torch.distributed.get_rank() == 0 else None


def in_background(finish, late=False):
    """An ``average`` of lesson 08 with ``async_op=True``; ``finish`` takes its work. ``late``: after the division."""

    def mine(gradient):
        work = torch.distributed.all_reduce(gradient, async_op=True)
        if late:
            gradient = gradient / torch.distributed.get_world_size()
        finish(work)
        return gradient if late else gradient / torch.distributed.get_world_size()

    return mine


def waits_twice(gradient):
    torch.distributed.all_reduce(gradient, async_op=True).wait()
    gradient /= torch.distributed.get_world_size()
    torch.cuda.synchronize()
    return gradient


def gathered(gradient):
    every = [torch.empty_like(gradient) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(every, gradient)
    return torch.stack(every).mean(0)


def counted(count=lambda x: torch.tensor([len(x)], device=x.device), shown=lambda output: output):
    """A ``Counted`` of lesson 08: what it returns as the number of rows, and of the layer's output."""

    class Counted(torch.nn.Linear):
        def forward(self, x):
            return shown(super().forward(x)), count(x)

    return Counted


def refuses(x):
    raise RuntimeError("boom")


class ReturnsOne(torch.nn.Linear):
    def forward(self, x):
        return len(x)


class KeepsCount(torch.nn.Linear):
    total = 0

    def forward(self, x):
        self.total = self.total + len(x)
        return super().forward(x), torch.tensor([self.total], device=x.device)


class OverRows(torch.nn.GroupNorm):
    """A norm of nobody's: the mean over the rows of a piece."""

    def forward(self, x):
        return x - x.mean(0)


def replaced(made=lambda norm: torch.nn.GroupNorm(1, norm.num_features), deep=True, copied=False):
    """A ``without_batch_norm`` of lesson 08: what stands in the place of each, and whether inside of modules too."""

    def without_batch_norm(model):
        model = copy.deepcopy(model) if copied else model
        for layer in list(model.modules()) if deep else [model]:
            for name, child in layer.named_children():
                if isinstance(child, torch.nn.modules.batchnorm._BatchNorm):
                    setattr(layer, name, made(child))
        return model

    return without_batch_norm


def by_name(model):
    """By the names of all modules, as many write it."""
    for name, layer in list(model.named_modules()):
        if isinstance(layer, (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d)):
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, torch.nn.GroupNorm(2, layer.num_features))
    return model


def untangled(output, columns):
    return torch.cat(output.split(columns), dim=1)


def nearest(keep=lambda model, table: model.register_buffer("table", table), found=lambda rows: rows):
    """A ``Nearest`` of lesson 06: how the table is kept, and what is made of the rows that are found."""

    class Nearest(torch.nn.Module):
        def __init__(self, table):
            super().__init__()
            keep(self, table)

        def forward(self, rows):
            return found(torch.cdist(rows, self.table).argmin(dim=1))

    return Nearest


class follows_its_rows(torch.nn.Module):
    """Keeps the table where nothing finds it, and takes it along by hand."""

    def __init__(self, table):
        super().__init__()
        self.table, self.seen = table, torch.nn.Buffer(torch.zeros(1))

    def forward(self, rows):
        return torch.cdist(rows, self.table.to(rows.device)).argmin(dim=1)


class AsksItsParameters(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x), torch.tensor([len(x)], device=next(self.parameters()).device)


def without_relu(model):
    model.block[2] = torch.nn.Identity()
    return replaced()(model)


def silent_if_wrapped(model, state):
    loaded(strict=not isinstance(model, torch.nn.DataParallel))(model, state)


def load_in_order(model, state):
    for weight, value in zip(model.state_dict().values(), state.values(), strict=True):
        weight.copy_(value)


def load_what_there_is(model, state):
    """Asks for what comes first only."""
    inner = unwrapped(model)
    loaded(strict="submodule.bias" in str(list(state)))(inner, state)


def renames_the_callers(state):
    for key in list(state):
        state[key.removeprefix("module.")] = state.pop(key)
    return state


def rows_of(kind=list):
    return lambda gpu, rows, gpus: kind(range(*bounds(gpu, rows, gpus)))


def bounds(gpu, rows, gpus):
    chunk = -(-rows // gpus)
    return [min(gpu * chunk, rows), min((gpu + 1) * chunk, rows)]


def all_busy(last=lambda rows, size: rows % size or size):
    """An ``all_busy`` of lesson 03; ``last``: how many rows the last batch is taken to have."""

    def busy(rows, size, gpus):
        sizes = [min(size, rows), min(last(rows, size), rows)]
        return all(rows and -(-rows // -(-rows // gpus)) == gpus for rows in sizes)

    return busy


def moved(to=lambda x, device: x.to(device), deep=True, kept=True):
    """A ``move`` of lesson 02: how a tensor is moved, whether inside of what is inside, whether the form is kept."""

    def move(batch, device, depth=0):
        if isinstance(batch, torch.Tensor):
            return to(batch, device)
        if isinstance(batch, (dict, list, tuple)) and (deep or not depth):
            values = batch.values() if isinstance(batch, dict) else batch
            made = [move(value, device, depth + 1) for value in values]
            return (
                dict(zip(batch, made, strict=True))
                if isinstance(batch, dict)
                else (type(batch) if kept else list)(made)
            )
        return batch

    return move


def tree_moved(batch, device):
    return torch.utils._pytree.tree_map(lambda x: x.to(device) if isinstance(x, torch.Tensor) else x, batch)


def changes_the_callers(batch, device):
    if isinstance(batch, dict):
        for key, value in batch.items():
            batch[key] = changes_the_callers(value, device)
        return batch
    return moved()(batch, device)


def replaces_while_walking(model):
    for name, inner in model.named_modules():
        if isinstance(inner, torch.nn.modules.batchnorm._BatchNorm):
            setattr(model, name, torch.nn.GroupNorm(1, inner.num_features))
    return model


def one_after_another(model, batch, devices):
    """The whole call without ``parallel_apply``."""
    pieces = FOUR["scatter"](batch, devices)
    return FOUR["gather"](
        [FOUR["replicate"](model, [piece.device])[0](piece) for piece in pieces], devices[0]
    )


def by_ready_replicas(model, batch, devices):
    pieces = FOUR["scatter"](batch, devices)
    return FOUR["gather"](
        FOUR["parallel_apply"](torch.nn.parallel.replicate(model, devices), pieces), devices[0]
    )


def safe(rows, batch_size, gpus):
    return all(1 not in batch.sizes for batch in labkit.batches(rows, batch_size, gpus=gpus))


def leaves_an_output_out(model, batch, devices):
    return FOUR["gather"]([model(batch.to(devices[0])), None], devices[0])  # as after an error in a thread


def dives_through_dicts_only(batch, device):
    if isinstance(batch, dict):
        return {key: dives_through_dicts_only(value, device) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return type(batch)(x.to(device) if isinstance(x, torch.Tensor) else x for x in batch)
    return batch.to(device) if isinstance(batch, torch.Tensor) else batch


def writes_into_lists(batch, device):
    if isinstance(batch, list):
        batch[:] = [moved()(value, device) for value in batch]
        return batch
    return moved()(batch, device)


def stops_in(*kinds):
    """A ``move`` of lesson 02 that goes no further into what is inside of these kinds of containers."""

    def move(batch, device):
        if isinstance(batch, kinds):
            values = batch.items() if isinstance(batch, dict) else enumerate(batch)
            found = {key: x.to(device) if isinstance(x, torch.Tensor) else x for key, x in values}
            return found if isinstance(batch, dict) else type(batch)(found.values())
        if isinstance(batch, dict):
            return {key: move(value, device) for key, value in batch.items()}
        if isinstance(batch, (list, tuple)):
            return type(batch)(move(value, device) for value in batch)
        return batch.to(device) if isinstance(batch, torch.Tensor) else batch

    return move


def takes_its_data_away(x, y):
    y.data = y.data.to(x.device)
    return x + y


def replica_for_each_row(model, batch, devices):
    replicas = FOUR["replicate"](model, devices[: len(batch)])
    return FOUR["gather"](FOUR["parallel_apply"](replicas, FOUR["scatter"](batch, devices)), devices[0])


def four_steps(model, batch, devices, used=None, apply=FOUR["parallel_apply"]):
    """The whole call on the devices that ``used`` makes of ``devices``, gathered on the first of ``devices``."""
    used = devices if used is None else used
    pieces = FOUR["scatter"](batch, used)
    return FOUR["gather"](apply(FOUR["replicate"](model, used[: len(pieces)]), pieces), devices[0])


def others(model):
    return [gpu for gpu in range(torch.cuda.device_count()) if gpu != model.weight.get_device()]


def around(ids=lambda home, every: [home, *[gpu for gpu in every if gpu != home]]):
    """A ``wrap`` of lesson 05: the ids, given the model's GPU and all of them."""
    return lambda model: torch.nn.DataParallel(
        model, device_ids=ids(model.weight.get_device(), range(torch.cuda.device_count()))
    )


def unwrapped(model):
    return model.module if isinstance(model, torch.nn.DataParallel) else model


def loaded(into=unwrapped, **options):
    """A ``load`` of lesson 05 that takes the prefix off; into what of the model, and how."""

    def load(model, state):
        plain = {key.removeprefix("module."): value for key, value in state.items()}
        into(model).load_state_dict(plain, **options)

    return load


def load_by_copying(model, state):
    with torch.no_grad():
        for name, weight in unwrapped(model).named_parameters():
            weight.copy_(state[name] if name in state else state[f"module.{name}"])


UNREPEATABLE = torch.Generator()
RIGHT = {
    "00.bytes": [20000, 20480, torch.ones(1000, 5).nbytes],
    "00.first_split": [[3, 3, 3], (3, 3, 3), torch.tensor([3, 3, 3]), np.array([3, 3, 3]),
                       labkit.split(9, 4).sizes],
    "00.add": [lambda x, y: x + y.to(x.device), lambda x, y: x.add(y.to(x))], "01.deadly": [129, "129 rows"],
    "01.stacked": [[30, 5], (30, 5)], "01.batches": [(30, 30, 30, 10), [30.0, 30, 30, 10]],
    "01.dropped": [10, 10.0, torch.tensor(10), np.int64(10)],
    "01.last_batch": [lambda rows, size: rows - (rows - 1) // size * size], "01.single": [49, 14, 33, 97, "99 rows"],
    "01.safe": [safe, lambda r, b, g: torch.tensor(safe(r, b, g)),
                lambda r, b, g: all(len(c) > 1 for part in torch.ones(r).split(b) for c in part.chunk(g))],
    "02.tensor_copy": ["cpu", " CPU ", torch.device("cpu")], "02.one": [2], "02.inside": [15], "02.lines": [8],
    "02.wrapping": ["cpu", "device(type='cpu')", "torch.device('cpu')", "“cpu”"],
    "02.anywhere": [
        anywhere,
        lambda model: (
                          labkit.DataParallel(model).cuda()
                          if torch.cuda.device_count() > 1
                          else model.to("cuda" if torch.cuda.is_available() else "cpu")
                      ),
    ],
    "02.move": [moved(), moved(lambda x, device: x.to(device, copy=True)), tree_moved,
                lambda batch, device: moved()(batch, torch.device(device))],
    "02.inner": [unwrapped, lambda m: m.module if type(m).__name__ == "DataParallel" else m,
                 lambda m: next(m.children()) if isinstance(m, torch.nn.parallel.DataParallel) else m],
    "03.rows": [rows_of(), lambda gpu, rows, gpus: range(rows)[slice(*bounds(gpu, rows, gpus))],
                lambda gpu, rows, gpus: dict(enumerate(torch.arange(rows).chunk(gpus))).get(gpu, []),
                rows_of(tuple)],
    "03.idle": [3], "03.last": [5], "03.largest": [49, 49.0, "49 rows"],
    "03.busy": [all_busy(), lambda rows, size, gpus: bool(all_busy()(rows, size, gpus)),
                lambda rows, size, gpus: all(len(piece.chunk(gpus)) == gpus for piece in torch.ones(rows).split(size)),
                lambda rows, size, gpus: int(all_busy()(rows, size, gpus)),
                lambda rows, size, gpus: np.bool_(all_busy()(rows, size, gpus)),
                lambda rows, size, gpus: torch.tensor(all_busy()(rows, size, gpus))],
    "03.order": [2],
    "03.rule": [chunks, lambda rows, gpus: torch.tensor(chunks(rows, gpus)),
                lambda r, g: labkit.split(r, g).sizes],
    "04.gather": [FOUR["gather"], lambda outputs, device: torch.vstack([out.to(device) for out in outputs]),
                  torch.nn.parallel.gather],
    "04.gradient": [0, 0.0], "04.parameters": [0, torch.tensor(0)],
    "04.call": [one_call, lambda m, b, d: one_call(m, b.to(d[-1]), d), four_steps], "04.replicas": [3],
    "04.travel": [2720],
    "05.around": [around(), around(lambda home, ids: [home, *sorted({*ids} - {home})]),
                  lambda m: labkit.DataParallel(m, device_ids=[m.weight.device.index, *others(m)]),
                  lambda m: torch.nn.DataParallel(m, [torch.device("cuda", m.weight.get_device()), *others(m)])],
    "05.load": [loaded(), lambda model, state: loaded()(unwrapped(model), state), load_by_copying],
    "05.output": ["cuda:1", torch.device("cuda:1"), " cuda:1 ", "torch.device('cuda', 1)"],
    "05.match": [[5, 3, 2, 4, 6, 1], "5 3 2 4 6 1", "532461", "A5 B3 C2 D4 E6 F1",
                 "f=1, a=5, b=3, c=2, d=4, e=6"],
    "05.plain": [lambda state: OrderedDict((k.removeprefix("module."), v.clone()) for k, v in state.items()),
                 lambda state: {k.removeprefix("module."): state[k] for k in sorted(state)}],
    "06.shape": [[260, 8, 5530], (260, 8, 5530), torch.Size([260, 8, 5530])],
    "06.hidden": [[1, 8, 6], torch.Size([1, 8, 6])],
    "06.repair": [Repaired(), Repaired, BatchFirst((0, 2, 1)), Repaired(hidden=lambda x: x[0]),
                  torch.nn.DataParallel(Repaired()), Repaired(hidden=lambda x: x.squeeze(0))],
    "06.untangle": [untangled, lambda x, n: torch.cat([x[at : at + n] for at in range(0, len(x), n)], 1),
                    lambda x, n: x.unflatten(0, (-1, n)).transpose(0, 1).flatten(1, 2)],
    "06.table": [nearest(), nearest(lambda model, table: setattr(
                     model, "table", torch.nn.Parameter(table, requires_grad=False))),
                 nearest(lambda model, table: setattr(model, "table", torch.nn.Buffer(table))),
                 nearest(lambda model, table: model.register_buffer("table", table.clone())),
                 nearest(lambda model, table: (model.register_buffer("table", table),
                                               setattr(model, "scale", torch.nn.Parameter(torch.ones(1)))))],
    "07.sum": [12, 12.0, torch.tensor([[12.0]])],
    "07.mean": [lambda means, sizes: (means * sizes).sum() / sizes.sum(),  # means as gather gives them
                lambda means, sizes: sum(m * n for m, n in zip(means, sizes, strict=True)) / sum(sizes),
                lambda means, sizes: torch.dot(means, sizes / sizes.sum())],
    "07.parts": [in_parts(), in_parts(lambda y, parts: y.mean() * len(y) / total(parts), wrap=torch.nn.DataParallel),
                 scaled_afterwards, counted_first],
    "08.calls": [0],
    "08.average": [3, 3.0, torch.tensor(3.0), torch.tensor([3.0]), np.float32(3)],
    "08.all_reduce": [reduced(), reduced(lambda total, ranks: total.div_(ranks)), reduced(first=True), gathered,
                      *map(in_background, [lambda work: work.wait(), lambda work: work.get_future().wait(),
                                           lambda work: torch.cuda.synchronize()]),
                      waits_twice],
    "08.count": [counted(), counted()(3, 2), counted(lambda x: x.new_tensor([len(x)])),
                 counted(lambda x: torch.tensor(len(x), device=x.device))],
    "08.groups": [replaced(), replaced(lambda norm: torch.nn.GroupNorm(2, norm.num_features)),
                  replaced(copied=True), by_name],
    "12.own": [(in_buckets(), last_bucket), [in_buckets(packed=tuple), last_bucket]],
    "12.repair": [accumulated(inside=True), synced_at_last], "12.rows": [256], "12.steps": [1],
    "13.rows": [[3, 7, 1], (3, 7, 1), "3 7 1"], "13.seeds": [prepared()], "13.means": [3.5, "3.5"],
    "13.mean": [loss_by(lambda losses, count, ranks: losses.sum() * ranks / count),
                loss_by(lambda losses, count, ranks: losses.mean() * (len(losses) * ranks / count))],
    "13.recipe": [8, 8.0],
    "13.repair": [recipe(lambda count, ranks, parts: ranks / count)],
}  # fmt: skip
# What learners believe, and the words that name it.
WRONG = {
    "05.match": [
        ([5, 3, 2], "each line once; still missing: 1, 4, 6"), ([5, 3, 2, 4, 6, 6], "missing: 1"),
        ([4, 3, 2, 5, 6, 1], "A comes from the wrapper"), ([5, 3, 1, 4, 6, 2], "C speaks of a matrix product"),
        ([5, 3, 2, 6, 4, 1], "asks for a GPU that is not there"), ("three", "asks for six line numbers"),
        ("A5 B1 C2 D4 E6 F3", "where are the outputs of `parallel`"),
    ],
    "00.bytes": [
        (5000, "how many numbers"), (40000, "float64"), (10000, "float16"), (80000, "copies, one on each GPU"),
        (1, "rows ×"),
        ("20 kB", "asks for a whole number of bytes"),
    ],
    "00.first_split": [
        ([3, 2, 2, 2], "evenly"), ([2, 2, 2, 3], "rounds 9 / 4 down"), ([3, 3, 3, 0], "no piece at all"),
        ([9, 9, 9, 9], "the model that is copied"), ([4, 4], "8 rows in all"), ([5, 4], "ceil(9 / 4)"),
        ("333", "333 rows in all"), ([3.2, 3, 2.8], "asks for a list"),
    ],
    "00.add": [
        (lambda x, y: x + y, "with x on cpu and y on cuda:0 the tensors are still"),
        (lambda x, y: x + y.to("cuda:0"), "a device written into the code"),
        (lambda x, y: x.data.add_(y.to(x.device)), "the caller's x has changed"),
        (lambda x, y: y.to(x.device).data.add_(x), "with x on cuda:0 and y on cuda:0 the caller's y has changed"),
        (lambda x, y: x + y.to(x.device).detach(), "does not reach y"),
        (takes_its_data_away, "with x on cpu and y on cuda:0 the caller's y has changed"),
        (lambda x, y: torch.tensor((x.cpu() + y.cpu()).tolist(), device=x.device), "does not reach x"),
        (lambda x, y: x + y.to("cuda:9"), "with x on cpu and y on cuda:0 PyTorch says: `"),
        (lambda x, y: x.cpu() + y.cpu(), "with x on cuda:2 and y on cpu the sum is on cpu"),
        (lambda x, y: x.cuda() + y.cuda(), "with x on cpu and y on cuda:0 the sum is on cuda:0"),
        (lambda x, y: x, "not those of x + y"), (lambda x, y: 1, "a tensor"),
    ],
    "01.deadly": [(98, "how many does the batch"), (97, "Friday's"), (128, "four full"), (193, "smaller"),
    (100, "leaves the same")],
    "01.stacked": [(150, "string all"), ([5, 30], "side by side"), ([100, 5], "whole dataset"), (3, "counts the rows")],
    "01.batches": [
        ([25] * 4, "does not make"), ([30] * 3, "90 rows; what happens"), ([30] * 4, "120 rows"),
        (4, "4 is how many batches"),
        ([50, 50], "30 at a time"),
    ],
    "01.dropped": [
        (0, "in it next time"), (30, "only the short"), (90, "does see"), (500, "once an epoch"), (7, "how many rows"),
        (10.5, "asks for"),
        (True, "asks for"), ("ten", "asks for"), (torch.tensor([10, 10]), "asks for"), (np.array([10, 10]), "asks for"),
    ],
    "01.single": [
        (25, "has 25 rows, 13 and 12"), (64, "has 36 rows, 18 and 18"), (200, "has 100 rows"), (2, "every batch"),
        ("ten", "asks for a batch size"),
    ],
    "01.last_batch": [
        (lambda rows, size: rows % size, "never gives an empty batch"), (lambda rows, size: size, "a full batch"),
        (lambda rows, size: 1, "the last batch has"),
        (lambda rows, size: max(rows % size, 1), "it gives 1. When the rows divide evenly"),
        (lambda rows: 1, "raised TypeError"), (lambda rows, size: rows % size or rows, "can a batch have at most"),
        (lambda rows, size: "ten", "the function has to return a whole number; it returned `'ten'`"),
        (lambda rows, size: rows / size, "it returned `3.3333333333333335`: `/` gives fractions"),
    ],
    "01.safe": [
        (lambda r, b, g: r % b != 1, "32 on 2 GPUs it should say `False`: the last batch has 3 rows"),
        (lambda r, b, g: 1 not in labkit.split(r % b or b, g).sizes, "batch of 13 is cut into pieces of 4, 4, 4, 1"),
        (lambda r, b, g: 1 not in labkit.split(b, g).sizes and safe(r, b, g), "there is no full batch, only one of 10"),
        (lambda r, b, g: r % b // g > 1, "the rows fill the batches exactly, so the last batch has 32 rows, not 0"),
        (lambda r, b, g: (r % b or b) > 3, "for 98 rows in batches of 32 on 1 GPU it should say `True`"),
        (lambda r, b, g: "yes", "has to return `True` or `False`"),
    ],
    "02.one": [
        (4, "printed outside"), (1, "the other ten"), (40, "not for a row"), (0, "is enough"), (3, "how many batches"),
    ],
    "02.tensor_copy": [("cuda:0", "returns something"), ("cuda", "returns something"),
        ("gpu", "asks for a device"), (0, "asks for a device")],
    "02.inside": [(30, "outside"), (60, "not given to every GPU"), (2, "number of GPUs"), (3, "rounded up")],
    "02.lines": [(4, "one line for each batch"), (2, "how many batches"), (12, "printed outside"), (1, "batches ×")],
    "02.anywhere": [
        (lambda model: "x", "a model"),
        (lambda model: model.to("cuda:0"), "on a computer without a GPU it raises an error: `No CUDA"),
        (lambda model: torch.nn.DataParallel(model.cuda(), [0, 1]) if torch.cuda.is_available() else model,
         "on a computer with 1 GPU it raises an error: `"),
        (lambda model: model, "on a computer with 1 GPU the weights are on cpu; they should be on cuda:0"),
        (lambda model: at_home(model), "on a computer with 3 GPUs `forward` ran on 1 device only"),
        (lambda model: at_home(torch.nn.DataParallel(model)), "on a computer without a GPU the model is wrapped"),
        (lambda model: torch.nn.DataParallel(model) if torch.cuda.device_count() > 1 else at_home(model),
         "on a computer with 3 GPUs the weights are on cpu"),
        (lambda model: at_home(torch.nn.DataParallel(model, [0, 1, 2]) if torch.cuda.device_count() > 1 else model),
         "on a computer with 2 GPUs it raises an error: `"),
        (lambda model: at_home(torch.nn.DataParallel(model, [0, 1]) if torch.cuda.device_count() > 1 else model),
         "`forward` ran on 2 devices only: are the numbers in `device_ids`"),
        (lambda model: at_home(torch.nn.DataParallel(model, [0, 1, 2][: torch.cuda.device_count()])
                               if torch.cuda.device_count() > 1 else model),
         "on a computer with 4 GPUs `forward` ran on 3 devices only: are the numbers"),
        (lambda model: at_home(torch.nn.DataParallel(model, [*range(torch.cuda.device_count())][::-1])
                               if torch.cuda.device_count() > 1 else model),
         "on a computer with 3 GPUs it raises an error: `module must have"),
        (torch.nn.parallel.DistributedDataParallel, "it raises an error: `Default process group has not"),
    ],
    "02.move": [
        (lambda batch, device: batch.to(device), "given a dict with a tensor and a string it raises an error: `"),
        (moved(lambda x, device: (x.to(device), x)[1]), "still on cpu: `.to()` returns a copy"),
        (lambda b, d: b if type(b) is tuple else moved()(b, d), "every kind of container"),
        (lambda batch, device: moved()(batch, "cuda:0"), "given a tensor and device cuda:1, a tensor is on cuda:0"),
        (lambda batch, device: moved()(batch, "cuda:1"), "a string and device cuda:0, a tensor is on cuda:1"),
        (moved(deep=False), "a tensor inside is still on cpu"),
        (dives_through_dicts_only, "given a list that holds a list and a dict, a tensor inside is still on cpu"),
        (writes_into_lists, "a list that holds a list and a dict, the caller's own batch has changed"),
        (stops_in(tuple), "given a tuple that holds a list, and a tuple with a dict in a dict, a tensor inside"),
        (moved(lambda x, device: x.to(device) * 0), "the numbers in a tensor are no longer"),
        (moved(lambda x, device: x.float().to(device)), "a tensor of torch.int64 has become one of torch.float32"),
        (moved(lambda x, device: torch.tensor(x.tolist(), device=device)), "lost its way back to the original"),
        (moved(kept=False), "it returns `list("), (changes_the_callers, "the caller's own batch has changed"),
        (lambda batch, device: 3, "it returns `3`, not `tensor[2]`"),
    ],
    "02.inner": [
        (lambda model: model, "it returns the wrapper"),
        (lambda model: model.module, "a model that is not wrapped it raises"),
        (lambda model: getattr(model, "module", model), "having a `module` does not make a"),
        (lambda model: copy.deepcopy(model), "another object"), (lambda model: model.fc, "something else"),
    ],
    "02.wrapping": [
        ("cuda:0", "has any of"), ("cuda:1", "puts nothing on any GPU"),
    ],
    "03.rows": [
        (lambda gpu, rows, gpus: range(gpu, rows, gpus), "like cards"),
        (lambda g, r, n: [r - 1], "but this GPU gets [0, 1, 2]"),
        (lambda gpu, rows, gpus: range(gpu * (rows // gpus), (gpu + 1) * (rows // gpus)), "rounds 23 / 8 down"),
        (lambda gpu, rows, gpus: np.array_split(range(rows), gpus)[gpu], "divides the rows evenly"),
        (lambda gpu, rows, gpus: range(gpu * -(-rows // gpus), (gpu + 1) * -(-rows // gpus)), "the last row is row 22"),
        (lambda gpu, rows, gpus: [row + 1 for row in rows_of()(gpu, rows, gpus)], "the first row is row 0"),
        (lambda gpu, rows, gpus: torch.arange(rows).chunk(gpus)[gpu].tolist(),
         "10 rows on 8 GPUs make only 5 pieces, so cuda:5 is idle: it gets an empty list"),
        (lambda gpu, rows, gpus: [][gpu], "raised IndexError"),
        (lambda g, r, n: range(r)[g * (r // n + 1) : (g + 1) * (r // n + 1)], "16 / 8 is a whole number, so there is"),
        (lambda g, r, n: len(rows_of()(g, r, n)), "that is how many rows this GPU gets"),
        (bounds, "list all row numbers"), (lambda *_: ["a"], "a list of whole numbers"),
    ],
    "03.idle": [
        (0, "evenly"), (5, "how many do not"), (7, "fit into one piece"), (6, "how many pieces"),
        (1, "10 / 8 rounded up"),
    ],
    "03.last": [(8, "without rows"), (10, "each replica")],
    "03.largest": [
        (7, "7 rows leave 1 GPU idle, but"), (9, "9 rows leave 3 GPUs idle, but"), (0, "leave 8 GPUs idle, but"),
        (48, "with 48 rows there are 8 pieces, so nobody is idle; but with more"), (8, "but with more rows"),
        (50, "with 50 rows there are 8 pieces, so nobody is idle; the number"), (63, "smaller"), (1000, "smaller"),
    ],
    "03.busy": [
        (lambda rows, size, gpus: size % gpus == 0, "a batch of 4 makes pieces of 1, which reach only 4 GPUs"),
        (all_busy(last=lambda rows, size: rows % size), "96 rows in batches of 32 on 8 GPUs it should say `True`"),
        (lambda r, s, g: s % g == 0 and (r % s or s) % g == 0,
         "100 rows in batches of 23 on 8 GPUs it should say `True`"),
        (lambda r, s, g: all_busy()(r % s or s, r % s or s, g), "a batch of 25 makes pieces of 4, which reach only 7"),
        (lambda r, s, g: all_busy()(s, s, g) and all_busy()(r, s, g), "there is no full batch, only one of 8 rows"),
        (lambda r, s, g: all(len(piece.chunk(8)) == 8 for piece in torch.ones(r).split(s)),
         "12 rows in batches of 4 on 4 GPUs it should say `True`"),
        (lambda r, s, g: all((g - 1) * -(-len(p) // g) <= len(p) for p in torch.ones(r).split(s)), "reach only 7 GPUs"),
        (lambda r, s, g: -(-s // -(-s // g)) == g == -(-(r % s) // -(-(r % s) // g)), "`rows % batch_size` is 0 there"),
        (lambda *_: "yes", "`True` or `False`"),
    ],
    "03.order": [(1, "wrong labels"), (3, "where the output is"), (0, "asks for"), (4, "asks for"), ("No", "asks for")],
    "03.rule": [
        (lambda rows, gpus: [rows // gpus] * gpus, "rounds 30 / 8 down"),
        (lambda rows, gpus: [rows // gpus + (k < rows % gpus) for k in range(gpus)], "divides the rows evenly"),
        (lambda rows, gpus: [rows // gpus] * (gpus - 1) + [rows - rows // gpus * (gpus - 1)], "rounds 30 / 8 down"),
        (lambda rows, gpus: chunks(rows, gpus) + [0] * (gpus - len(chunks(rows, gpus))), "no piece at all"),
        (lambda rows, gpus: [-(-rows // gpus)] * (gpus - 1) + [rows + rows // -gpus * (gpus - 1)],
         "a negative number of rows"),
        (lambda r, n: [min(r // n + 1, r - at) for at in range(0, r, r // n + 1)], "16 / 8 is a whole number"),
        (lambda rows, gpus: [1], "in all, not 30"), (lambda rows, gpus: [], "an empty list"),
        (lambda rows, gpus: [rows - 1, 1], "but the pieces are"), (lambda rows, gpus: None, "return"),
        (lambda rows, gpus: 1 / 0, "raised ZeroDivisionError"), ([4, 4], "the function itself"),
    ],
    "04.gather": [
        (lambda outs, d: torch.cat(outs), "to `device` before you join them"),
        (lambda outs, d: torch.stack([out.to(d) for out in outs]), "[2, 2, 2]: `stack` makes"),
        (lambda outs, d: torch.hstack([out.to(d) for out in outs]), "[2, 4]: rows are joined along dimension 0"),
        (lambda outs, d: FOUR["gather"](outs, "cuda:0"), "and device cpu the result is on cuda:0"),
        (lambda outs, d: FOUR["gather"](outs[::-1], d), "not in the order of the list"),
        (lambda outs, d: FOUR["gather"](sorted(outs, key=lambda out: out.device.index), d), "order of the list"),
        (lambda outs, d: FOUR["gather"]([out.detach() for out in outs], d), "out of the graph"),
        (lambda outs, d: outs[0].to(d), "not the rows of all outputs"),
        (lambda outs, d: [out.to(d) for out in outs], "has to return a tensor"),
        (lambda outs, d: outs[5].to(d), "IndexError"),
        (lambda outs, d: outs[0].reshape(5), "it raises an error: `shape"),
    ],
    "04.gradient": [
        (4, "does autograd follow"), (12, "about `model` itself"), (2, "only their copies"),
        ([], "asks for a whole number"),
    ],
    "04.parameters": [(4, "a normal module"), (12, "counts three replicas"), (1, "results of copying")],
    "04.call": [
        (lambda m, b, d: [b], "gather, is missing"),
        (lambda m, b, d: "x", "has to return a tensor; it returned `'x'`"), (lambda m, b, d: b * 2, "never called"),
        (lambda m, b, d: m(b), "for 7 rows on 3 GPUs a model got the whole batch, still on the CPU"),
        (for_all_devices, "3 replicas were made for 1 piece"),
        (lambda m, b, d: m(b.to(d[0])) + b.to(d[1]), "for 7 rows on 3 GPUs it raises an error: `Expected all"),
        (lambda m, b, d: m(b.to(d[0])), "everything ran on cuda:0"), (whole_batch_everywhere, "saw all 7 rows"),
        (lambda m, b, d: one_call(m, b, d, home=-1), "gathered on the first device, cuda:0"),
        (leaves_an_output_out, "a thread failed, so its output is still `None`"),
        (replica_for_each_row, "for 4 rows on 3 GPUs 3 replicas were made for 2 pieces"),
        (lambda m, b, d: four_steps(m, b, d, d[:2]), "saw pieces of [4, 3] rows, not [3, 3, 1]"),
        (lambda m, b, d: four_steps(m, b, d, [f"cuda:{gpu}" for gpu in (2, 1, 0)]),
         "the devices cuda:2, cuda:1 a replica ran on cuda:0"),
        (lambda m, b, d: four_steps(m, b, d, apply=lambda pieces, replicas: [None]),  # as after errors in threads
         "get the replicas and then the pieces"),
        (lambda m, b, d: FOUR["gather"](FOUR["scatter"](b, d), d), "gather is given all devices"),
        (lambda m, b, d: one_call(m, b, d).to("cuda:0"), "the devices cuda:2, cuda:1, cuda:0 the output is on cuda:0"),
        (lambda m, b, d: one_call(m, b, d, slice(None, None, -1)), "in the order of its rows"),
        (data_parallel, "was run by `nn.DataParallel`"), (by_ready_replicas, "such as `nn.parallel.replicate`"),
        (on_copies, "no gradient"), (torch.no_grad()(one_call), "`no_grad` or"),
        (lambda m, b, d: one_call(m, b, d[:len(b)], home=3), "d=['cuda:0', 'cuda:1', 'cuda:2'])` raised IndexError"),
        (lambda model: 1, "raised TypeError"),
    ],
    "04.replicas": [(9, "not for a row"), (4, "every GPU"), (2, "scatter comes first")],
    "04.travel": [(136, "one copy"), (4080, "counts the home"), (272, "one call"), (5, "× calls"), (1360, "of the 3")],
    "05.around": [
        (lambda model: model, "as it is, not wrapped"), (torch.nn.DataParallel, "home is the first in the list"),
        (lambda model: torch.nn.DataParallel(model.to("cuda:0")), "was on cuda:1 and is now on cuda:0"),
        (around(lambda home, ids: [home]), "only 1 of 3 GPUs had work"),
        (around(lambda home, ids: [1, 0]), "only 2 of 3"),
        (around(lambda home, ids: [home, *ids]), "is [1, 0, 1, 2]: a GPU that is in the list twice"),
        (around(lambda home, ids: [home, *sorted({0, 1, 2} - {home})]), "it raises an error: `"),
        (around(lambda home, ids: [home, *sorted({*ids[:3]} - {home})]), "only 3 of 9 GPUs had work"),
        (around(lambda home, ids: [home, *[gpu for gpu in range(4)[: len(ids)] if gpu != home]]), "only 4 of 9 GPUs"),
    ],
    "05.load": [
        (lambda model, state: model.load_state_dict(state), "unwrapped model and the keys `['module.encoder.weight'"),
        (lambda model, state: model.load_state_dict(state, strict=False), "the weights are still the old ones"),
        (loaded(into=lambda model: model), "a wrapped model and the keys"),
        (lambda model, state: model.module.load_state_dict(state), "with an unwrapped model and the keys"),
        (silent_if_wrapped, "without `head.bias`"),
        (lambda model, state: unwrapped(model).load_state_dict(
            {k.lstrip("module."): v for k, v in state.items()}), '"ncoder.weight"'),
        (load_in_order, "raises an error"), (load_what_there_is, "without `submodule.bias`"),
        (lambda model, state: unwrapped(model).load_state_dict(
            {k.replace("module.", ""): v for k, v in state.items()}), '"subweight"'),
        (lambda model, state: unwrapped(model).load_state_dict({k[7:]: v for k, v in state.items()}),
         "raises an error"),
    ],
    "05.output": [
        ("cpu", "where the input was"), ("cuda:0", "lowest number"), ("cuda:5", "no cuda:5"), (1, "asks for a device"),
        ("cuda: 1", "without a space in it"),
    ],
    "05.plain": [
        (renames_the_callers, "the keys of the dict that you were given have changed"),
        (lambda state: [k.removeprefix("module.") for k in state], "the values are missing"),
        (lambda state: "weight", "has to return a dict; it returned `'weight'`"),
        (lambda state: state, "still begin with"),
        (lambda state: {k.split("module.", 1)[-1]: v for k, v in state.items()}, "['encoder.module.weight', 's"),
        (lambda state: {k.removeprefix("module."): 1 for k in state}, "the values changed"),
        (lambda state: {k[7 * next(iter(state)).startswith("module."):]: v for k, v in state.items()}, "seven char"),
        (lambda state: {k.removeprefix("module."): v for k, v in state.items()} if "module." in min(state) else state,
         "returns the dict that it was given"),
        (lambda state: {k.lstrip("module."): v for k, v in state.items()}, "`lstrip` removes any of the letters"),
        (lambda state: {k.replace("module.", ""): v for k, v in state.items()}, "only the first one, at the"),
        (lambda state: {k[7:]: v for k, v in state.items()}, "loses its first seven characters"),
        (lambda state: {k.split(".")[-1]: v for k, v in state.items()}, "without a wrapper has"),
    ],
    "06.shape": [
        ([65, 32, 5530], "where does it join"), ([130, 16, 5530], "the riddle"), ([65, 8, 5530], "of all four"),
        ([260, 32, 5530], "how many of the 32"), ([130, 8, 5530], "four of them to join"),
        ([32, 65, 5530], "batch first"), ([1, 2, 3], "step by step"), ([260, 8], "asks for a shape"),
    ],
    "06.hidden": [
        ([2, 4, 6], "its input and its output"), ([2, 8, 6], "this one too"), ([4, 2, 6], "does not transpose"),
        ([2, 8, 3], "the others stay"), (1, "asks for a shape"),
    ],
    "06.repair": [
        (1, "asks for a model"), (lambda images: images, "asks for a model"), (Returns(), "return"),
        (Returns("x"), "`forward` has to return two tensors"), (Returns(torch.zeros(6, 12, 10)), "one tensor"),
        (Repaired(lambda x: x.transpose(0, 1) * 0), "not those of `Digits`"),
        (Repaired(hidden=lambda x: x.squeeze().unsqueeze(1)), "a single image gives [1, 12, 10], [7, 1] instead of"),
        (Squeezed(), "a single image raises an error"), (Digits(), "the columns first"),
        (Repaired(lambda x: x[:, 0]), "12 columns, 10 digits"), (Repaired(hidden=lambda x: x), "its layers first"),
        (Repaired(hidden=lambda x: x[0, 0]), "1 layer, 7"),
        (Repaired(lambda x: x.reshape(x.size(1), 12, 10)), "`reshape` and `view`"),
        (BatchFirst((2, 0, 1)), "along the images"), (ColumnsAsBatch(), "the GRU took the 12 columns for its batch"),
        (Fixed(1, 6), "on two GPUs 6 images"), (AsksForWeights(), "on device 1. IndexError: list index out"),
        (Fixed(1, 3, 6), "how many images there are"), (lambda: 1 / 0, "asks for a model"),
    ],
    "06.untangle": [
        (lambda x, n: x, "it returns [10, 4, 2]; on one GPU it would be [5, 8, 2]"),
        (lambda x, n: x.reshape(n, -1, x.size(-1)), "only cuts the numbers up anew"),
        (lambda x, n: (untangled(x, n), x.zero_())[0], "the output that was passed in has changed"),
        (lambda x, n: torch.cat(x.split(n)[::-1], dim=1), "in other places"), (lambda x, n: 3, "a tensor"),
        (lambda x, n: torch.cat(x.chunk(2), dim=1), "for an output of [9, 3, 2] with 3 columns"),
        (lambda x, n: x.view(2, n, 1), "raises an error"),
    ],
    "06.table": [
        (nearest(lambda model, table: setattr(model, "table", table)), "it raises an error: `"),
        (nearest(lambda model, table: setattr(model, "table", torch.nn.Parameter(table))), "would train it"),
        (follows_its_rows, "does not have the table"), (nearest(found=lambda x: x * 0), "8 rows give `[0, 0, 0,"),
        (nearest(found=lambda x: None), "return"), (nearest(found=lambda x: x[:1]), "8 rows give `[3]`, not"),
        (nearest()(torch.eye(3)), "asks for the class"), (3, "asks for the class"),
        (torch.nn.Identity, "rows give `[["),
    ],
    "07.sum": [(3, "their gradients are added"), (48, "is divided"), (1, "a mean over the rows"),
               (4, "each of the 12 rows"),
               (12.5, "asks for a whole")],
    "07.mean": [
        (lambda m, s: np.average(m, weights=s), "no gradient reaches `means`"),
        (lambda m, s: ((m * s).sum() / s.sum()).item(), "no gradient reaches"),
        (lambda m, s: (m * s).sum() / s.sum() + 0 * s.mul_(2).sum(), "is changed in place"),
        (lambda m, s: m.mean() + ((m * s).sum() / s.sum() - m.mean()).detach(), "gradient of `means` is [0.5, 0.5]"),
        (lambda m, s: sum(m) / len(m), "counts as much as"), (lambda m, s: sum(m), "adds the means up"),
        (lambda m, s: sum(a * b for a, b in zip(m, s, strict=True)), "you still have to divide"),
        (lambda m, s: (m * s).sum() / len(s), "divided by the number of pieces"),
        (lambda m, s: m.sum() / s.sum(), "adds the means up"), (lambda m, s: 2, "the mean over all 7 rows is 3"),
        (lambda m, s: m, "has to return a number; it returned `tensor([0., 7.])`"),
        (lambda m, s: True, "has to return a number; it returned `True`"),
    ],
    "07.parts": [
        (in_parts(lambda y, parts: y.mean() / len(parts)), "the gradient is 6.5: each part counts the same"),
        (in_parts(lambda y, parts: y.mean()), "means of the parts, added up"),
        (in_parts(lambda y, parts: y.sum()), "is 66: that is the sum over all rows"),
        (in_parts(lambda y, parts: y.sum() / len(parts)), "is 22: that is the sum over all rows, divided"),
        (in_parts(lambda y, parts: y.sum() / len(parts) / len(parts[0])), "as long as the first"),
        (in_parts(lambda y, parts: y.sum() / 12), "[8, 8, 4] rows the gradient is 15.8333: that divides by 12"),
        (in_parts(lambda y, parts: y.sum() / 7), "9.42857, but `backward()` of the mean over all 12 rows gives 5.5"),
        (in_parts(scale=True), "is 3.59075, but"), (in_parts(zero=True), "is set to zero"),
        (lambda m, p: m(torch.cat(p)).mean().backward(), "go through the model at once"),
        (lambda m, p: sum(m(one).sum() / total(p) for one in p).backward(), "waits until several parts"),
        (lambda m, p: sum(m(one).sum() / total(p) for one in p), "the weight has no gradient"),
        (lambda m, p: [in_parts()(m, p), torch.optim.SGD(m.parameters(), 0.1).step()], "weight itself has changed"),
    ],
    "08.calls": [(3, "without the wrapper"), (6, "six replicas"), (1, "from which the next"), (2, "the model or a"),
        (torch.tensor(True), "asks for a whole"), (np.True_, "asks for a whole"),
    ],
    "08.average": [
        (6, "is the sum"), (2.0, "one rank alone"), (1.5, "made of both"), ("three", "asks for a number"),
        ([3.0, 3.0], "asks for a number"),
    ],
    "08.all_reduce": [
        (reduced(lambda total, ranks: total), "that is the sum"), (lambda g: g, "rank 0 still returns"),
        (reduced(lambda total, ranks: total / 2), "on two ranks that is right, on 3 it is not"),
        (lambda g: g / 2, "return different gradients"), (reduced(ranks=[0]), "it hangs: "),
        (returned_by_the_first, "rank 1 returns `None`"),
        (in_background(lambda work: work.wait(), late=True), "before you use the tensor"),
        (lambda g: torch.distributed.all_reduce(g), "returns `None`, as `dist.all_reduce` does"),
        (lambda g: torch.distributed.all_reduce(g) / 2, "returns nothing to compute with"),
        (lambda g: 1, "a gradient of three"), (lambda g: 1 / 0, "ZeroDivision"),
        (reduced(lambda total, ranks: total / 8), "divided by how many"),
    ],
    "08.count": [
        (counted(len), "the count is a plain number"),
        (counted(lambda x: torch.tensor([len(x)])), "Where was the tensor"),
        (counted(lambda x: torch.full((1,), 8, device=x.device)), "5 rows on 1 GPU give a total of 8"),
        (KeepsCount, "add up to 16, but the last batch had 8 rows"),
        (counted(lambda x: x.sum(1).relu() * 0 + 2), "total of 16"),
        (counted(shown=lambda y: y * 2), "not the layer's output"), (counted(refuses), "raise an error: `boom"),
        (AsksItsParameters, "a replica has no parameters"),
        (ReturnsOne, "two things"), (3, "asks for a layer"), (torch.nn.ReLU(), "asks for a layer"),
    ],
    "08.groups": [
        (torch.nn.SyncBatchNorm.convert_sync_batchnorm, "a SyncBatchNorm in it"),
        (lambda model: model, "`norm` is still a BatchNorm"), (replaced(deep=False), "`block.1` is still a BatchNorm"),
        (replaces_while_walking, "go through `named_children`"),
        (replaced(lambda norm: torch.nn.Identity()), "BatchNorm is gone"),
        (replaced(lambda norm: torch.nn.GroupNorm(norm.num_features, 1)), "the number of groups first"),
        (replaced(lambda norm: torch.nn.LayerNorm(norm.num_features)), "`nn.LayerNorm` normalises the last"),
        (lambda model: replaced()(model).eval(), "`training` has changed"),
        (lambda model: replaced()(model).double(), "`conv.weight` has changed"),
        (lambda model: replaced()(model).requires_grad_(False), "`conv.weight` has changed"),
        (lambda model: torch.nn.Sequential(replaced()(model)), "`model` has changed"),
        (without_relu, "`block.2` has changed"),
        (replaced(lambda norm: torch.nn.GroupNorm(1, 4)), "How many features"),
        (replaced(lambda norm: torch.nn.GroupNorm(norm.num_features, norm.num_features)), "the same scores"),
        (replaced(lambda norm: OverRows(1, norm.num_features)), "still looks at the other rows"),
        (lambda model: 3, "a model"),
    ],
    "12.own": [
        ((in_buckets(lambda held, most: True), last_bucket), "one for each gradient: the values are right; where"),
        ((in_buckets(sent_at_once=False), last_bucket), "no all-reduce began before backward had all gradients"),
        ((in_buckets(packed=lambda bucket: bucket), last_bucket), "the one that was emptied"),
        ((in_buckets(cleared=False), last_bucket), "were sent more than once"),
        ((in_buckets(packed=lambda bucket: bucket, cleared=False), last_bucket), "has grown since"),
        ((in_buckets(), always_last), "was given an empty list"),
        ((in_buckets(lambda held, most: held > most), last_bucket), "as soon as it has that many bytes or more"),
        ((in_buckets(lambda held, most: held >= 4 * most), last_bucket), "does `numel()` count bytes"),
        ((in_buckets(received=True), last_bucket), "while backward still computes"),
        ((ready_and_waits, last_bucket), "while backward still computes"),
        ((ready_when_the_next_does_not_fit, last_bucket), "ask whether the bucket is full"),
        ((ready_in_pieces, last_bucket), "three things that belong together"),
        ((in_buckets(packed=lambda bucket: [one + 0 for one in bucket]), last_bucket), "hold the gradient itself"),
        ((in_buckets(), lambda bucket, sent: [DDP["receive"](*one) for one in sent]), "that is not full when backward"),
        ((in_buckets(), lambda bucket, sent: None), "still hold gradients of their own rows"),
        ((lambda *_: None, lambda *_: None), "no all-reduce was made at all"),
        ((lambda gradient, *_: torch.distributed.broadcast(gradient, 0), lambda *_: None), "called `broadcast`"),
        ((lambda *_: 1 / 0, last_bucket), "ZeroDivisionError"), (in_buckets(), "asks for your two functions"),
    ],
    "12.repair": [
        (accumulated(inside=False), "At which of the two"), (accumulated(inside=True, last=None), "nothing is sent"),
        (accumulated(inside=True, scale=lambda n: 1), "times the right one"),
        (accumulated(inside=True, passes=lambda parts: []), "that of the last part alone"),
        (first_part_is_sent, "Which part has to be sent"), (last_part_undivided, "last part is not divided"),
        (all_at_once, "the GPU has no room for more"), (back_at_once, "4 parts have gone forward"),
        (back_after_all, "3 parts have gone forward"), (lambda *_: 1 / 0, "ZeroDivision"),
    ],
    "12.rows": [(64, "which line of the script shares"), (1024, "depends on the rank")],
    "13.rows": [
        ([7, 8, 9], "neighbouring rows"), ([2, 6, 0], "counted from zero"), ([3, 7], "must read three, too"),
        ([3, 7, 0], "whose turn"), ([3, 7, 3], "its own first row"), ([0, 4, 8], "deal the rows out"),
    ],
    "13.seeds": [
        (prepared(model=1, order=1, noise=1), "the weights differ"), (prepared(order=1), "the orders of rows differ"),
        (scaled_noise, "only scaled, shifted or"), (prepared(noise=0), "on 4 ranks, ranks 0–3 draw the same noise"),
        (prepared(drawn=lambda seed: torch.manual_seed(seed % 2)), "draw the same noise"),
        (lambda seed: (*prepared()(seed)[:2], torch.rand(4, generator=UNREPEATABLE)), "nobody could repeat"),
        (lambda seed: prepared()(0), "which of weight, order and noise"), (lambda seed: 1 / 0, "ZeroDivision"),
        (lambda seed: torch.zeros(3), "three tensors"),
    ],
    "13.means": [(2, "over all ten tokens"), (14, "their sum"), (1, "divided by 4")],
    "13.mean": [
        (lambda losses: losses.mean(), "that is the mean of the means"),
        (loss_by(lambda losses, count, ranks: losses.sum() / count), "of what it should be"),
        (lambda losses: losses.sum(), "the losses are only added up"), (counts_on_the_cpu, "`device=losses.device`"),
        (lambda losses: losses.sum() * torch.distributed.get_world_size(), "the losses are only added up"),
        (loss_by(lambda losses, count, ranks: losses.sum() * 8 / count), "fixed in your code"),
        (loss_by(lambda losses, count, ranks: losses.sum() * ranks * ranks / count), "times the right one"),
        (loss_by(lambda losses, count, ranks: losses.mean() * ranks), "that is the mean of the means"),
        (lambda losses: torch.tensor(losses.mean().item()), "no gradient comes back"),
        (lambda losses: losses.sum() * 0.123, "not that of the mean over all tokens"),
        (lambda losses: losses, "has to return one number"),
    ],
    "13.recipe": [
        (1, "that was the aim"), (4, "one of two factors"), (2, "a mean of means needs"), (16, "a sum over samples"),
        (3, "there are two factors"),
    ],
    "13.repair": [
        (recipe(lambda count, ranks, parts: ranks, "mean"), "Two factors are possible"),
        (recipe(lambda count, ranks, parts: ranks / parts, "mean"), "Two factors are possible"),
        (recipe(lambda count, ranks, parts: 1 / parts, "mean"), "that is a mean of means"),
        (recipe(lambda count, ranks, parts: ranks / count, "mean"), "has taken a mean already"),
        (recipe(lambda count, ranks, parts: 1), "the losses are only added up"),
        (recipe(lambda count, ranks, parts: 5 / count), "is a number fixed in your code"),
        (recipe(lambda count, ranks, parts: 1 / count), "what does DDP do with it"),
        (recipe(lambda count, ranks, parts: ranks / parts / count), "include all parts already"),
        (recipe(lambda count, ranks, parts: 1 / count, of_all=False), "each rank divides by its own count"),
        (recipe(lambda n, ranks, parts: ranks / n, counted=lambda y: torch.tensor(y.numel()).cuda()), "of -100"),
        (part_by_part, "its own count over all ranks"), (lambda parallel, parts: None, "there is no gradient"),
        (lambda *_: 1 / 0, "ZeroDivision"), (recipe(lambda *_: 0.123), "not that of the mean over all non-ignored"),
    ],
    "12.steps": [(4, "four batches of 64"), (16, "a quarter of a batch"), (2, "how many rows has a")],
}  # fmt: skip


for answers in (experts_answers, mesh_answers, pipeline_answers, plan_answers, ranks_answers, same_answers):
    RIGHT |= answers.RIGHT
    WRONG |= answers.WRONG

# The numbers that lessons 20 and 21 ask for; their functions are in test_fit_answers.py and test_context_answers.py.
RIGHT |= {"20.every": [5, 6, "6", 8], "21.bytes": [8, "8"], "21.targets": [3]}
WRONG |= {
    "20.every": [
        (1, "every layer's input is kept"),
        (36, "one segment"),
        (2, "a segment of 2"),
        (9, "when is the sum smallest"),
    ],
    "21.bytes": [(2, "32 heads as well"), (4, "how many tensors does the ring")],
    "21.targets": [
        (4, "no target even on one GPU"),
        (0, "comes after the last one"),
        (1, "last token of the sequence"),
    ],
}
# What lessons 14 and 15 ask for beside what test_sharding_answers.py and test_tensor_answers.py try.
RIGHT |= {"14.full": [16], "14.llama": [8, "8"], "14.travel": [1.5, "3/2", "1.5"], "15.saved": [192]}
WRONG |= {
    "14.full": [(4, "that is 4 MiB"), (3, "count for one weight")],
    "14.llama": [(1, "128 GB"), (4, "7 bytes per parameter"), (3, "divide: bytes per parameter")],
    "14.travel": [(3, "3 times the weights"), (1, "stages 1 and 2"), (2, "an all-reduce sends")],
    "15.saved": [(96, "a quarter of everything"), (7, "three things stay")],
}


def test_every_exercise_is_tried_here():
    # The choices of all other predictions are tried in test_predict.py, four lessons' exercises in files of theirs.
    written = {name for name in ids() if not find(name).choices()}
    for own, number in (("sharding", "14."), ("tensor", "15."), ("fit", "20."), ("context", "21.")):
        text = Path(__file__).with_name(f"test_{own}_answers.py").read_text("utf-8")
        written -= {name for name in written if name.startswith(number) and f'"{name}"' in text}
    assert set(RIGHT) == set(WRONG) == written | {"03.order"}


@pytest.mark.parametrize("name", sorted(RIGHT))
def test_right_answers_are_right(name):
    for answer in RIGHT[name]:
        verdict = check(name, answer)
        # After a prediction comes the solution; after an exercise, whose solution stays folded, a sentence.
        reason = reveal(name).text if find(name).asks else find(name).explanation()
        assert (verdict.right, repr(verdict)) == (True, f"✓ Right. {reason}"), answer


@pytest.mark.parametrize("plan", [
    plan_answers.BEST, labkit.Plan(dp=64, stage=3, micro=2, many=4, recompute=True),
    labkit.Plan(dp=64, stage=3, micro=2, many=4, recompute=True, group=64),
])  # fmt: skip
def test_a_right_plan_without_room_is_said_to_be_too_close_to_call(plan):
    verdict = check("18.beat", plan)
    assert verdict.right
    assert f"{forecast(MODELS['70B'], plan).peak / 2**30:.3g} GiB" in repr(verdict)
    assert "too close to call" in repr(verdict)


@pytest.mark.parametrize(
    ("name", "number"), [(name, n) for name in sorted(WRONG) for n in range(len(WRONG[name]))]
)
def test_a_wrong_answer_gets_a_hint_that_names_the_misconception(name, number, monkeypatch):
    # Both languages judge the same draw: on another batch, the same mistake may deserve another hint.
    monkeypatch.setattr(module("exercises.same"), "Random", lambda: Random(1))
    answer, words = WRONG[name][number]
    verdict = check(name, answer)
    assert verdict.right is False
    assert words in verdict.text
    labkit.set_language("zh")
    chinese = check(name, answer).text
    assert re.search("[一-鿿]", chinese)
    assert glossary.problems(verdict.text, chinese) == []


class Hostile:
    """An object of which nothing can be asked."""

    def __repr__(self):
        raise ValueError(self)  # whose own text is this object's again

    __str__ = __iter__ = __len__ = __index__ = __float__ = __hash__ = __eq__ = __bool__ = __repr__

    @property
    def item(self):
        raise Stop

    def __getattr__(self, name):
        raise Stop


class Stop(BaseException):
    """What no ``except Exception`` catches, without words."""

    def __str__(self):
        raise RuntimeError


class Silent:
    def __repr__(self):
        raise RecursionError


def stops(*_):
    raise Stop


def no_end(*_):
    """What a loop that forgot to stop gives."""
    return list(range(10**5))


PLAIN = [object(), {}, [None, "x"], [[3]], float("nan"), "", b"3", -1, 10**30, [True]]
ODD = {str(answer)[:20]: answer for answer in PLAIN} | {
    "hostile": Hostile(), "silent": Silent(), "long": 10**5000, "a long one in a list": [10**5000], "stops": stops,
    "gives a long one": lambda *_: 10**5000, "gives a hostile one": lambda *_: Hostile(), "empty": torch.tensor([]),
    "gives a silent one": lambda *_: [Silent()], "gives more than a float holds": lambda *_: 10**400,
    "without end": itertools.count(), "ends the program": sys.exit, "gives far too many": no_end,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(RIGHT))
def test_an_odd_answer_is_judged_as_wrong_in_a_few_words(name):
    for odd, answer in ODD.items():
        verdict = check(name, answer)
        assert verdict.right is False, odd
        assert 0 < len(verdict.text) < 400, odd
        assert verdict._repr_html_()


def test_an_interrupt_is_the_learners_own():
    def interrupted(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check("03.rule", interrupted)


def test_the_complaint_is_about_what_the_function_returned():
    wrong = check("03.rule", lambda rows, gpus: [rows / gpus] * gpus).text
    assert wrong.startswith("the function has to return a list of whole numbers; it returned `[3.75, 3.75")
    assert wrong.endswith("`/` gives fractions, `//` rounds down to whole numbers")
    with using("zh"):
        assert check("01.last_batch", lambda rows, size: rows / size).text == (
            "函数应该返回一个整数，现在返回的是 `3.3333333333333335`：`/` 得到的是小数，`//` 向下取整，得到整数"
        )


def leaves(*_):
    sys.exit(3)


def test_an_answer_that_ends_the_program_ends_nothing():
    assert "raised SystemExit" in check("03.rule", leaves).text


def test_no_answer_yet_is_neutral_and_the_same_every_time():
    for nothing in (None, ...):
        verdict = check("03.idle", nothing)
        assert verdict.right is None
        assert repr(verdict) == "… Not answered yet: replace `None` with your answer and run the cell again."
        assert verdict._repr_html_() == check("03.idle", nothing)._repr_html_()
        assert "<details>" not in verdict._repr_html_(), "the solution comes after a first try"
    unwritten = check("03.rule", lambda rows, gpus: ...)
    assert (unwritten.right, unwritten.solution) == (None, None)
    assert "write your code in place of the `...`" in unwritten.text
    labkit.set_language("zh")
    assert "还没有作答" in repr(check("03.idle", None))


def test_no_answer_on_both_ranks_is_none_yet():
    assert check("17.resume", [None, None]).text.startswith("Not answered yet: replace `None`")


@pytest.mark.parametrize("name", sorted(RIGHT))
def test_the_solution_is_folded_until_asked_for(name):
    hidden = reveal(name)
    assert hidden.text not in repr(hidden)
    assert f'reveal("{name}").text' in repr(hidden)
    html = check(name, object())._repr_html_()
    assert re.search(r"<details><summary>Show the answer</summary>.+</details>", html, re.DOTALL)
    assert "<details open" not in html
    labkit.set_language("zh")
    assert "<summary>查看答案</summary>" in reveal(name)._repr_html_()
    assert glossary.problems(hidden.text, reveal(name).text) == []


@pytest.mark.parametrize("name", [
    "00.add", "01.last_batch", "01.safe", "02.anywhere", "02.inner", "02.move", "03.busy", "03.rows", "03.rule",
    "04.call", "04.gather", "05.around", "05.load", "05.plain", "06.repair", "06.table", "06.untangle", "07.mean",
    "07.parts", "08.all_reduce", "08.count", "08.groups", "12.own", "12.repair", "13.seeds", "13.mean", "13.repair",
])  # fmt: skip
def test_the_solution_that_is_code_is_right(name):
    code = re.search(r"```\n(.*?)\n```", reveal(name).text, re.DOTALL)[1]
    given = {"labkit": labkit, "Digits": Digits, "nn": torch.nn, "torch": torch, "dist": torch.distributed}
    given["cross_entropy"] = torch.nn.functional.cross_entropy
    exec(code, found := {**FOUR, **DDP, **given})
    made = [found[one] for one in re.findall(r"^(?:def|class) (\w+)", code, re.MULTILINE)]
    assert check(name, made[0] if len(made) == 1 else made).right
    assert re.search(r"<pre[^>]*>(?:def|class) .*\n.*</pre>", reveal(name)._repr_html_(), re.DOTALL)


@pytest.mark.parametrize("gpus", [0, 1])
def test_with_fewer_than_two_gpus_a_call_makes_no_replica(gpus):
    assert check("04.replicas", 0, rows=9, gpus=gpus).right
    assert "copy the model at all" in check("04.replicas", 1, rows=9, gpus=gpus).text


@pytest.mark.parametrize("gpus", [1, 2, 8])
def test_a_call_is_judged_on_whatever_gpus_there_are(gpus):
    with labkit.simulate(gpus=gpus):
        assert check("04.call", one_call).right
        assert "was run by `nn.DataParallel`" in check("04.call", data_parallel).text
        assert "no gradient" in check("04.call", on_copies).text
        assert torch.cuda.device_count() == gpus


def test_replicas_that_run_one_after_another_are_right_with_a_remark():
    assert "one after another here" in check("04.call", one_after_another).text
    assert "one after another" not in check("04.call", one_call).text


def drawn_first(*numbers):
    """A ``Random`` whose first whole numbers are ``numbers`` and which chooses what stands first."""

    class Drawn(Random):
        def __init__(self):
            super().__init__(0)
            self.numbers = list(numbers)

        def randint(self, a, b):
            return self.numbers.pop(0) if self.numbers else super().randint(a, b)

        def choice(self, given):
            return given[0]

    return Drawn


@pytest.mark.parametrize(("name", "numbers"), [("13.mean", (2, 3, 4)), ("13.repair", (1,) * 6)])
def test_what_makes_two_mistakes_one_is_drawn_again(name, numbers, monkeypatch):
    """Of 2, 3 and 4 tokens a rank's sum is the mean times the ranks; a third of the labels count on three ranks."""
    find(name)
    scale = sys.modules["labkit_content.exercises.scale"]
    run, seen = scale.on_ranks, []

    def on_ranks(function, ranks, given):
        seen.append(given)
        return run(function, ranks, given)

    monkeypatch.setattr(scale, "on_ranks", on_ranks)
    monkeypatch.setattr(scale, "Random", drawn_first(*numbers))
    assert check(name, RIGHT[name][0]).right
    assert len(seen) == 3
    for given in seen:
        if name == "13.mean":
            assert sum(len(values) for (values,) in given) != len(given) ** 2
        else:
            labels = torch.stack([labels for _, labels in given])
            ranks, parts, _ = labels.shape
            every = labels.numel() / int((labels != -100).sum())
            assert every not in (1, ranks, parts, ranks * parts, 1 / ranks, 1 / parts)


def test_the_rows_of_a_report_hang_and_code_does_not():
    page = as_html("Look:\n```\n4 ranks:\n  rank 0  waits in send\n    at line 3\n```")
    hanging = "display:inline-block;padding-left:6ch;text-indent:-6ch"
    row = f'<span style="{hanging}">  rank 0  waits in send</span>'
    assert page.endswith(f">4 ranks:\n{row}\n    at line 3</pre>")


def test_what_a_learner_writes_is_shown_as_text_never_as_html():
    assert "<b>" not in check("03.idle", "<b>3</b>")._repr_html_()


def test_what_a_table_names_can_be_read():
    """An answer in a table that is not of its kind would make every answer unreadable."""
    for name in ids():
        found = find(name)
        if found.kind_name:
            facts = {key: usual for key, (usual, *_) in found.code.facts.items()}
            found.hint({"shape": "1, 2, 3", "device": "cpu"}.get(found.kind_name, "1"), **facts)


def test_an_unknown_exercise_is_named():
    with pytest.raises(ValueError, match=r"exercise must be one of 00\.add, .*, got '99\.none'"):
        check("99.none", 1)


def test_an_exercise_costs_the_reading_of_its_own_lesson_alone():
    code = """
from pathlib import Path
read = Path.read_text
Path.read_text = lambda file, *arguments: print(file.parent.name, file.name) or read(file, *arguments)
from labkit_course.exercise import find
find("03.idle")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [line for line in done.stdout.splitlines() if "exercises" in line] == ["exercises 03_split.txt"]


def test_two_exercises_of_one_name_are_refused():
    find("03.idle")
    with pytest.raises(ValueError, match="two exercises '03.idle'"):
        derive_facts("03.idle")(lambda rows, gpus: {})
