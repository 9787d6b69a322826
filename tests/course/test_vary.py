"""A learner's own numbers: what a function shows with the parameters, and with what the sliders say."""

import pytest
import torch
import torch.distributed as dist

import labkit
from labkit_course import vary


def plan(num_gpus, batch_size):
    print(batch_size, "on", num_gpus)
    return labkit.split(batch_size, max(num_gpus, 1))


def sliders(varied):
    varied._repr_mimebundle_()
    *found, shown = varied._widget.children
    return found, shown


def test_where_nobody_moves_anything_it_shows_what_the_parameters_give(capsys):
    varied = vary(plan, num_gpus=4, batch_size=10)
    shown = varied._repr_mimebundle_()
    assert repr(varied) == shown["text/plain"]
    assert shown["text/plain"].startswith("10 on 4\n")
    assert shown["text/plain"].endswith(repr(labkit.split(10, 4)))
    assert shown["image/svg+xml"].startswith("<svg")
    assert capsys.readouterr().out == "", "what is printed is part of what is shown"


def test_a_slider_runs_it_again():
    (gpus, size), shown = sliders(vary(plan, num_gpus=4, batch_size=10))
    assert [gpus.description, size.description] == ["GPUs", "Batch size"]
    before = shown.value
    gpus.value = 3
    assert "10 on 3" in shown.value
    assert "<svg" in shown.value != before
    assert repr(labkit.split(10, 3)) not in shown.value, "the picture says it already"
    size.value = 7
    assert "7 on 3" in shown.value, "each slider keeps what the other says"


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_table_of_ranks_is_a_table_and_not_letters_in_columns(language):
    """No font of a browser sets two Chinese letters as wide as four others, so that columns of text do not meet."""

    def table(num_ranks):
        with labkit.ranks(num_ranks) as ranks:
            return ranks.run(lambda: {"rank": dist.get_rank(), "size": dist.get_world_size()})

    labkit.set_language(language)
    same, varied = {"en": "all the same", "zh": "全部相同"}[language], vary(table, num_ranks=2)
    assert same in varied._repr_mimebundle_()["text/plain"]
    assert varied._repr_mimebundle_()["text/html"].startswith("<table>")
    (ranks,), shown = sliders(varied)
    ranks.value = 3
    assert f'<td style="text-align:left">{same}</td>' in shown.value
    assert "<pre" not in shown.value, "the table says it already"
    assert ".labkit-varied td{padding" in shown.value, "its columns stand apart"


def test_what_replicas_print_in_their_threads_is_shown_too():
    class Loud(torch.nn.Module):
        def forward(self, x):
            print(x.device, len(x))
            return x

    def call(num_gpus):
        labkit.use_gpus(num_gpus)
        torch.nn.DataParallel(Loud())(torch.ones(6, 1))

    varied = vary(call, num_gpus=2)
    assert varied.text == "cuda:0 3\ncuda:1 3"
    (gpus,), shown = sliders(varied)
    gpus.value = 3
    assert "cuda:2 2" in shown.value


def test_the_parameters_are_within_the_sliders_whatever_they_are():
    (gpus, size), _ = sliders(vary(plan, num_gpus=64, batch_size=1_000_000))
    assert (gpus.value, size.value) == (64, 1_000_000)
    assert (gpus.min, size.min) == (0, 1)


def test_the_language_is_that_of_the_lesson_whatever_happened_since():
    labkit.set_language("zh")
    varied = vary(plan, num_gpus=8, batch_size=10)
    labkit.set_language("en")
    (gpus, _), shown = sliders(varied)
    assert gpus.description == "GPU 数"
    gpus.value = 7
    assert "空闲" in shown.value


def test_an_error_is_the_cells_own_at_first_and_a_line_afterwards():
    def fails(num_gpus):
        return [0][num_gpus]

    with pytest.raises(IndexError):
        vary(fails, num_gpus=1)
    (gpus,), shown = sliders(vary(fails, num_gpus=0))
    gpus.value = 1
    assert "IndexError: list index out of range" in shown.value
    gpus.value = 0
    assert "IndexError" not in shown.value, "the next move runs it again"


def test_what_is_printed_is_shown_as_text_never_as_html():
    _, shown = sliders(vary(lambda num_gpus: print("<b>"), num_gpus=1))
    assert "<b>" not in shown.value


@pytest.mark.parametrize(("numbers", "error", "text"), [
    ({"rows": 3}, TypeError, "numbers must be one of num_gpus, batch_size, data_size, num_ranks, got 'rows'"),
    ({"num_gpus": "two"}, TypeError, "num_gpus must be a whole number"),
    ({"num_gpus": 65}, ValueError, "num_gpus must be from 0 to 64"),
])  # fmt: skip
def test_a_number_that_no_lesson_has_is_named(numbers, error, text):
    with pytest.raises(error, match=text):
        vary(lambda **given: None, **numbers)
