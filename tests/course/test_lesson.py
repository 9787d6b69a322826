"""A lesson begins: its parameters are checked before anything changes."""

import pytest
import torch

import labkit
from labkit_course import begin

GOOD = {"num_gpus": 2, "batch_size": 30, "data_size": 100, "language": "en"}


@pytest.mark.parametrize(("change", "error", "text"), [
    ({"num_gpus": "eight"}, TypeError, "num_gpus must be a whole number, got 'eight'"),
    ({"num_gpus": True}, TypeError, "num_gpus must be a whole number"),
    ({"num_gpus": None}, TypeError, "num_gpus must be a whole number"),
    ({"num_gpus": -1}, ValueError, "num_gpus must be from 0 to 64, got -1"),
    ({"num_gpus": 65}, ValueError, "num_gpus must be from 0 to 64, got 65"),
    ({"batch_size": 0}, ValueError, "batch_size must be from 1"),
    ({"data_size": 2.5}, TypeError, "data_size must be a whole number"),
    ({"language": "fr"}, ValueError, "language must be one of 'en', 'zh', got 'fr'"),
    ({"language": ["en"]}, ValueError, "language must be one of"),
])  # fmt: skip
def test_parameters_are_checked_in_one_line(change, error, text):
    with pytest.raises(error, match=text) as caught:
        begin("03_split", **(GOOD | change))
    assert "\n" not in str(caught.value)
    assert torch.cuda.device_count() == 0
    assert labkit.get_language() == "en"


def test_a_refused_parameter_leaves_the_machine_and_the_language_that_were_there(gpus):
    with pytest.raises(TypeError):
        begin("03_split", **(GOOD | {"num_gpus": "eight", "language": "zh"}))
    assert torch.cuda.device_count() == 2
    assert labkit.get_language() == "en"


@pytest.mark.parametrize(("count", "english", "chinese"), [
    (0, "No GPU: everything runs on the CPU.", "没有 GPU：一切都在 CPU 上运行。"),
    (1, "1 simulated GPU: cuda:0", "1 块模拟 GPU：cuda:0"),
    (4, "4 simulated GPUs: cuda:0, cuda:1, cuda:2, cuda:3", "4 块模拟 GPU：cuda:0、cuda:1、cuda:2、cuda:3"),
    (5, "5 simulated GPUs: cuda:0 … cuda:4", "5 块模拟 GPU：cuda:0 … cuda:4"),
    (64, "64 simulated GPUs: cuda:0 … cuda:63", "64 块模拟 GPU：cuda:0 … cuda:63"),
])  # fmt: skip
def test_a_lesson_says_on_which_gpus_it_runs(count, english, chinese):
    assert repr(begin("03_split", **(GOOD | {"num_gpus": count}))) == english
    assert torch.cuda.device_count() == count
    assert repr(begin("03_split", **(GOOD | {"num_gpus": count, "language": "zh"}))) == chinese
    assert labkit.get_language() == "zh"


def test_random_numbers_are_the_same_every_time():
    begin("03_split", **GOOD)
    first = torch.randn(3)
    begin("03_split", **GOOD)
    assert torch.equal(torch.randn(3), first)


def test_a_lesson_of_part_two_has_ranks_and_its_other_cells_no_gpu():
    assert (
        repr(begin("11_collectives", num_ranks=4, language="en"))
        == "4 ranks, each with a simulated GPU of its own"
    )
    assert torch.cuda.device_count() == 0
    with pytest.raises(ValueError, match="num_ranks must be from 1 to 64, got 0"):
        begin("11_collectives", num_ranks=0, language="en")
    with pytest.raises(TypeError, match="numbers must be one of num_gpus, .*, got 'ranks'"):
        begin("11_collectives", ranks=4, num_ranks=4, language="en")
    with pytest.raises(TypeError, match="num_gpus or num_ranks must be given"):
        begin("11_collectives", language="en")
    assert repr(begin("11_collectives", num_ranks=1, language="zh")) == "1 个 rank，各有一块模拟 GPU"
