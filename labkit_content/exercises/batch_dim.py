"""Exercises of lesson 06: joined outputs taken apart, a lookup table, and a reader whose batch is on dimension 1."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from labkit.base.language import series
from labkit.base.texts import Text
from labkit_course.exercise import judge
from labkit_course.judging import Hints, Named, Unreadable
from labkit_course.kinds import a_function, quote_value, read_returned, wrong_return

from .gpus import some_gpus


@judge("06.untangle", a_function("untangle"))
def _judge_untangle(answer: Callable[..., Any]) -> Hints:
    for images, columns, gpus in ((8, 5, 2), (9, 3, 3), (4, 6, 4), (3, 2, 1)):
        one = torch.arange(2.0 * columns * images).reshape(columns, images, 2)
        given = torch.cat(one.chunk(gpus, dim=1))
        case: dict[str, Any] = {"case": Named("case"), "given": list(given.shape), "columns": columns}
        try:
            got = read_returned(answer(joined := given.clone(), columns))
        except (RuntimeError, ValueError) as error:
            yield Named("raised", error=error, **case)
            return
        if not isinstance(got, Tensor):
            raise wrong_return(got, Text("a tensor", "一个张量"))
        if got.shape != one.shape:
            yield Named("shape", got=list(got.shape), want=list(one.shape), **case)
        if not torch.equal(got, one):
            yield Named("reshaped" if torch.equal(got, given.reshape(one.shape)) else "mixed", **case)
        if not torch.equal(joined, given):
            yield Named("callers", **case)


def _read_class(answer: object) -> Callable[[Tensor], nn.Module]:
    if not isinstance(answer, type) or not issubclass(answer, nn.Module):
        raise Unreadable
    return answer


@judge("06.table", _read_class)
def _judge_table(answer: Callable[[Tensor], nn.Module]) -> Hints:
    with some_gpus(2) as devices, torch.no_grad():
        table = torch.eye(10)[:, :7] + torch.arange(10.0).unsqueeze(1)
        model = answer(table.clone()).to(devices[0])
        for count, run in ((1, model), (2, nn.DataParallel(model, [*map(torch.device, devices)]))):
            for rows in (8, 5, 1):
                want = torch.arange(rows) % 4 + 3
                try:
                    got = read_returned(run(table[want].to(devices[0])), en="`forward`", zh="`forward` ")
                except (RuntimeError, AttributeError) as error:
                    yield Named("raised", gpus=count, error=str(error).splitlines()[-1])
                    return
                if not isinstance(got, Tensor) or got.tolist() != want.tolist():
                    values = quote_value(got.tolist() if isinstance(got, Tensor) else got)
                    yield Named("other", gpus=count, rows=rows, got=values, want=want.tolist())
        if any(weight.requires_grad and weight.numel() == table.numel() for weight in model.parameters()):
            yield Named("parameter")
        if not any(value.numel() == table.numel() for value in model.state_dict().values()):
            yield Named("unsaved")


def _read_model(answer: object) -> nn.Module:
    """Return the model, made from the class if necessary, without its wrapper."""
    model = answer() if isinstance(answer, type) and issubclass(answer, nn.Module) else answer
    if not isinstance(model, nn.Module):
        raise Unreadable
    return model.module if isinstance(model, nn.DataParallel) else model


@judge("06.repair", _read_model)
def _judge_repair(model: nn.Module) -> Hints:
    with some_gpus(2) as devices, torch.no_grad():
        model = copy.deepcopy(model).to(devices[0]).eval()
        images = torch.linspace(-1, 1, 6 * 8 * 24).sin().mul(40).cos().reshape(6, 1, 8, 24).to(devices[0])
        results = read_returned(model(images), en="`forward`", zh="`forward` ")
        yield from _judge_shapes(results)
        try:
            yield from _judge_rows(model, images, *results)
        except (RuntimeError, IndexError, ValueError) as error:
            yield Named("single", error=str(error).splitlines()[-1])
            return
        for rows in (6, 5):
            outputs = nn.DataParallel(model, [*map(torch.device, devices)])(images[:rows])
            for many, one in zip(outputs, model(images[:rows]), strict=True):
                if not _is_same(many, one):
                    yield Named("counts", rows=rows, many=list(many.shape), one=list(one.shape))
        for result, right in zip(results, _read_digits(model, images), strict=False):
            if not _is_same(result.reshape(-1), right.reshape(-1)):
                yield Named("values")


def _judge_shapes(results: object) -> Hints:
    """Yield hints on the shapes of the two results for six images on one GPU."""
    if isinstance(results, Tensor):
        yield Named("one_tensor")
    if not (
        isinstance(results, (tuple, list))
        and len(results) == 2
        and all(isinstance(result, Tensor) for result in results)
    ):
        raise wrong_return(results, Text("two tensors", "两个张量"), en="`forward`", zh="`forward` ")
    scores, hidden = (list(result.shape) for result in results)
    if scores == [12, 6, 10]:
        yield Named("columns_first")
    if scores != [6, 12, 10]:
        yield Named("other_scores", scores=scores)
    if hidden in ([1, 12, 7], [12, 1, 7]):
        yield Named("columns_as_batch", hidden=hidden)
    if hidden == [1, 6, 7]:
        yield Named("batch_first", hidden=hidden)
    if len(hidden) < 2 or hidden[0] != 6 or results[1].numel() != 6 * 7:
        yield Named("other_hidden", hidden=hidden)


def _judge_rows(model: nn.Module, images: Tensor, scores: Tensor, hidden: Tensor) -> Hints:
    """Yield hints if an image's result in a batch differs from its result alone."""
    single = [model(images[at : at + 1]) for at in range(len(images))]
    got, want = (
        [list(result.shape) for result in single[0]],
        [list(result[:1].shape) for result in (scores, hidden)],
    )
    if got != want:
        yield Named("squeezed", got=series(map(str, got)), want=series(map(str, want)))
    right = torch.cat([one[0] for one in single])
    if _is_same(scores, right) and _is_same(hidden, torch.cat([one[1] for one in single])):
        return
    if _is_same(scores.flatten(), right.transpose(0, 1).flatten()):
        yield Named("reshaped")
    yield Named("along_images")


def _read_digits(model: nn.Module, images: Tensor) -> tuple[Tensor, ...]:
    """Return what the lesson's `Digits` computes with the model's layers, rows first; nothing without these layers."""
    cnn, rnn, layer = (getattr(model, name, None) for name in ("cnn", "rnn", "scores"))
    if not (isinstance(cnn, nn.Conv2d) and isinstance(rnn, nn.GRU) and isinstance(layer, nn.Linear)):
        return ()
    columns = cnn(images).squeeze(2).transpose(1, 2)
    output, hidden = rnn(columns if rnn.batch_first else columns.transpose(0, 1))
    scores: Tensor = layer(output if rnn.batch_first else output.transpose(0, 1))
    return scores, hidden


def _is_same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, atol=1e-3)
