"""Where the engine is clearer than PyTorch on purpose; each case with what PyTorch does."""

import re
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import labkit

pytestmark = pytest.mark.usefixtures("four")


class Returns(nn.Module):
    """A module that returns what a function makes of its inputs."""

    def __init__(self, function):
        super().__init__()
        self.function, self.weight = function, nn.Parameter(torch.ones(1))

    def forward(self, *inputs, **kwargs):
        return self.function(*inputs, **kwargs)


def both(function):
    module = Returns(function).cuda()
    return nn.DataParallel(module), labkit.DataParallel(module)


def test_a_short_keyword_is_named():
    theirs, ours = both(lambda x, mask: x)
    with pytest.raises(
        AssertionError, match="The number of modules 4 is not equal to the number of kwargs_tup 2"
    ):
        theirs(torch.ones(8, 1), mask=torch.ones(2, 1))
    with pytest.raises(ValueError, match="keyword argument 'mask' has 2 rows"):
        ours(torch.ones(8, 1), mask=torch.ones(2, 1))


def test_the_autocast_dtype_reaches_the_replicas():
    model = nn.Linear(4, 4).cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert nn.DataParallel(model)(torch.ones(8, 4)).dtype is torch.float16
        assert labkit.DataParallel(model)(torch.ones(8, 4)).dtype is torch.bfloat16


def test_dicts_that_differ_name_the_key():
    theirs, ours = both(lambda x: {"y": x, **({"odd": x} if x.device.index == 2 else {})})
    with pytest.raises(ValueError, match="All dicts must have the same number of keys"):
        theirs(torch.ones(8, 1))
    with pytest.raises(
        ValueError, match="same number of keys: output differs between replica 0 and replica 2 in 'odd'"
    ):
        ours(torch.ones(8, 1))


def test_a_failure_tells_replica_device_shapes_and_the_original_traceback():
    def fail(x):
        if x.device.index in (1, 3):
            raise ValueError(f"bad luck on {x.device.index}")
        return x

    _, ours = both(fail)
    with pytest.raises(ValueError, match="Caught ValueError in replica 1 on cuda:1") as caught:
        ours(torch.ones(8, 5))
    text = str(caught.value)
    assert "given input 0: [2, 5]" in text
    assert "in fail" in text
    assert "Failed too:\n  replica 3 on cuda:3: ValueError: bad luck on 3" in text


def test_the_misplaced_buffer_is_named():
    model = nn.BatchNorm1d(2).cuda()
    model.running_var = model.running_var.to("cuda:1")
    for devices, name in ([0, 1], "running_var"), ([0], "0.running_var"):
        wrapped = labkit.DataParallel(model, devices)
        if len(devices) == 1:  # which has moved it to where it belongs
            wrapped.module = nn.Sequential(model)
            model.running_var = model.running_var.to("cuda:1")
        with pytest.raises(RuntimeError, match=rf"found one of them on device: cuda:1 \('{name}'\)"):
            wrapped(torch.ones(8, 2))


def test_a_list_as_long_as_the_batch_is_told_of():
    _, ours = both(lambda x, names: x)
    for dim, names, warned in (
        (0, "ab", False),
        (1, "ab", True),
        (0, "abcdefgh", True),
        (1, "abcdefgh", False),
    ):
        wrapped = labkit.DataParallel(ours.module, dim=dim)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            wrapped(torch.ones(8, 2), [list(names)])
        texts = [str(one.message) for one in caught]
        assert any(f"input 1[0] is a list of {len(names)} values" in text for text in texts) == warned, (
            dim,
            names,
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours(torch.ones(1, 2), ["a"])  # one replica gets the whole batch


def test_bad_device_ids_are_refused():
    for ids, text in (
        ([0, 0], "each GPU may be named once"),
        ([0, 7], "cuda:7 is not one of the 4 GPUs"),
        (["x"], "x"),
    ):
        with pytest.raises((ValueError, RuntimeError), match=text):
            labkit.DataParallel(nn.Linear(2, 2), device_ids=ids)
    with pytest.raises((ValueError, RuntimeError), match="must not be negative"):
        labkit.DataParallel(nn.Linear(2, 2), output_device=-2)


def test_buffers_are_written_in_inference_mode():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x):
            self.calls += 1
            return x

    module = Counts().cuda()
    with torch.inference_mode():  # PyTorch makes the copies in this mode and runs the replicas out of it
        with pytest.raises(RuntimeError, match="Inplace update to inference tensor outside InferenceMode"):
            nn.DataParallel(module)(torch.ones(8, 1))
        module.calls.zero_()
        labkit.DataParallel(module)(torch.ones(8, 1))
    assert module.calls.item() == 1


def test_a_sparse_gradient_of_one_replica():
    results = []
    for wrap in (nn.DataParallel, labkit.DataParallel):
        words = nn.Embedding(5, 2, sparse=True).cuda()
        loss = wrap(words)(torch.tensor([[1, 3]])).sum()  # one row: one replica of four
        try:
            loss.backward()
            results.append(words.weight.grad.to_dense().sum(1).tolist())
        except NotImplementedError as error:
            results.append("aten::view" in str(error))
    assert results == [True, [0, 2, 0, 2, 0]]


def test_complex_numbers_are_not_cut_in_two():
    x = torch.randn(2, 8, dtype=torch.complex64)
    with pytest.raises(
        RuntimeError, match="must have a last dimension of size 2"
    ):  # PyTorch cuts them as pairs
        nn.parallel.scatter(x, [0, 1], dim=-1)
    pieces = labkit.scatter(x, [0, 1], dim=-1)
    assert torch.equal(labkit.gather(pieces, "cpu", dim=-1), x)


def test_weights_keep_their_strides():
    model = nn.Conv2d(4, 6, 3).cuda().to(memory_format=torch.channels_last)
    plain = [r.weight.is_contiguous() for r in nn.parallel.replicate(model, [0, 1])]
    assert plain == [False, True]
    for replica in labkit.replicate(model, [0, 1]):
        assert replica.weight.is_contiguous(memory_format=torch.channels_last)
        assert not replica.weight.is_contiguous()


ROOT = Path(__file__).parents[2]
PUBLISHED = re.findall(
    r"\| `(?:Test(\w+)::)?(test_\w+)` \|$", (ROOT / "docs/differences.md").read_text("utf-8"), re.M
)


def test_every_entry_of_the_published_list_has_its_test():
    assert len(PUBLISHED) > 20
    bugs = (ROOT / "tests/engine/test_known_bugs.py").read_text("utf-8")
    for issue, name in PUBLISHED:
        assert f"class Test{issue}" in bugs if issue else name in globals(), (issue, name)


def test_every_test_of_this_file_is_in_the_published_list():
    own = {name for name in globals() if name.startswith("test_") and "published_list" not in name}
    assert own <= {name for _, name in PUBLISHED}
