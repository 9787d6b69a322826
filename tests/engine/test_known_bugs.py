"""Known bugs of nn.DataParallel, by the number of the issue in which PyTorch's users told of them.

Each is reproduced with torch.nn.DataParallel on the simulated machine, as it still is in PyTorch today, and shown
with labkit.DataParallel. The three lines of a class's text tell what the user did, what PyTorch does and why, and
what labkit does. Where labkit does as PyTorch does, because programs rely on it, the third line says so.
"""

import dataclasses
import re
import warnings
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn.utils import rnn

import labkit

BUGS = {
    15161: "A batch of 9 on 4 GPUs leaves the last GPU without its input",
    31460: "A batch smaller than the number of GPUs and a keyword argument",
    52260: "An unlucky batch size leaves one of 7 GPUs without its input",
    33185: "More keyword arguments than inputs, and one row",
    7358: "A list of tensors with different numbers of rows loses rows",
    55304: "A list of images is cut along their channels",
    75442: "A list of texts is not cut with the images it belongs to",
    6983: "Losses without a dimension are gathered into a vector",
    5664: "With dim=1, an output without that dimension cannot be gathered",
    41327: "Outputs that are dataclasses cannot be gathered",
    94699: "Outputs that are no tensors cannot be gathered",
    40457: "next(self.parameters()) raises StopIteration in forward",
    38493: "parameters() of a replica is empty, without a word",
    36035: "A ParameterList has no parameters in forward",
    3174: "Modules in a plain list stay on the first GPU",
    2864: "A counter does not count",
    5958: "What forward stores in an attribute is gone afterwards",
    1051: "BatchNorm's running statistics are those of the first GPU",
    11476: "What a hook stores in its module is gone",
    43329: "The wrapper does not have the module's own methods",
    16885: "The wrapper does not have the module's attributes",
    3805: "A checkpoint's keys begin with module., or do not",
    17362: "A module that is moved to the GPU after it was wrapped",
    2312: "pack_padded_sequence gets the lengths of the whole batch",
}

pytestmark = pytest.mark.usefixtures("four")


class Net(nn.Module):
    """A layer, and options that a keyword gives."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x, factor=1, **options):
        return self.fc(x) * factor


class Gives(nn.Module):
    """A module whose forward is ``function``."""

    def __init__(self, function):
        super().__init__()
        self.function, self.weight = function, nn.Parameter(torch.ones(1))

    def forward(self, *inputs):
        return self.function(*inputs)


def both(module, *args, **kwargs):
    return nn.DataParallel(module, *args, **kwargs), labkit.DataParallel(module, *args, **kwargs)


def quiet(call, *args, **kwargs):
    """The result of a call that must not warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return call(*args, **kwargs)


def error_of(call, *args):
    with pytest.raises(Exception) as caught:  # noqa: PT011
        call(*args)
    return caught.value


def test_every_bug_has_its_story_and_its_tests():
    told = {
        int(name.removeprefix("TestIssue")): of
        for name, of in globals().items()
        if name.startswith("TestIssue")
    }
    assert [number for number in BUGS if number not in TOLD_TOGETHER] == list(told)
    for number, of in told.items():
        assert len(of.__doc__.strip().splitlines()) == 3, number
        assert all(hasattr(of, f"test_{name}") for name in ("pytorch", "labkit")), number


# Issues whose story and tests are those of another: of 15161, 36035, 2864 and 43329.
TOLD_TOGETHER = {31460, 52260, 33185, 38493, 5958, 16885}
# The issues of one bug, each with its GPUs, rows and keywords, and the replica that is called without its input.
KEYWORDS = {
    15161: (4, 9, {"factor": 2}, 3),  # the last batch of an epoch had 9 rows; all others had worked
    31460: (2, 1, {"factor": 3}, 1),  # one row, and an option that is no tensor
    52260: (7, 36, {"factor": 2}, 6),  # more than enough rows, it would seem
    33185: (2, 1, {"a": 1, "b": 2}, 1),  # flags that the model does not even read, and one image
}


