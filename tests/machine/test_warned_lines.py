"""A warning names the line of the user's program, as without a machine."""

import inspect
import warnings

import pytest
import torch
from torch import nn

import labkit


def here():
    return inspect.currentframe().f_back.f_lineno


def warned(run):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        run()
    return [(warning.filename, warning.lineno) for warning in told]


def three_lines():
    x, y = torch.ones(3, device=device), torch.ones(3, 1, device=device)
    for _ in range(2):
        torch.tensor(x)  # by C++, of its caller
    torch.tensor(x)
    nn.functional.mse_loss(x, y)  # by torch's Python, of its caller
    nn.MSELoss()(x, y)


def test_lines_are_those_of_plain_torch():
    global device
    device = "cpu"
    plain = warned(three_lines)
    assert len(plain) == len(set(plain)) == 4
    device = "cuda"
    with labkit.simulate(gpus=1):
        assert warned(three_lines) == plain


def test_filters_by_module_and_recordings_of_warnings_see_the_users_line():
    with labkit.simulate(gpus=1), warnings.catch_warnings():
        x = torch.ones(3, device="cuda")
        warnings.filterwarnings("error", module=__name__.replace(".", r"\."))
        with pytest.raises(UserWarning, match="To copy construct"):
            torch.tensor(x)
        warnings.filterwarnings("ignore", module=__name__.replace(".", r"\."))
        with pytest.warns(UserWarning, match="mine") as told:
            warnings.warn("mine", stacklevel=1)
        assert [(warning.filename, warning.lineno) for warning in told] == [(__file__, here() - 1)]
