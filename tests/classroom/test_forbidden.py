"""What an answer may not name, and what only looks like it."""

import pytest

from labkit.classroom.judging import forbidden

NAMES = ("labkit", "torch.nn.parallel", "torch.nn.DataParallel", "._replicate_for_data_parallel")
GIVEN = "import copy\nimport torch\nfrom torch import nn\n"


@pytest.mark.parametrize(
    "source",
    [
        "import labkit\nscatter = labkit.scatter",
        "from labkit import scatter",
        "import labkit as kit\nkit.engine",
        "import labkit\nL = labkit\nL.scatter",
        "import labkit\ngetattr(labkit, 'scatter')",
        "nn.parallel.scatter(x, [0])",
        "import torch.nn.parallel",
        "from torch.nn import parallel",
        "nn.DataParallel(model)",
        "model._replicate_for_data_parallel()",
        "copies()._replicate_for_data_parallel()",
        "eval('1')",
        "from importlib import import_module",
        "import importlib\nimportlib.reload(copy)",
        "__import__('labkit')",
    ],
)
def test_what_is_to_be_written_is_not_to_be_named(source):
    assert forbidden(source, NAMES, GIVEN).id == "forbidden"
    assert forbidden(source, (), GIVEN) is None


@pytest.mark.parametrize(
    "source",
    [
        "import labkit",
        "import labkit\nwith labkit.simulate(gpus=2):\n    pass",
        "from labkit.classroom import check\ncheck('x', 1)",
        "copy.deepcopy(model).eval()",
        "model.eval()",
        "torch.nn.functional.relu(x)",
        "def scatter(x): ...",
        "not Python",
    ],
)
def test_what_only_looks_like_it_is_allowed(source):
    assert forbidden(source, NAMES, GIVEN) is None