@pytest.mark.parametrize(("gpus", "rows", "options", "replica"), KEYWORDS.values())
class TestIssue15161:
    """Fewer pieces than GPUs, and a keyword beside the batch: in four issues.
    PyTorch cuts 3, 3, 3 but passes the keyword to all 4 GPUs: the last replica gets it without its input.
    labkit makes as many replicas as there are pieces, whatever else is passed.
    """

    def test_pytorch(self, gpus, rows, options, replica):
        with labkit.simulate(gpus=gpus):
            wrapped = nn.DataParallel(Net().cuda())
            assert wrapped(torch.ones(rows, 3)).shape == (rows, 2)  # without the option it works
            text = rf"Caught TypeError in replica {replica} on device {replica}(.|\n)*argument: 'x'\s*$"
            with pytest.raises(TypeError, match=text):
                wrapped(torch.ones(rows, 3), **options)

    def test_labkit(self, gpus, rows, options, replica):
        with labkit.simulate(gpus=gpus):
            module, x = Net().cuda(), torch.randn(rows, 3)
            torch.testing.assert_close(labkit.DataParallel(module)(x, **options), module(x.cuda(), **options))


class TestIssue7358:
    """A list of two tensors, of 5 rows and of 1, on 2 GPUs.
    PyTorch pairs the pieces 3, 2 with the piece 1 and stops at the shorter: 2 rows are gone, without a word.
    labkit says which tensor has how many rows, and what to do with what all replicas share.
    """

    def test_pytorch(self):
        found = nn.DataParallel(Gives(lambda pair: pair[0]).cuda(), [0, 1])(
            [torch.arange(5.0), torch.ones(1)]
        )
        assert found.tolist() == [0, 1, 2]

    def test_labkit(self):
        text = "over 2 GPUs: input 0[0] has 5 rows, so 2 pieces; input 0[1] has 1 rows, so 1 pieces. Give every tensor"
        with pytest.raises(ValueError, match=re.escape(text)):
            labkit.DataParallel(Gives(lambda pair: pair[0]).cuda(), [0, 1])(
                [torch.arange(5.0), torch.ones(1)]
            )


class TestIssue55304:
    """A list of 4 images [3, 5, 5] on 4 GPUs, as detection models take them: one image each, it was hoped.
    PyTorch cuts each image along its first dimension, the channels: 3 GPUs get one channel of all 4 images.
    labkit must cut so too, but where the model then fails it names the list and the cure.
    """

    class Detector(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 2, 3)

        def forward(self, images):
            return torch.stack([self.conv(image[None])[0] for image in images])

    def test_pytorch(self):
        wrapped = nn.DataParallel(self.Detector().cuda())
        with pytest.raises(
            RuntimeError, match=r"\[1, 1, 5, 5\] to have 3 channels, but got 1 channels instead\s*$"
        ):
            wrapped([torch.ones(3, 5, 5)] * 4)
        seen = nn.DataParallel(Gives(lambda images: torch.tensor([list(images[0].shape)])).cuda())
        seen.gather = lambda outputs, device: outputs
        assert [shape.tolist() for shape in seen([torch.ones(3, 5, 5)] * 4)] == [[[1, 5, 5]]] * 3

    def test_labkit(self):
        module = self.Detector().cuda()
        with pytest.raises(RuntimeError, match="Caught RuntimeError in replica 0 on cuda:0") as caught:
            labkit.DataParallel(module)([torch.ones(3, 5, 5)] * 4)
        text = str(caught.value)
        assert "given input 0[0]: [1, 5, 5], input 0[1]: [1, 5, 5]" in text
        assert (
            "Hint: input 0 is a list of 4 tensors. Each of them was cut along its own first dimension" in text
        )
        images = torch.stack([torch.ones(3, 5, 5)] * 4)  # the cure
        assert labkit.DataParallel(module)(images).shape == (4, 2, 3, 3)


