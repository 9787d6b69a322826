"""Every test may rely on this: no machine, no language and no progress of another test is left; a check of pictures."""

import itertools
import os
import sys
import threading

import pytest

from tools import warm


@pytest.fixture(scope="session", autouse=True)
def _progress_of_the_tests(tmp_path_factory):
    """Notes answers in a file of the tests' own, not in the progress file of the user who runs them."""
    os.environ["LABKIT_PROGRESS"] = str(tmp_path_factory.mktemp("progress") / "progress.json")


@pytest.fixture(scope="session", autouse=True)
def _language_of_the_tests():
    """Starts in English, whatever language the user who runs the tests has chosen."""
    for name in ("LABKIT_LANG", "LC_ALL", "LC_MESSAGES"):
        os.environ.pop(name, None)
    os.environ["LANG"] = "C.UTF-8"


@pytest.fixture(scope="session", autouse=True)
def _no_stacks_for_seeds():
    """torch.manual_seed writes down the stack, long below pytest, for each kind of device that is not there."""
    with pytest.MonkeyPatch.context() as patch:
        if torch := sys.modules.get("torch"):
            for kind in torch.xpu, torch.mtia:
                if not kind.is_available():
                    patch.setattr(kind, "_is_in_bad_fork", lambda: True)  # what it asks before it does
        yield


# Python's own, before any machine.
_BOOTSTRAP = threading.Thread._bootstrap_inner


@pytest.fixture(autouse=True)
def _clean_slate():
    """Checks after each test that no machine, no change in torch and no thread is left; sets the language back."""
    yield
    import labkit

    machines = sys.modules.get("simgpu")
    if machines is not None and machines.machine_in_use() is not None:
        machines.machine_in_use().close()
        assert machines.machine_in_use() is None, "a closed machine is still in use"
    if machines is not None:  # of each table, which goes in and out as a whole, one row
        import torch

        assert not hasattr(torch.UntypedStorage, "_labkit_mark"), (
            "the machine's changes in torch are still there"
        )
        called = torch.nn.DataParallel.forward.__globals__["__name__"]
        assert called == "torch.nn.parallel.data_parallel", "a recording goes on"
    assert threading.Thread._bootstrap_inner is _BOOTSTRAP, "changes in Python's threads are still there"
    labkit.set_language("en")
    ours = [
        thread for thread in threading.enumerate() if thread.name.startswith(("labkit", "replica", "rank "))
    ]
    for thread in ours:
        thread.join(5)  # of closed ranks it is about to end
    left = [thread.name for thread in ours if thread.is_alive()]
    assert not left, f"threads that go on: {left}"
    turns = sys.modules.get("labkit.turns.scheduler")
    if turns is not None:
        stale, turns.here.task = turns.here.task, None
        assert stale is None, f"this thread still takes part in turns, as {stale.name}"


@pytest.fixture(scope="module")
def warm_kernels(tmp_path_factory):
    """The module's kernels are forks of a process that has imported torch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", warm.kernels(tmp_path_factory.mktemp("warm")))
        yield


@pytest.fixture(params=["en", "zh"])
def language(request):
    """Each language, which is set."""
    import labkit

    labkit.set_language(request.param)
    return request.param


@pytest.fixture(params=["torch", "labkit"])
def wrap(request):
    """The wrapper of PyTorch, and labkit's."""
    import torch

    import labkit

    return (torch.nn if request.param == "torch" else labkit).DataParallel


@pytest.fixture
def gpus():
    """Two simulated GPUs."""
    import labkit

    with labkit.simulate(gpus=2) as machine:
        yield machine


@pytest.fixture
def one_gpu():
    """One simulated GPU."""
    import labkit

    with labkit.simulate(gpus=1) as machine:
        yield machine


@pytest.fixture
def sound():
    """Asserts that nothing is clipped, no text meets another or strokes, and text on a colour is on its box."""

    def check(picture):
        inside = [(box.x, box.y, box.x + box.width, box.y + box.height, box) for box in picture.boxes]
        inside += [(x, y, x, y, line) for line in picture.lines for x, y in _points(line)]
        texts = [(*_extent(text), text) for text in picture.texts]
        for left, top, right, bottom, what in inside + texts:
            assert left >= -1e-6, what
            assert top >= -1e-6, what
            assert right <= picture.width + 1e-6, what
            assert bottom <= picture.height + 1e-6, what
            assert right >= left, what
            assert bottom >= top, what
        for one, other in itertools.combinations(texts, 2):
            apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
            assert apart, (one[4], other[4])
        for left, top, right, bottom, text in texts:
            for b in picture.boxes:
                beside = right <= b.x or b.x + b.width <= left or bottom <= b.y or b.y + b.height <= top
                assert beside or not b.hatched, (text, "cannot be read on strokes")
            if text.gpu is not None:
                homes = [b for b in picture.boxes if (b.gpu, b.tint) == (text.gpu, text.tint)]
                assert any(
                    b.x <= left and right <= b.x + b.width and b.y <= top + 1 and bottom <= b.y + b.height + 1
                    for b in homes
                ), text
        assert picture.description

    return check


def _points(line):
    return [(line.x1, line.y1), (line.x2, line.y2), *(line.head() if line.arrow else ())]


def _extent(text):
    from labkit.view.layout import text_width

    width = text_width(text.text.strip(), text.size) * (1.08 if text.bold else 1)
    left = {"start": text.x, "middle": text.x - width / 2, "end": text.x - width}[text.anchor]
    return left, text.y - 0.75 * text.size, left + width, text.y + 0.2 * text.size
