"""Every operator of PyTorch's own database with its tensors on different devices: nothing mixes silently."""

import warnings

import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_map

import labkit

# Operators that may take tensors from several devices, because they only look at a tensor's shape or read
# a number from it.
FREE = {
    "broadcast_tensors": "uses shapes only",
    "nn.functional.ctc_loss": "brings the labels to the data", "expand_as": "uses the other's shape only",
    "view_as": "uses the other's shape only", "reshape_as": "uses the other's shape only",
    "narrow": "reads the start from a 0-dim tensor", "linspace": "reads its ends from 0-dim tensors",
    "logspace": "reads its ends from 0-dim tensors",
}  # fmt: skip
PAIRS = (("cuda:0", "cuda:1"), ("cuda:0", "cpu"), ("cpu", "cuda:0"))


def _placed(sample, devices):
    left = iter(devices)

    def place(value):
        return value.detach().to(next(left)) if isinstance(value, torch.Tensor) else value

    return tree_map(place, (sample.input, sample.args, sample.kwargs))


def _tensors(value):
    return [item for item in tree_flatten(value)[0] if isinstance(item, torch.Tensor)]


def test_no_operator_mixes_devices_silently(operators, capsys):
    tried, needs_cuda, raised, scalars, silent, odd = set(), set(), 0, 0, [], []
    with labkit.simulate(gpus=2), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in operators:
            dtype = torch.float32 if torch.float32 in op.dtypes else next(iter(op.dtypes), torch.float32)
            for _, sample in zip(range(3), op.sample_inputs("cpu", dtype), strict=False):
                shapes = [t.dim() for t in _tensors((sample.input, sample.args, sample.kwargs))]
                if len(shapes) < 2:
                    continue
                try:
                    args = _placed(sample, ["cuda:0"] * len(shapes))
                    result = op(args[0], *args[1], **args[2])
                except Exception:
                    needs_cuda.add(op.name)  # has no CPU kernel, or its sample depends on its storage
                    continue
                tried.add(op.name)
                if op.name not in FREE:
                    assert all(t.device.type == "cuda" for t in _tensors(result)), op.name
                for first, rest in PAIRS:
                    devices = [first] + [rest] * (len(shapes) - 1)
                    args = _placed(sample, devices)
                    try:
                        op(args[0], *args[1], **args[2])
                    except RuntimeError as error:
                        raised += 1
                        if "device" not in str(error).lower() and "should be the same" not in str(error):
                            odd.append((op.name, devices, str(error)))
                        continue
                    on_host = [dim for dim, device in zip(shapes, devices, strict=True) if device == "cpu"]
                    if "cuda:1" not in devices and on_host and not any(on_host):
                        scalars += 1
                    elif op.name not in FREE:
                        silent.append((op.name, devices))
    with capsys.disabled():
        print(
            f"\n  {len(tried)} of {len(operators)} operators take several tensors: {raised} mixed calls refused, "
            f"{scalars} with a 0-dim CPU tensor allowed, {len(silent)} silent; not run here: "
            f"{', '.join(sorted(needs_cuda))}"
        )
    assert silent == []
    assert odd == []
    assert len(tried) > 200


@pytest.mark.parametrize("name", sorted(FREE))
def test_the_free_ones_are_still_there(operators, name):
    assert any(op.name == name for op in operators)