class TestIssue75442:
    """A batch was a dict of an image tensor and a list of captions.
    PyTorch cuts tensors alone: every GPU gets all captions, and pairs its images with the first ones.
    labkit does the same, for lists may be meant for all, and warns of a list as long as the batch.
    """

    @staticmethod
    def pair(batch):
        lengths = [len(text) for _, text in zip(batch["image"], batch["text"], strict=False)]
        return torch.tensor(lengths, device=batch["image"].device)

    def test_pytorch(self):
        batch = {"image": torch.ones(4, 2), "text": ["a", "bb", "ccc", "dddd"]}
        assert quiet(nn.DataParallel(Gives(self.pair).cuda(), [0, 1]), batch).tolist() == [1, 2, 1, 2]

    def test_labkit(self):
        wrapped = labkit.DataParallel(Gives(self.pair).cuda(), [0, 1])
        batch = {"image": torch.ones(4, 2), "text": ["a", "bb", "ccc", "dddd"]}
        with pytest.warns(
            UserWarning, match=r"input 0\['text'\] is a list of 4 values, as many as .* rows"
        ) as caught:
            wrapped(batch)
        assert "each of the 2 GPUs gets the whole list. Pass a tensor, or pick" in str(caught[0].message)
        assert caught[0].filename == __file__

        def pick(rows):
            texts = ["a", "bb", "ccc", "dddd"]
            return torch.tensor([len(texts[row]) for row in rows.tolist()], device=rows.device)

        assert quiet(labkit.DataParallel(Gives(pick).cuda(), [0, 1]), torch.arange(4)).tolist() == [
            1, 2, 3, 4,
        ]  # fmt: skip
        quiet(wrapped, {"image": torch.ones(6, 2), "text": ["for", "all"]})


class TestIssue6983:
    """Each replica computed its loss, a tensor without dimensions.
    PyTorch once failed to gather these; now it makes a vector of them, and its mean is wrong if pieces differ.
    labkit makes the same vector with the same warning; with dim=1, where PyTorch still fails, it says why.
    """

    def test_pytorch(self):
        wrapped = nn.DataParallel(Gives(lambda x: x.mean()).cuda())
        with pytest.warns(UserWarning, match="all input tensors were scalars; will instead unsqueeze"):
            losses = wrapped(torch.arange(10.0))
        assert losses.tolist() == [1, 4, 7, 9]
        assert losses.mean() == 5.25  # the mean of the ten numbers is 4.5
        with pytest.raises(IndexError, match="Dimension specified as 1 but tensor has no dimensions"):
            nn.DataParallel(Gives(lambda x: x.mean()).cuda(), dim=1)(torch.ones(2, 8))

    def test_labkit(self):
        with pytest.warns(UserWarning, match="all input tensors were scalars; will instead unsqueeze"):
            losses = labkit.DataParallel(Gives(lambda x: x.mean()).cuda())(torch.arange(10.0))
        assert losses.tolist() == [1, 4, 7, 9]
        with pytest.raises(
            ValueError, match=r"output has shape \[\], which has no dimension 1 .*, or give dim=0"
        ):
            labkit.DataParallel(Gives(lambda x: x.mean()).cuda(), dim=1)(torch.ones(2, 8))
        each = quiet(labkit.DataParallel(Gives(lambda x: x * 1).cuda()), torch.arange(10.0))
        assert each.mean() == 4.5  # the cure: a loss for each row


