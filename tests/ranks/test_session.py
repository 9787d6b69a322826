"""labkit.ranks(4): ranks that are asked one thing after another, and what they print, each beside its number."""

import builtins
import contextlib
import gc
import io
import os
import sys
import threading
import traceback

import pytest
import torch
import torch.distributed as dist

import labkit
from labkit.turns import Deadlock
from labkit_ranks.calls.faults.report import format_numbers
from labkit_ranks.notebook.output import RankOutput, RankStream
from labkit_ranks.notebook.results import as_html, as_text, merge_equal
from labkit_ranks.threads.world import World
from simgpu import machine_in_use

START = "import torch\nimport torch.distributed as dist\n"


@pytest.fixture
def session():
    with labkit.ranks(4) as made:
        yield made


def summed(factor):
    x = torch.ones(2, device="cuda") * dist.get_rank() * factor
    dist.all_reduce(x)
    return x


# Sessions.


def test_ranks_that_cannot_begin_leave_nothing_open(monkeypatch):
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: 1 / 0)
    with pytest.raises(RuntimeError, match="rank 0 failed: ZeroDivisionError"):
        labkit.ranks(2)
    assert machine_in_use() is None
    with pytest.raises(RuntimeError, match="no ranks are open"):
        labkit.ranks()


def test_a_ranks_stream_is_as_the_callers(session, capfd):
    def facts(stream):
        return [
            stream.writable(), stream.isatty(), stream.fileno(), stream.encoding, stream.errors, stream.name,
        ]  # fmt: skip

    assert session.run(lambda: facts(sys.stdout)) == [facts(sys.stdout)] * 4


