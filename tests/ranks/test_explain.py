"""Dumps of the Flight Recorder: written as PyTorch writes them, read safely, explained as torch's analyser does."""

import ast
import json
import os
import pickle
import re
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.flight_recorder import fr_trace

import labkit
from labkit_cli import main
from labkit_ranks.explain import BadDump, explain, read_dumps
from tools.warm import python


@pytest.fixture
def hang(tmp_path, monkeypatch):
    """Runs a function on ranks that record; returns the folder of the dumps."""
    monkeypatch.setenv("TORCH_NCCL_TRACE_BUFFER_SIZE", "100")
    monkeypatch.setenv("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", str(tmp_path / "trace_"))

    def hang(function, ranks=4):
        with labkit.ranks(ranks) as session, pytest.raises(Exception, match="rank|shape|call"):
            session.run(function)
        return tmp_path

    return hang


def ones(*shape, dtype=torch.float32):
    return torch.ones(*shape, device="cuda", dtype=dtype)


# Scripts that hang: the rank ``bad`` does something else than the others.
def leaves(bad):
    for _ in range(4):
        dist.all_reduce(ones(3))
        if dist.get_rank() == bad:
            return
        dist.barrier()


def never_comes(bad):
    dist.all_reduce(ones(3))
    if dist.get_rank() != bad:
        dist.all_gather_into_tensor(ones(4 * dist.get_world_size()), ones(4))
        torch.cuda.synchronize()


def other_shape(bad):
    dist.broadcast(ones(2), 0)
    dist.all_reduce(ones(3 + (dist.get_rank() == bad)))


def other_dtype(bad):
    dist.all_reduce(ones(3, dtype=torch.float16 if dist.get_rank() == bad else torch.float32))


def other_kind(bad):
    dist.barrier()
    if dist.get_rank() == bad:
        dist.broadcast(ones(5), 0)
    else:
        dist.reduce(ones(5), 0)


def skips(bad):
    for step in range(5):
        if (dist.get_rank(), step) != (bad, 2):
            dist.all_reduce(ones(3))
        dist.broadcast(ones(7), 0)


def once_more(bad):
    for step in range(5):
        dist.all_reduce(ones(3))
        if (dist.get_rank(), step) == (bad, 2):
            dist.all_reduce(ones(3))
        dist.broadcast(ones(7), 0)


def in_a_group(bad):
    group = dist.new_group([0, 1, 2], group_desc="three")
    dist.all_reduce(ones(3))
    if dist.get_rank() < 3 and dist.get_rank() != bad:
        dist.all_reduce(ones(3), group=group)


SCRIPTS = [leaves, never_comes, other_shape, other_dtype, other_kind, skips, once_more]
CASES = [(script, bad) for script in SCRIPTS for bad in (1, 2, 3)][:19] + [(in_a_group, 2)]


@pytest.mark.parametrize(("script", "bad"), CASES)
def test_torchs_analyser_reads_it_and_comes_to_the_same_culprit(hang, caplog, script, bad):
    folder = hang(lambda: script(bad))
    found = explain(read_dumps([folder]))
    assert found.culprits == (bad,)
    with caplog.at_level("INFO", logger="Flight Recorder"):
        fr_trace.main([str(folder)])
    told = caplog.text.partition("collective stack trace")[0]
    absent = re.search(r"missing ranks: (\{.*\})", told)
    culprits = (
        ast.literal_eval(absent[1])
        if absent
        else {int(rank) for rank in re.findall(r"Culprit rank (\d)", told)}
    )
    # It takes the rank of the first file that it comes to for the right one.
    assert culprits in ({bad}, {0, 1, 2, 3} - {bad})
    assert int(re.search(r"equence number: (\d+)", told)[1]) == found.call


def test_it_says_where_each_stands_on_which_line_and_what_to_do(hang, capsys):
    folder = hang(lambda: leaves(1))
    assert main(["explain", str(folder)]) == 1
    told = capsys.readouterr().out
    line = leaves.__code__.co_firstlineno
    assert (
        f"ranks 0, 2, 3  wait for rank 1 in barrier, call 2 of group default_pg, at test_explain.py:{line + 5}"
        in told
    )
    assert (
        f"rank 1         has made no call of this group since all_reduce, call 1, at test_explain.py:{line + 2}"
        in told
    )
    assert "rank 1 never came to this line" in told
    assert "Do: " in told
    assert "See lesson 10_ranks: Only rank 0 prints" in told