class TestIssue5664:
    """Sequences [time, batch, features] with dim=1; the model returns its last state, [batch, features].
    PyTorch gathers along 1 what has its batch in 0: uneven pieces fail, even ones come out side by side.
    labkit tells which replica's shape does not fit; even pieces it must put side by side as well.
    """

    def test_pytorch(self):
        wrapped = nn.DataParallel(Gives(lambda x: x[-1]).cuda(), dim=1)
        text = "Input tensor at index 3 has invalid shape [1, 2], but expected [3, 2]"
        with pytest.raises(RuntimeError, match=re.escape(text)):
            wrapped(torch.ones(5, 10, 2))
        assert wrapped(torch.ones(5, 8, 2)).shape == (2, 8)  # for [8, 2]

    def test_labkit(self):
        text = (
            "output has shape [3, 2] on replica 0 but [1, 2] on replica 3: they can only be put together along "
            "dimension 1. Is the batch in another dimension?"
        )
        with pytest.raises(ValueError, match=re.escape(text)):
            labkit.DataParallel(Gives(lambda x: x[-1]).cuda(), dim=1)(torch.ones(5, 10, 2))
        cure = labkit.DataParallel(Gives(lambda x: x[-1:]).cuda(), dim=1)
        assert cure(torch.ones(5, 10, 2)).shape == (1, 10, 2)


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    hidden: torch.Tensor

    def __iter__(self):
        return iter((self.logits, self.hidden))


@dataclasses.dataclass
class OutputDict(OrderedDict):
    """A dataclass that is a dict too, as some model libraries have it."""

    logits: torch.Tensor
    hidden: torch.Tensor = None

    def __post_init__(self):
        for field in dataclasses.fields(self):
            self[field.name] = getattr(self, field.name)


class TestIssue41327:
    """The model returned a dataclass with two tensors.
    PyTorch makes the class anew from one iterator of all values, as a list is made: an argument is missing.
    labkit gathers a dataclass field by field.
    """

    def test_pytorch(self):
        with pytest.raises(TypeError, match=r"Output.__init__\(\) missing 1 required .*'hidden'"):
            nn.DataParallel(Gives(lambda x: Output(x, x * 2)).cuda())(torch.ones(8, 1))

    @pytest.mark.parametrize("kind", [Output, OutputDict])
    def test_labkit(self, kind):
        found = labkit.DataParallel(Gives(lambda x: kind(x, x * 2)).cuda())(torch.arange(8.0))
        assert type(found) is kind
        assert found.logits.tolist() == list(range(8))
        assert found.hidden.tolist() == list(range(0, 16, 2))
        if kind is OutputDict:
            assert torch.equal(found["hidden"], found.hidden)


class TestIssue94699:
    """The model returned a number beside its tensor.
    PyTorch tries to walk whatever is no tensor: a number cannot be walked, a text becomes that of a map object.
    labkit names the output and says what to return.
    """

    def test_pytorch(self):
        with pytest.raises(TypeError, match="'float' object is not iterable"):
            nn.DataParallel(Gives(lambda x: (x, 0.5)).cuda())(torch.ones(8, 1))
        assert "map object" in nn.DataParallel(Gives(lambda x: (x, "text")).cuda())(torch.ones(8, 1))[1]

    @pytest.mark.parametrize(
        ("value", "kind"), [(0.5, "a float"), (3, "a int"), (True, "a bool"), ("text", "a str")]
    )
    def test_labkit(self, value, kind):
        text = rf"output\[1\] is {kind}, which cannot be gathered from 4 GPUs: return tensors"
        with pytest.raises(TypeError, match=text):
            labkit.DataParallel(Gives(lambda x: (x, value)).cuda())(torch.ones(8, 1))


class TestIssue40457:
    """forward asked next(self.parameters()) for the device, as many models do.
    PyTorch's replicas have no parameters since 1.5: their weights are results of a copy, so it is StopIteration.
    labkit's neither, and it says where to find the device instead.
    """

    class Asks(Net):
        def forward(self, x):
            return self.fc(x.to(next(self.parameters()).device))

    def test_pytorch(self):
        with pytest.raises(StopIteration, match="Caught StopIteration in replica 0 on device 0"):
            nn.DataParallel(self.Asks().cuda())(torch.ones(8, 3))

    @pytest.mark.filterwarnings("ignore:a replica has no parameters")
    def test_labkit(self):
        with pytest.raises(StopIteration, match="Caught StopIteration in replica 0 on cuda:0") as caught:
            labkit.DataParallel(self.Asks().cuda())(torch.ones(8, 3))
        assert "Hint: a replica has no parameters" in str(caught.value)
        assert "from a weight by its name (self.fc.weight)" in str(caught.value)
        with torch.no_grad():  # one piece, no gradients: the first replica's are the originals, as in PyTorch
            assert [wrap(torch.ones(1, 3)).shape for wrap in both(self.Asks().cuda())] == [(1, 2)] * 2