def test_each_rank_calls_the_function_on_its_own_gpu(session):
    results = session.run(summed, 2)
    assert [x.tolist() for x in results] == [[12.0, 12.0]] * 4
    assert [str(x.device) for x in results] == [f"cuda:{k}" for k in range(4)]
    assert repr(results) == "ranks 0–3  tensor([12., 12.], device='cuda:0–3')"
    assert repr(session.run(lambda: dist.get_rank() // 2)) == "ranks 0–1  0\nranks 2–3  1"


def test_a_namespace_lasts_and_can_be_looked_into(session):
    assert session.execute("x = rank * 10") is None
    assert session.execute("x + 1") == [1, 11, 21, 31]
    assert session[2]["x"] == 20
    session[2]["x"] = 5
    assert session.execute("x") == [0, 10, 5, 30]
    assert list(session[1]) == ["rank", "local_rank", "world_size", "device", "x"]
    assert repr(session[1]) == "<rank 1: rank, local_rank, world_size, device, x>"
    assert "x" in session[3]
    del session[3]["x"]
    with pytest.raises(KeyError, match="rank 3 has no name 'x'"):
        session[3]["x"]
    with pytest.raises(ValueError, match="rank must be from 0 to 3, got 4"):
        session[4]


def test_every_rank_begins_as_a_process_of_torchrun_would(session):
    values = session.execute(
        "import os\n"
        "(rank, local_rank, world_size, str(device), os.environ['RANK'], __import__('torch').cuda.current_device())"
    )
    assert values == [(k, k, 4, f"cuda:{k}", str(k), k) for k in range(4)]
    assert "RANK" not in os.environ
    assert not dist.is_initialized()


def test_a_group_of_the_ranks_own_takes_the_place_of_the_one_that_was_made(session):
    own = (
        START
        + "dist.init_process_group('nccl')\nx = torch.ones(1, device=device)\ndist.all_reduce(x)\nx.item()"
    )
    assert session.execute(own) == [4.0] * 4
    with pytest.raises(ValueError, match="trying to initialize the default process group twice"):
        session.execute(own)


def test_torch_is_as_it_was_in_whatever_order_machines_and_ranks_end():
    bootstrap, begin = threading.Thread._bootstrap_inner, dist.init_process_group
    session = labkit.ranks(2)
    assert dist.init_process_group is not begin
    with labkit.simulate(gpus=3):  # another machine, and ranks on it
        assert dist.init_process_group is begin
        with World(3) as world:
            assert world.run(lambda rank: torch.cuda.device_count()) == [3, 3, 3]
    results = session.run(lambda: (dist.get_rank(), torch.ones(1).cuda().device.index))
    assert list(results) == [(0, 0), (1, 1)]
    first = World(2, nodes=2)
    second = World(2, nodes=2)
    first.close()
    assert second.run(lambda rank: rank.number) == [0, 1]
    second.close()
    machine_in_use().close()  # under the session
    with labkit.simulate(gpus=1):
        session.close()
        assert threading.Thread._bootstrap_inner is not bootstrap
    assert (threading.Thread._bootstrap_inner, dist.init_process_group) == (bootstrap, begin)


def test_an_error_is_the_ranks_own_and_names_it(session):
    code = "def f():\n    if rank == 2:\n        1 / 0\n    dist.barrier()\n"
    session.execute(START + code)
    with pytest.raises(ZeroDivisionError) as caught:
        session.execute("f()")
    assert caught.value.__notes__ == ["(Rank 2 of 4; the others were ended where they waited.)"]
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert frames[-2:] == ["<module>", "f"]
    assert not [
        frame for frame in traceback.extract_tb(caught.value.__traceback__) if "turns.py" in frame.filename
    ]
    # And it goes on.
    assert session.execute("dist.barrier()\nrank") == [0, 1, 2, 3]
    labkit.set_language("zh")
    with pytest.raises(ZeroDivisionError) as caught:
        session.execute("f()")
    assert "rank 2" in caught.value.__notes__[0]
    assert "共 4 个" in caught.value.__notes__[0]


def test_what_is_on_the_gpus(session):
    session.execute(
        START + "x = torch.ones(1 << 22, device=device)\ny = torch.ones(1 << 22, device=device)\ndel y"
    )
    assert [(one.rank, one.device, one.now, one.peak) for one in session.memory] == [
        (k, f"cuda:{k}", 16 << 20, 32 << 20) for k in range(4)
    ]
    assert repr(session).splitlines()[2] == "rank 0  cuda:0  16 MiB   32 MiB  16.00 GiB"
    assert "<td" in session._repr_html_()
    labkit.set_language("zh")
    assert repr(session).startswith("4 个 rank，每个一块模拟 GPU")


def test_the_trace_has_the_collectives_of_the_last_run(session):
    session.run(summed, 1)
    session.execute("import torch.distributed as dist\ndist.barrier()\ndist.barrier()")
    found = sorted((event.rank, event.name) for event in session.trace.only(phase="collective"))
    assert found == [(rank, "barrier") for rank in range(4) for _ in range(2)]


def test_restart_and_close():
    session = labkit.ranks(2)
    session.execute("x = 1")
    assert labkit.ranks() is session
    session.restart()
    assert "x" not in session[0]
    assert session.execute("x = 2") is None
    session.close()
    assert session.closed
    session.close()
    assert repr(session) == "2 ranks, closed"
    assert not torch.cuda.is_available()
    for asks in (lambda: session.run(summed, 1), lambda: session[0], lambda: session.memory):
        with pytest.raises(RuntimeError, match=r"these ranks are closed: \.restart\(\)"):
            asks()
    with pytest.raises(RuntimeError, match="no ranks are open"):
        labkit.ranks()


def test_what_a_rank_registered_for_its_end_is_done_when_the_session_closes(capsys):
    with labkit.ranks(2) as session:
        session.execute("import atexit\natexit.register(print, 'bye', rank)")
        assert capsys.readouterr().out == ""
    assert capsys.readouterr().out == "rank 0 │ bye 0\nrank 1 │ bye 1\n"


@pytest.mark.parametrize("does", ["labkit.ranks(3)", "own.execute('1')", "own.restart()", "own.close()"])
def test_a_rank_ends_no_ranks_and_starts_none(session, capsys, does):
    """It would wait for its own end."""
    session.execute("import atexit\natexit.register(print, 'bye', rank)\nx = 1")
    with pytest.raises(RuntimeError, match="ranks cannot be started, run or ended by a rank") as caught:
        session.execute(f"import labkit\nown = labkit.ranks()\n{does}")
    assert "(Rank 0 of 4; the others were ended where they waited.)" in caught.value.__notes__
    assert list(session.execute("x + 1")) == [2] * 4
    session.close()
    assert capsys.readouterr().out.count("bye") == 4, "once each"


def test_a_rank_opens_no_machine_of_its_own(session):
    session.execute("import torch\nx = torch.ones(2, device='cuda')")
    with pytest.raises(RuntimeError, match=r"a rank has its GPU already: labkit.simulate\(\)"):
        session.execute("import labkit\nlabkit.simulate(gpus=2)")
    assert [value.tolist() for value in session.execute("x * 2")] == [[2, 2]] * 4, (
        "the ranks' machine is in use"
    )


def test_the_next_session_ends_the_one_before():
    first = labkit.ranks(2)
    with labkit.ranks(3) as second:
        assert first.closed
        first.close()
        assert labkit.ranks() is second
        assert second.execute("rank") == [0, 1, 2]
    assert dist.init_process_group.__module__.startswith("torch.")


def test_several_nodes():
    with labkit.ranks(4, nodes=2, memory=["1 GiB", "2 GiB"]) as session:
        assert session.execute("import os\n(local_rank, os.environ['GROUP_RANK'])") == [
            (0, "0"), (1, "0"), (0, "1"), (1, "1")
        ]  # fmt: skip
        assert repr(session.execute("import torch\ntorch.ones(1, device=device)")) == (
            "ranks 0–3  tensor([1.], device='cuda:0–1')"
        )
        assert [one.capacity >> 30 for one in session.memory] == [1, 2, 1, 2]
        assert repr(session).startswith("4 ranks on 2 nodes, a simulated GPU for each")


@pytest.mark.parametrize(("arguments", "error", "text"), [
    ({"size": "four"}, TypeError, r"size must be a whole number, got 'four' \(str\)"),
    ({"size": 0}, ValueError, "size must be from 1 to 1024, got 0"),
    ({"size": 4, "nodes": 3}, ValueError, "nodes must be a divisor of size, 4, got 3"),
    ({"size": 4, "memory": "lots"}, ValueError, "memory must be bytes or text like '16 GiB', got 'lots'"),
    ({"size": 4, "memory": ["1 GiB"]}, ValueError,
     "memory must have one entry for each of a node's 4 GPUs, got 1"),
])  # fmt: skip
def test_what_is_asked_wrong_is_named_and_nothing_is_changed(session, arguments, error, text):
    with pytest.raises(error, match=text):
        labkit.ranks(**arguments)
    assert not session.closed
    with pytest.raises(TypeError, match="function must be callable, got 3"):
        session.run(3)
    with pytest.raises(TypeError, match="code must be Python source"):
        session.execute(3)


# What is printed.


def test_each_line_stands_beside_its_rank(session, capsys):
    session.execute("print('hello', rank)\nprint('two', end=' ')\nprint('parts')")
    session.execute("import torch.distributed as dist\nprint('to', end=' ')\ndist.barrier()\nprint('it')")
    out = capsys.readouterr().out.splitlines()
    assert out[:4] == ["rank 0 │ hello 0", "rank 0 │ two parts", "rank 1 │ hello 1", "rank 1 │ two parts"]
    assert sorted(out[8:]) == sorted(
        [f"rank {k} │ to" + " " * (k < 3) + " it" * (k == 3) for k in range(4)]
        + [f"rank {k} ┊ it" for k in range(3)]
    )
    print("not a rank's")
    assert capsys.readouterr().out == "not a rank's\n"


def test_streams_and_input_are_given_back(session, monkeypatch):
    before = sys.stdout, sys.stderr, builtins.input, sys.excepthook
    asked = []
    monkeypatch.setattr(builtins, "input", lambda prompt: asked.append(prompt) or "yes")
    assert session.execute("input('sure? ') if rank in (1, 2) else None") == [None, "yes", "yes", None]
    assert asked == ["rank 1 │ sure? ", "rank 2 │ sure? "]
    monkeypatch.undo()
    with contextlib.suppress(ZeroDivisionError):
        session.execute("1 / 0")
    assert (sys.stdout, sys.stderr, builtins.input, sys.excepthook) == before


def test_streams_that_are_collected_flush_nothing():
    """It happens in the middle of anything: a kernel's flush would wait for what waits for the ranks."""
    flushed = []

    class Kernels(io.StringIO):
        def flush(self):
            flushed.append(self)

    stream = RankStream("stdout", real := Kernels())
    del stream
    gc.collect()
    assert not flushed
    assert not real.closed


def test_a_later_run_prints_where_the_caller_prints_by_then(session):
    session.execute("if rank == 0: print(1)")
    with contextlib.redirect_stdout(io.StringIO()) as other:
        session.execute("if rank == 0: print(2)")
    assert other.getvalue() == "rank 0 │ 2\n"


@pytest.fixture
def lines():
    """The writer of two ranks, and what was written."""
    out = io.StringIO()
    return RankOutput(2, {"stdout": out, "stderr": out}), out


def test_lines_that_are_written_over_are_printed_in_their_last_state(lines):
    lines, out = lines
    for text in ("\r 0%", "\r50%", "\r99%"):
        lines.write(0, "stderr", text)
        lines.write(1, "stderr", text)
    lines.write(0, "stderr", "\r100%")
    lines.write(0, "stderr", "\n")
    lines.write(0, "stdout", "done\n")
    lines.end()
    assert out.getvalue() == "rank 0 │ 100%\nrank 0 │ done\nrank 1 │ 99%\n"


def test_bars_within_bars(lines):
    lines, out = lines
    for text in ("\router 0", "\n", "\rinner 0", "\x1b[A", "\n", "\rinner 1", "\x1b[A", "\router 1", "\n"):
        lines.write(0, "stderr", text)
    lines.write(0, "stderr", "\r      ")
    lines.write(0, "stderr", "\r")
    lines.write(0, "stdout", "done\n")
    lines.end()
    assert out.getvalue() == "rank 0 │ done\nrank 0 │ outer 1\n"


def test_counting_in_one_line(lines):
    lines, out = lines
    for number in range(3):
        lines.write(0, "stdout", f"\r{number}")
    lines.write(1, "stdout", "a")
    lines.write(0, "stdout", "\n")
    lines.write(1, "stdout", "b\r\n")
    lines.end()
    assert out.getvalue() == "rank 1 │ ab\nrank 0 │ 2\n"


# Values side by side.


def test_ranks_whose_machine_was_closed_end_and_new_ones_begin():
    """A lesson's first cell run once more: ``begin`` takes a machine anew, under the ranks of before."""
    labkit.use_gpus(0)
    old = labkit.ranks(4)
    old.execute("x = 1")
    labkit.use_gpus(0)
    with pytest.raises(RuntimeError, match="no ranks are open"):
        labkit.ranks()
    assert old.closed
    summing = START + "x = torch.ones(1, device=device)\ndist.all_reduce(x)\nx.item()"
    with labkit.ranks(4) as new:
        assert new.execute(summing) == [4.0] * 4
        assert labkit.ranks() is new
    labkit.use_gpus(2)
    assert torch.ones(1, device="cuda:1").device.index == 1


def test_dicts_of_the_same_keys_are_a_table(session):
    found = session.execute("dict(rows=[rank, rank + 4], noise=0.5, node=rank // 2)")
    lines = [line.split("  ") for line in repr(found).splitlines()]
    assert [" | ".join(word.strip() for word in line if word) for line in lines] == [
        "rank | rows | noise | node", "0 | [0, 4] | 0.5 | 0", "1 | [1, 5] | 0.5 | 0", "2 | [2, 6] | 0.5 | 1",
        "3 | [3, 7] | 0.5 | 1", "all different | all the same | 2 different",
    ]  # fmt: skip
    shown = found._repr_mimebundle_()
    assert shown["text/plain"] == repr(found)
    assert shown["text/html"].count("<tr>") == 6
    labkit.set_language("zh")
    assert [repr(found).splitlines()[-1].split()] == [["各不相同", "全部相同", "2", "种"]]


def test_other_values_are_no_table(session):
    """Dicts of other keys, none at all, a class of its own such as a state_dict, and values too long for a cell."""
    import_it = "from collections import OrderedDict; "
    for value in ("{str(rank): 1}", "{}", "[rank]", "OrderedDict(a=1)", "dict(a='x' * 200)"):
        assert session.execute(import_it + value).table() is None
        assert "rank" in repr(session.execute(import_it + value))


def test_equal_values_are_shown_once():
    plain = [(k, {"text/plain": f"tensor([1.], device='cuda:{k}')"}) for k in range(4)]
    assert as_text(merge_equal(plain, range(4))) == "ranks 0–3  tensor([1.], device='cuda:0–3')"
    plain[1] = (1, {"text/plain": "tensor([1.], device='cuda:0')"})  # another's GPU is no rank's own
    assert as_text(merge_equal(plain, range(4))) == (
        "ranks 0, 2–3  tensor([1.], device='cuda:0, 2–3')\nrank 1        tensor([1.], device='cuda:0')"
    )
    lines = [(0, {"text/plain": "a\nb"}), (1, {"text/plain": "c"})]
    assert as_text(merge_equal(lines, [0, 0])) == "rank 0  a\n        b\nrank 1  c"
    assert format_numbers([0, 1, 2, 5, 7, 8], "–") == "0–2, 5, 7–8"


def test_values_in_a_page_are_what_they_are():
    values = [
        {"text/plain": "<x>", "text/html": "<b>bold</b>"},
        {"text/plain": "<x>"},
        {"text/plain": "", "image/png": "QUJD\n"},
    ]
    shown = merge_equal(enumerate(values), [0, 1, 2])
    page = as_html(shown)
    assert "<b>bold</b>" in page
    assert "&lt;x&gt;" in page
    assert 'src="data:image/png;base64,QUJD"' in page
    labkit.set_language("zh")
    assert "rank 0" in as_html(shown)


def test_an_error_that_a_rank_prints_shows_a_collective_once(session, capsys):
    code = "import traceback\ntry:\n    dist.all_reduce(torch.ones(2))\nexcept RuntimeError:\n"
    session.execute(START + code + "    traceback.print_exc()\n")
    said = [line for line in capsys.readouterr().err.splitlines() if "rank 0" in line]
    assert [line.rpartition(" in ")[2] for line in said if ' File "' in line] == [
        "<module>", "wrapper", "all_reduce",
    ]  # fmt: skip


def test_a_rank_that_made_calls_in_cells_before_is_not_said_to_have_made_none():
    with labkit.ranks(3) as session:
        session.execute(
            "import torch.distributed as dist\nif rank == 2: dist.barrier()\nelse: dist.barrier()"
        )
        with pytest.raises(Deadlock, match="ranks 0, 1  made no call in this cell, and have run to their"):
            session.execute("if rank == 2: dist.barrier()")
        labkit.set_language("zh")
        with pytest.raises(Deadlock, match="在这个单元格里没有做过调用"):
            session.execute("if rank == 2: dist.barrier()")