def test_a_call_that_was_skipped_or_made_once_more_is_named(hang):
    def three(bad, what):
        for step in range(5):
            for number, size in enumerate((3, 5, 7)):
                odd = (dist.get_rank(), step, number) == (bad, 2, 1)
                for _ in range(what if odd else 1):
                    (dist.all_reduce if number else dist.barrier)(*[ones(size)] * bool(number))

    line = three.__code__.co_firstlineno + 5
    where = (
        f"test_explain.py:{line} in test_a_call_that_was_skipped_or_made_once_more_is_named.<locals>.three"
    )
    where = where.replace("test_a_call_that_was_skipped_or_made_once_more_is_named.<locals>.", "")
    told = str(explain(read_dumps([hang(lambda: three(2, 0))])))
    assert f"rank 2 skipped call 8, all_reduce at {where}: since then" in told
    told = str(explain(read_dumps([hang(lambda: three(3, 2))])))
    assert f"rank 3 repeated all_reduce at {where} as its call 9: since then" in told
    # Of two that alternate nobody can know.
    told = str(explain(read_dumps([hang(lambda: skips(2))])))
    assert "rank 2 skipped call 5, all_reduce at" in told
    assert ", or repeated broadcast at" in told


def test_dumps_that_are_missing(hang):
    folder = hang(lambda: never_comes(1))
    (folder / "trace_3").unlink()
    found = explain(read_dumps([folder]))
    assert (found.culprits, found.absent) == ((1,), (3,))
    (folder / "trace_1").unlink()
    found = explain(read_dumps([folder]))
    assert (found.fault, found.culprits) == ("deadlock", (1, 3))
    assert "left none" in str(found)
    assert "ranks 0, 2  wait for ranks 1, 3 in" in str(found)


@pytest.mark.parametrize("cut", [0, 40])
def test_a_file_that_was_cut_off_is_a_rank_without_a_dump(hang, capsys, cut):
    folder = hang(lambda: never_comes(1))
    (folder / "trace_1").write_bytes((folder / "trace_1").read_bytes()[:cut])
    found = explain(read_dumps([folder]))
    assert (found.ranks, found.absent, found.culprits) == ((0, 2, 3), (1,), (1,))
    assert main(["explain", str(folder)]) == 1
    told = capsys.readouterr().out
    assert "trace_1: no dump of the Flight Recorder" in told
    assert "counted as missing" in told
    # Those who have come are waited for by nobody.
    assert "ranks 0, 2, 3  wait for rank 1 in" in told
    assert "rank 1         left no dump" in told


def test_what_would_steer_a_terminal_is_written_out(told):
    steered = entry(1, 5, met=False, name="nccl:all\x1b[2J")
    steered["frames"] = [{"name": "s\x1b]0;t\x07", "filename": "/me/a\x9b.py", "line": "5\x1b"}]
    steered["process_group"] = ("0", "g\x1b[8m")
    text = str(told([steered], [], config={"0\x1b": {"ranks": "[0]"}, "0": {"ranks": "[0, 1]"}}))
    assert "\\x1b" in text
    assert all(one.isprintable() for one in text.replace("\n", ""))


def test_all_have_come_and_it_is_not_over(hang):
    folder = hang(lambda: leaves(1))
    for path in folder.iterdir():  # as where a link is broken
        dump = pickle.loads(path.read_bytes())
        dump["entries"] = dump["entries"][:1]
        dump["entries"][0].update(state="started", retired=False)
        path.write_bytes(pickle.dumps(dump))
    found = explain(read_dumps([folder]))
    assert found.culprits == ()
    assert "the order of calls is right" in str(found)