class TestIssue36035:
    """A ParameterList was empty on every GPU, and a penalty summed over self.parameters() in forward was 0.
    PyTorch replicates a list's elements by now; parameters() is still empty in replicas, and nothing tells.
    labkit gives the elements too, and warns of parameters() at the line that asks.
    """

    class Lists(nn.Module):
        def __init__(self):
            super().__init__()
            self.several = nn.ParameterList([torch.ones(1), torch.ones(1) * 2])

        def forward(self, x):
            return x * sum(self.several), x.new_full((len(x),), len(list(self.several.parameters())))

    def test_pytorch(self):
        product, count = quiet(nn.DataParallel(self.Lists().cuda()), torch.ones(4))
        assert product.tolist() == [3] * 4
        assert count.tolist() == [0] * 4

    def test_labkit(self):
        with pytest.warns(
            UserWarning, match=r"its parameters\(\) is empty: .* by name \(self.weight\)"
        ) as caught:
            product, _ = labkit.DataParallel(self.Lists().cuda())(torch.ones(4))
        assert product.tolist() == [3] * 4
        assert caught[0].filename == __file__


class TestIssue3174:
    """Layers were kept in a plain list, and registered with add_module besides.
    PyTorch replicates what is registered; the list still holds the originals, on the first GPU.
    labkit cannot know the list either, but finds it when the devices clash, and names it with its cure.
    """

    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.branches = [nn.Linear(3, 2)]
            self.add_module("branch_0", self.branches[0])

        def forward(self, x):
            return [branch(x) for branch in self.branches]

    def test_pytorch(self):
        with pytest.raises(RuntimeError, match="in replica 1 on device 1(.|\n)*Expected all tensors to be"):
            nn.DataParallel(self.Branches().cuda())(torch.ones(8, 3))

    def test_labkit(self):
        with pytest.raises(RuntimeError, match="in replica 1 on cuda:1(.|\n)*Expected all tensors") as caught:
            labkit.DataParallel(self.Branches().cuda())(torch.ones(8, 3))
        assert (
            "Hint: 'branches' of Branches is a plain list of modules, which all replicas share with the original: "
            "make it an nn.ModuleList"
        ) in str(caught.value)

    @pytest.mark.parametrize(("kept", "cure"), [
        (lambda m: setattr(m, "kept", m.fc.forward), "is a bound method of the original module"),
        (lambda m: setattr(m, "kept", {"a": nn.Linear(3, 2).cuda()}), "make it an nn.ModuleDict"),
        (lambda m: setattr(m, "kept", [torch.ones(3).cuda()]), "a plain list of tensors on cuda:0"),
        (lambda m: setattr(m, "kept", torch.ones(3).cuda()), "a plain tensor on cuda:0: register it with"),
    ])  # fmt: skip
    def test_labkit_finds_the_like(self, kept, cure):
        class Keeps(Net):
            def forward(self, x):
                value = next(iter(self.kept.values())) if isinstance(self.kept, dict) else self.kept
                value = value[0] if isinstance(value, list) else value
                return value(x) if callable(value) else value * x

        module = Keeps().cuda()
        kept(module)
        error = error_of(labkit.DataParallel(module), torch.ones(8, 3))
        assert "Hint: 'kept' of Keeps is" in str(error)
        assert cure in str(error)

    def test_labkit_names_only_what_is_elsewhere(self):
        class Keeps(Net):
            def forward(self, x):
                return self.elsewhere * x

        module = Keeps().cuda()
        module.here, module.elsewhere = [torch.ones(3).cuda()], torch.ones(3, device="cuda:1")
        error = error_of(labkit.DataParallel(module), torch.ones(8, 3))
        assert "in replica 0 on cuda:0" in str(error)
        assert str(error).count("Hint:") == 1
        assert "Hint: 'elsewhere' of Keeps is a plain tensor on cuda:1" in str(error)