def test_ranks_that_do_not_hang(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "2")

    def calls():
        for number in range(3):
            dist.all_reduce(ones(number + 1))
        given = torch._C._distributed_c10d._dump_nccl_trace()
        (tmp_path / str(dist.get_rank())).write_bytes(given)
        told = pickle.loads(given)
        active = pickle.loads(
            torch._C._distributed_c10d._dump_fr_trace(onlyActive=True, includeStackTraces=False)
        )
        return told["entries"][-1]["input_sizes"], len(told["entries"]), len(active["entries"])

    with labkit.ranks(2) as session:
        assert session.run(calls) == [([[3]], 2, 0)] * 2
    assert main(["explain", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fault"] == ""


def test_a_dump_says_how_far_each_group_came(hang):
    def work():
        pair = dist.new_group()  # a call of the default group too
        for _ in range(2):
            dist.all_reduce(ones(1))
        if dist.get_rank():
            dist.recv(ones(1), 0, group=pair)
        else:
            dist.send(ones(1), 1, group=pair)
            dist.all_reduce(ones(1))
            torch.cuda.synchronize()

    folder = hang(work, 2)
    dumps = [pickle.loads((folder / f"trace_{rank}").read_bytes()) for rank in range(2)]
    told = [dump["pg_status"] for dump in dumps]
    names = [f"last_{what}_collective" for what in ("enqueued", "started", "completed")]
    messages = dict.fromkeys(names, -1)
    assert told[0] == {"0": dict(zip(names, (4, 4, 3), strict=True)), "1": messages}
    assert told[1] == {"0": dict.fromkeys(names, 3), "1": messages}
    numbers = ["record_id", "op_id", "collective_seq_id", "p2p_seq_id", "is_p2p"]
    assert [[entry[name] for name in numbers] for entry in dumps[0]["entries"]] == [
        [0, 1, 2, 0, False], [1, 2, 3, 0, False], [2, 3, 3, 1, True], [3, 4, 4, 0, False],
    ]  # fmt: skip


def test_nothing_is_recorded_unless_it_is_asked_for(tmp_path):
    with labkit.ranks(2) as session:
        session.run(dist.barrier)
        assert [rank.flight for rank in session._world.ranks] == [None, None]


def test_sends_that_nobody_receives(hang):
    def sends():
        if dist.get_rank() == 0:
            dist.send(ones(1 << 21), 1)
        else:
            dist.barrier()

    found = explain(read_dumps([hang(sends, 2)]))
    assert found.fault in ("calls_never_met", "collective_in_some_ranks")
    assert found.culprits in ((0,), (1,))


def entry(number, line, *, met=True, at=0.0, name="nccl:all_reduce"):
    """A call as a dump has it, of three numbers, made in ``line`` after ``at`` seconds."""
    return {
        "profiling_name": name, "process_group": ("0", "default_pg"), "collective_seq_id": number,
        "p2p_seq_id": number, "is_p2p": " " in name, "state": "completed" if met else "started",
        "time_created_ns": round(at * 1e9), "input_sizes": [[3]], "input_dtypes": ["Float"], "output_sizes": [[3]],
        "frames": [{"name": "step", "filename": "/home/me/train.py", "line": line}] * bool(line),
    }  # fmt: skip


@pytest.fixture
def told(tmp_path):
    """Explains what ranks have written: each its calls."""

    def told(*ranks, config=None):
        config = {"0": {"ranks": "[0, 1]"}} if config is None else config
        for rank, entries in enumerate(ranks):
            dump = {"version": "2.10", "pg_config": config, "entries": entries}
            (tmp_path / f"dump_{rank}").write_bytes(pickle.dumps(dump))
        return explain(read_dumps([tmp_path]))

    return told


def test_fewer_batches_are_told_and_for_how_long_the_others_stand(told):
    found = told(
        [entry(1, 5), entry(2, 5, at=1), entry(3, 5, met=False, at=2)], [entry(1, 5), entry(2, 5, at=4.5)]
    )
    assert (found.fault, found.culprits, found.call) == ("uneven_inputs", (1,), 3)
    assert "rank 1  has made no call of this group since all_reduce, call 2, at train.py:5 in step" in str(
        found
    )
    assert "came 2.5 s before the last call of any" in str(found)
    assert "ended" not in str(found)  # nobody knows


def test_a_rank_that_made_no_further_call_came_to_the_line_before(told):
    found = told([entry(1, 5), entry(2, 9, met=False)], [entry(1, 9)])
    assert (found.fault, found.culprits, found.call) == ("deadlock", (1,), 2)
    assert "rank 1 had made no further call when the dumps were written" in str(found)


def test_a_graph_that_was_cut_in_one_rank_is_told_as_in_the_live_report(hang):
    def cut():
        x = ones(4, 2).requires_grad_()
        y = all_to_all_single_autograd(x, None, None, dist.group.WORLD)
        (y if dist.get_rank() else x + y.detach()).sum().backward()
        torch.cuda.synchronize()

    found = explain(read_dumps([hang(cut)]))
    assert (found.fault, found.culprits, found.call) == ("backward_in_some_ranks", (0,), 2)
    assert "rank 0 did not make this all_to_all in backward, ranks 1–3 did" in str(found)
    assert "loss + 0 * out.sum()" in found.advice


@pytest.mark.parametrize(
    ("caller", "says"), [([], True), (["_engine_run_backward"], True), (["step"], False)]
)
def test_a_call_of_backward_is_known_by_who_called_apply(told, caller, says):
    """On a cluster a thread of autograd's own runs a GPU's backward: nothing of Python stands below ``apply``."""
    stands = entry(2, 9, met=False)
    stands["frames"] += [{"name": "apply", "filename": "/x/torch/autograd/function.py", "line": 1}]
    stands["frames"] += [{"name": name, "filename": "/home/me/train.py", "line": 3} for name in caller]
    found = told([entry(1, 5), stands], [entry(1, 5)])
    assert ("in backward" in str(found)) is says


def test_a_send_without_a_receiver(told):
    ends = entry(0, 0, met=False, name="nccl:coalesced")  # of several at once: nobody's call
    found = told([entry(1, 5, name="nccl:send 0->1"), entry(2, 6, met=False, name="nccl:send 0->1"), ends],
                 [entry(1, 7, name="nccl:recv 1<-0")])  # fmt: skip
    assert (found.fault, found.culprits, found.call) == ("calls_never_met", (1,), 2)
    assert "rank 0  send to rank 1 [3] float32  train.py:6 in step" in str(found)
    assert told([entry(1, 5, name="nccl:send 0->1")], [entry(1, 7, name="nccl:recv 1<-0")]).fault == ""
    assert (
        told([entry(1, 5, name="nccl:send 0->1")], []).fault == ""
    )  # the other's recorder keeps its last calls


def test_groups_that_no_dump_describes_have_those_who_call(told):
    found = told([entry(1, 0), entry(2, 5, met=False)], [entry(1, 0)], config={})
    assert (found.ranks, found.absent, found.culprits, found.call) == ((0, 1), (), (1,), 2)
    assert "no call of this group since all_reduce, call 1, at\n" in str(found)  # no frames, no line


def test_two_files_of_one_rank_and_one_too_large(tmp_path):
    for name in ("a_0", "b_0"):
        (tmp_path / name).write_bytes(pickle.dumps({"version": "2.10", "pg_config": {}}))
    with pytest.raises(BadDump, match="b_0: a second one of rank 0"):
        read_dumps([tmp_path])
    with open(tmp_path / "large_1", "wb") as file:
        file.truncate((1 << 30) + 1)
    with pytest.raises(BadDump, match="large_1: larger than 1 GiB"):
        read_dumps([tmp_path / "large_1"])


class Hostile:
    def __reduce__(self):
        return os.system, ("touch hostile",)


@pytest.mark.parametrize(("written", "word"), [
    (pickle.dumps(Hostile()), "system"),
    (pickle.dumps({"version": "2.10", "pg_config": {}, "entries": [Hostile()]}), "system"),
    (b'cbuiltins\neval\n(S\'open("hostile", "w")\'\ntR.', "builtins.eval"),
    (pickle.dumps(torch.device("cpu")), "torch"), (b"cos\nsystem", "no dump"),
    (b"Pelsewhere\n.", "refers to something outside"), (b"not a pickle", "no dump"), (b"", "no dump"),
    (pickle.dumps([1, 2]), "no dump"),
    (pickle.dumps({"version": 1, "pg_config": {"0": 3}}), "no dump"),
    (pickle.dumps({"version": 1, "pg_config": {}, "entries": [{"profiling_name": 3}]}), "no dump"),
    (b"{", "no dump"),
])  # fmt: skip
def test_a_hostile_or_broken_file_is_refused(tmp_path, monkeypatch, capsys, written, word):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trace_0").write_bytes(written)
    with pytest.raises(BadDump, match=word):
        read_dumps([tmp_path / "trace_0"])
    assert main(["explain", "trace_0"]) == 2
    assert "trace_0" in capsys.readouterr().err
    assert not (tmp_path / "hostile").exists()


def test_names_and_twins(tmp_path, capsys):
    assert main(["explain", str(tmp_path / "none_0")]) == 2
    assert main(["explain", str(tmp_path)]) == 2
    (tmp_path / "trace").write_bytes(b"")
    assert main(["explain", str(tmp_path)]) == 2
    assert "does not end in a rank" in capsys.readouterr().err


GLOO = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(3))
if dist.get_rank() == 0:
    dist.all_reduce(torch.ones(5), async_op=True)
open(f"{sys.argv[1]}/gloo_{dist.get_rank()}", "wb").write(torch._C._distributed_c10d._dump_fr_trace())
os._exit(0)
"""


@pytest.mark.more
def test_a_dump_of_pytorchs_own_recorder(tmp_path):
    (tmp_path / "script.py").write_text(GLOO)
    (tmp_path / "dumps").mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "script.py", "dumps"]
    environment = {**os.environ, "TORCH_FR_BUFFER_SIZE": "100"}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    found = explain(read_dumps([tmp_path / "dumps"]))
    assert (found.culprits, found.call) == ((1,), 2)
    assert "script.py:6" in str(found)


def test_torchrun_says_where_the_dumps_are_and_processes_write_them(tmp_path):
    (tmp_path / "train.py").write_text(
        "import torch.distributed as dist\ndist.init_process_group('nccl')\ndist.barrier()\n"
        "if dist.get_rank(): dist.barrier()\n"
    )
    for more in ([], ["--processes"]):
        environment = {
            **os.environ, "TORCH_FR_BUFFER_SIZE": "100", "TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "fr_"),
        }  # fmt: skip
        command = [*python(), "-m", "labkit", "torchrun", *more, "--nproc-per-node=2", "train.py"]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert more or "labkit explain" in done.stderr
        found = explain(read_dumps(sorted(tmp_path.glob("fr_*"))))
        assert (found.culprits, found.call) == ((0,), 2)
        for path in tmp_path.glob("fr_*"):
            path.unlink()