class Counts(Net):
    """Counts its calls, and keeps its last input."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        self.last = x
        return self.fc(x)


LOST = r"forward has set 'calls', 'last' on the replicas, which are thrown away after each call"


class TestIssue2864:
    """A module counted its calls in an attribute, which was always at 0; another stored a mask, which was gone.
    PyTorch makes replicas for every call and throws them away: each counts to 1.
    labkit does so too, and warns once which attributes were lost and how to keep them, or to return the value.
    """

    def test_pytorch(self):
        wrapped = nn.DataParallel(Counts().cuda())
        for _ in range(3):
            quiet(wrapped, torch.ones(8, 3))
        assert wrapped.module.calls == 0
        with pytest.raises(AttributeError, match="'Counts' object has no attribute 'last'"):
            _ = wrapped.module.last

    def test_labkit(self):
        wrapped = labkit.DataParallel(Counts().cuda())
        with pytest.warns(UserWarning, match=LOST + r": .*\. Return the value from forward") as caught:
            wrapped(torch.ones(8, 3))
        assert not hasattr(wrapped.module, "last")
        assert "register a buffer and write into it in place" in str(caught[0].message)
        assert caught[0].filename == __file__
        quiet(wrapped, torch.ones(8, 3))  # told once

        class Cured(Net):
            def __init__(self):
                super().__init__()
                self.register_buffer("calls", torch.zeros(1))

            def forward(self, x):
                self.calls += 1
                return self.fc(x)

        wrapped = labkit.DataParallel(Cured().cuda())
        for _ in range(3):
            quiet(wrapped, torch.ones(8, 3))
        assert wrapped.module.calls == 3


class TestIssue1051:
    """BatchNorm on several GPUs: whose running mean is it?
    PyTorch keeps the first GPU's, for its buffers are the originals, and loses the others' (and takes [0, 0]).
    labkit keeps the same, bit for bit, since checkpoints rest on it; a GPU named twice it refuses.
    """

    def test_pytorch(self):
        norm = nn.BatchNorm1d(1, momentum=1.0).cuda()
        nn.DataParallel(norm)(torch.arange(8.0)[:, None])
        assert norm.running_mean.tolist() == [0.5]  # of 0 and 1; the mean of all is 3.5
        assert nn.DataParallel(nn.Linear(3, 2).cuda(), [0, 0])(torch.ones(4, 3)).shape == (4, 2)

    def test_labkit(self):
        norm = nn.BatchNorm1d(1, momentum=1.0).cuda()
        labkit.DataParallel(norm)(torch.arange(8.0)[:, None])
        assert norm.running_mean.tolist() == [0.5]
        with pytest.raises(ValueError, match=r"device_ids: each GPU may be named once, got \[0, 0\]"):
            labkit.DataParallel(nn.Linear(3, 2).cuda(), [0, 0])


class TestIssue11476:
    """A hook stored something in the module that it was called with; spectral_norm did, and did not converge.
    PyTorch calls hooks with replicas: what they store is lost. (spectral_norm now writes into buffers.)
    labkit warns by the name of the module and of the attribute.
    """

    @staticmethod
    def hooked():
        module = Net().cuda()
        module.fc.register_forward_hook(lambda layer, inputs, output: setattr(layer, "seen", output.shape))
        return module

    def test_pytorch(self):
        module = self.hooked()
        quiet(nn.DataParallel(module), torch.ones(8, 3))
        assert not hasattr(module.fc, "seen")

    def test_labkit(self):
        with pytest.warns(UserWarning, match=r"forward has set 'fc.seen' on the replicas, which are thrown"):
            labkit.DataParallel(self.hooked())(torch.ones(8, 3))

    @pytest.mark.parametrize("norm", [nn.utils.spectral_norm, nn.utils.parametrizations.spectral_norm])
    def test_spectral_norm_learns(self, norm):
        for wrap in (nn.DataParallel, labkit.DataParallel):
            torch.manual_seed(0)
            layer = norm(nn.Linear(20, 20)).cuda()
            before = {name: buffer.clone() for name, buffer in layer.named_buffers()}
            quiet(wrap(layer), torch.ones(8, 20))
            assert all(not torch.equal(buffer, before[name]) for name, buffer in layer.named_buffers())


class TestIssue43329:
    """A model had a method besides forward, or a layer model.fc: wrapped, neither was there.
    PyTorch's wrapper has forward alone, so that no name hides another. Through .module a method runs on one GPU.
    labkit does the same; its error says what to write, and that this method is not run in parallel.
    """

    class Predicts(Net):
        def predict(self, x):
            return self.fc(x).argmax(1), str(x.device)

    def test_pytorch(self):
        wrapped = nn.DataParallel(self.Predicts().cuda())
        with pytest.raises(AttributeError, match="^'DataParallel' object has no attribute 'predict'$"):
            wrapped.predict(torch.ones(8, 3, device="cuda"))
        with pytest.raises(AttributeError, match="^'DataParallel' object has no attribute 'fc'$"):
            _ = wrapped.fc
        assert wrapped.module.predict(torch.ones(8, 3, device="cuda"))[1] == "cuda:0"

    def test_labkit(self):
        wrapped = labkit.DataParallel(self.Predicts().cuda())
        with pytest.raises(AttributeError, match=r"Write .module.predict \(a method called so runs"):
            wrapped.predict(torch.ones(8, 3, device="cuda"))
        with pytest.raises(AttributeError, match=r"'fc': it is the wrapped Predicts's. Write .module.fc"):
            _ = wrapped.fc
        with pytest.raises(AttributeError, match=r"^'DataParallel' object has no attribute 'nothing'$"):
            _ = wrapped.nothing
        assert not hasattr(wrapped, "fc")


class TestIssue3805:
    """A checkpoint of a wrapped model was loaded into the model itself, or the other way round.
    PyTorch's keys begin with "module." in the wrapper alone: all of them are missing, and as many unexpected.
    labkit has the same keys, and its wrapper loads both kinds; a bare model wants .module.state_dict().
    """

    def test_pytorch(self):
        bare, wrapped = Net(), nn.DataParallel(Net())
        text = 'Missing key(s) in state_dict: "fc.weight", "fc.bias".'
        with pytest.raises(RuntimeError, match=re.escape(text)) as caught:
            bare.load_state_dict(wrapped.state_dict())
        assert 'Unexpected key(s) in state_dict: "module.fc.weight", "module.fc.bias".' in str(caught.value)
        with pytest.raises(RuntimeError, match=re.escape('Missing key(s) in state_dict: "module.fc.weight"')):
            wrapped.load_state_dict(bare.state_dict())

    def test_labkit(self):
        bare, wrapped = Net(), labkit.DataParallel(Net())
        assert list(wrapped.state_dict()) == ["module.fc.weight", "module.fc.bias"]
        for state in (bare.state_dict(), nn.DataParallel(bare).state_dict()):
            wrapped.module.fc.weight.data.zero_()
            assert str(wrapped.load_state_dict(state)) == "<All keys matched successfully>"
            assert torch.equal(wrapped.module.fc.weight, bare.fc.weight)
        bare.load_state_dict(wrapped.module.state_dict())

    def test_labkit_with_a_layer_that_is_called_module(self):
        """Its keys begin with "module." in both kinds of checkpoint."""

        class Odd(nn.Linear):
            def __init__(self):
                super().__init__(2, 2)
                self.module = nn.Linear(2, 2)

        bare, wrapped = Odd(), labkit.DataParallel(Odd())
        for state in (bare.state_dict(), nn.DataParallel(bare).state_dict()):
            wrapped.module.module.weight.data.zero_()
            assert str(wrapped.load_state_dict(state)) == "<All keys matched successfully>"
            assert torch.equal(wrapped.module.module.weight, bare.module.weight)
        with pytest.raises(RuntimeError, match="Missing key"):  # what is missing is still told
            wrapped.load_state_dict({"fc.weight": torch.ones(2, 3)})


class TestIssue17362:
    """DataParallel(model).cuda(), in this order, from a model on the CPU.
    PyTorch once refused the wrapping; since then it looks at the first call, and does not say what to move.
    labkit looks at the call too, and names the tensor and the cure.
    """

    def test_pytorch(self):
        wrapped = nn.DataParallel(Net())
        text = "module must have its parameters and buffers on device cuda:0 (device_ids[0]) but found one of them on "
        with pytest.raises(RuntimeError, match=re.escape(text + "device: cpu") + "$"):
            wrapped(torch.ones(8, 3))
        assert wrapped.cuda()(torch.ones(8, 3)).shape == (8, 2)

    def test_labkit(self):
        wrapped = labkit.DataParallel(Net())
        text = "found one of them on device: cpu ('fc.weight'). Call .to('cuda:0') on the module first"
        with pytest.raises(RuntimeError, match=re.escape(text) + "$"):
            wrapped(torch.ones(8, 3))
        assert wrapped.cuda()(torch.ones(8, 3)).shape == (8, 2)


class TestIssue2312:
    """Padded sentences and the list of their lengths went through pack_padded_sequence.
    PyTorch cuts the sentences and not the list; and padding again goes only up to each GPU's longest sentence.
    labkit warns of the list; with a tensor of lengths and total_length it works, on both.
    """

    class Reads(nn.Module):
        def __init__(self, total):
            super().__init__()
            self.rnn, self.total = nn.GRU(2, 3, batch_first=True), total

        def forward(self, x, lengths):
            lengths = lengths.cpu() if isinstance(lengths, torch.Tensor) else lengths
            packed = rnn.pack_padded_sequence(x, lengths, batch_first=True)
            return rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=self.total)[0]

    def test_pytorch(self):
        x, lengths = torch.ones(4, 5, 2), [5, 4, 3, 2]
        text = "Expected `len(lengths)` to be equal to batch_size, but got 4 (batch_size=2)"
        with pytest.raises(RuntimeError, match="in replica 0 on device 0(.|\n)*" + re.escape(text)):
            nn.DataParallel(self.Reads(5).cuda(), [0, 1])(x, lengths)
        with pytest.raises(RuntimeError, match=re.escape("invalid shape [2, 3, 3], but expected [2, 5, 3]")):
            nn.DataParallel(self.Reads(None).cuda(), [0, 1])(x, torch.tensor(lengths))

    def test_labkit(self):
        x, lengths = torch.randn(4, 5, 2), [5, 4, 3, 2]
        with (
            pytest.warns(UserWarning, match="input 1 is a list of 4 values, as many as the batch has rows"),
            pytest.raises(RuntimeError, match=r"in replica 0 on cuda:0, given input 0: \[2, 5, 2\]"),
        ):
            labkit.DataParallel(self.Reads(5).cuda(), [0, 1])(x, lengths)
        with pytest.raises(ValueError, match=r"shape \[2, 5, 3\] on replica 0 but \[2, 3, 3\] on replica 1"):
            labkit.DataParallel(self.Reads(None).cuda(), [0, 1])(x, torch.tensor(lengths))
        module = self.Reads(5).cuda()
        expected = module(x.cuda(), torch.tensor(lengths))
        for wrapped in both(module, [0, 1]):
            assert torch.allclose(wrapped(x, torch.tensor(lengths)), expected, atol=1e-6)
