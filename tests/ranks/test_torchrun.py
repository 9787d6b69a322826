"""``labkit torchrun``: torchrun's own arguments, each of which works, or is said to do nothing, or is refused."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

from labkit.trace.events import Event
from labkit_cli import main
from labkit_cli.ending import hint_of
from labkit_cli.torchrun import NOTHING_TO_DO, PROCESSES_ONLY, RECORDS
from labkit_ranks.rank.run_record import RunRecord
from tools.warm import python

ROOT = Path(__file__).parents[2]
TRAIN = """
import argparse, os, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=1)
options = parser.parse_args()

dist.init_process_group("nccl")
rank, local = dist.get_rank(), int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(4, 2).cuda(), device_ids=[local])
optimizer = torch.optim.SGD(model.parameters(), 0.5)
torch.manual_seed(1)
rows = torch.randn(options.steps, dist.get_world_size(), 3, 4)
for step in range(options.steps):
    optimizer.zero_grad()
    model(rows[step, rank].cuda()).pow(2).mean().backward()
    optimizer.step()
torch.save(model.module.state_dict(), f"{rank}.pt")
dist.destroy_process_group()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return tmp_path


def torchrun(folder, text, *arguments, script=("script.py",)):
    """The exit code of ``labkit torchrun ARGUMENTS script.py``."""
    (folder / "script.py").write_text(text)
    return main(["torchrun", *arguments, *script])


def outcome(folder, *arguments):
    """The same in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LABKIT")}
    done = subprocess.run(
        [*python(), "-m", "labkit", *arguments],
        cwd=folder, env={**environment, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_an_unmodified_script_on_eight_ranks_trains_as_one_gpu_on_the_joined_batch(folder):
    import torch
    from torch import nn

    assert torchrun(folder, TRAIN, "--nproc-per-node", "8", script=("script.py", "--steps", "3")) == 0
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    torch.manual_seed(1)
    for step in torch.randn(3, 8, 3, 4):
        optimizer.zero_grad()
        model(step.flatten(0, 1)).pow(2).mean().backward()
        optimizer.step()
    for rank in range(8):
        found = torch.load(f"{rank}.pt", map_location="cpu")
        for name, value in model.state_dict().items():
            torch.testing.assert_close(found[name], value)


TOLD = (
    "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE ROLE_NAME "
    "MASTER_ADDR MASTER_PORT TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_RUN_ID "
    "TORCH_NCCL_ASYNC_ERROR_HANDLING OMP_NUM_THREADS"
).split()
TELL = (
    f"import os\nprint(*[os.environ.get(name) for name in {TOLD}], "
    "os.path.exists(os.path.dirname(os.environ['TORCHELASTIC_ERROR_FILE'])))\n"
)


def test_what_each_rank_finds_in_its_environment(folder, capsys):
    arguments = "--nnodes 2 --nproc-per-node 2 --role trainer --rdzv-id 7 --max-restarts 3"
    of_master = "--master-addr 10.0.0.1 --master-port 29400"
    assert torchrun(folder, TELL, *arguments.split(), *of_master.split()) == 0
    assert sorted(capsys.readouterr().out.splitlines()) == [
        f"{rank} {rank % 2} 4 2 {rank // 2} 2 {rank} 4 trainer 10.0.0.1 29400 0 3 7 1 1 True"
        for rank in range(4)
    ]


def test_a_script_may_take_its_folder_of_logs_away(folder, capsys):
    text = "import os, shutil\nlogs = os.path.dirname(os.environ['TORCHELASTIC_ERROR_FILE'])\n"
    text += "while os.path.basename(logs) != 'attempt_0':\n    logs = os.path.dirname(logs)\n"
    text += "shutil.rmtree(os.path.dirname(os.path.dirname(logs)))\n"
    assert torchrun(folder, text) == 0
    assert "Error" not in capsys.readouterr().err


def test_what_torchrun_itself_tells_is_all_there(folder, capsys):
    """The names are those of PyTorch's own agent."""
    from torch.distributed.elastic.agent.server import local_elastic_agent

    source = (
        Path(local_elastic_agent.__file__).read_text("utf-8").partition("worker_env = {")[2].partition("}")[0]
    )
    expected = {*re.findall(r'^ *"([A-Z_]+)":', source, re.MULTILINE), "LOCAL_RANK", "OMP_NUM_THREADS"}
    assert len(expected) > 14
    assert torchrun(folder, "import os\nprint(*os.environ)", "--nproc-per-node", "2") == 0
    for line in capsys.readouterr().out.splitlines():
        assert expected <= {*line.split()}


@pytest.mark.parametrize(("arguments", "lines"), [
    (["--nproc-per-node", "3"], 3),
    (["--nproc-per-node", "gpu", "--gpus", "2"], 2), (["--nproc-per-node=auto"], 8), (["--nnodes", "1:3"], 3),
    (["--standalone", "--nproc_per_node", "2"], 2), ([], 1), (["--run-path"], 1),
], ids=str)  # fmt: skip
def test_how_many(folder, capsys, arguments, lines):
    assert torchrun(folder, "print('x')", *arguments) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("x\n" * lines, "")


@pytest.mark.parametrize(("listed", "code"), [("2,3", 0), ("3, 1", 0), ("5", 2), ("", 2)])
def test_a_node_has_the_gpus_that_are_said_to_be_visible(folder, capsys, monkeypatch, listed, code):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    text = "import torch; print(torch.cuda.device_count())"
    assert torchrun(folder, text, "--nproc-per-node", "2") == code
    assert capsys.readouterr().out == "2\n2\n" * (not code)


def test_a_module(folder, capsys):
    (folder / "package").mkdir()
    (folder / "package" / "part.py").write_text("import sys; print(__spec__.name, sys.argv[1:])")
    assert main("torchrun --nproc-per-node 2 -m package.part a --b".split()) == 0
    assert capsys.readouterr().out == "package.part ['a', '--b']\n" * 2


PRINT = (
    "import os, sys\nprint('out', os.environ['RANK'])\nprint('err', os.environ['RANK'], file=sys.stderr)\n"
)


@pytest.mark.parametrize(("arguments", "out", "err", "files"), [
    ("--tee 3 --role a", "[a0]:out 0\n[a1]:out 1\n", "[a0]:err 0\n[a1]:err 1\n",
     "0/stderr 0/stdout 1/stderr 1/stdout"),
    ("--redirects 1", "", "err 0\nerr 1\n", "0/stdout 1/stdout"),
    ("--redirects 0:1,1:2", "out 1\n", "err 0\n", "0/stdout 1/stderr"),
    ("--local-ranks-filter 1", "out 1\n", "err 1\n", ""),
    ("--tee 1 --local-ranks-filter 1", "[default1]:out 1\n", "err 1\n", "0/stdout 1/stdout"),
    ("--tee 1 --duplicate-stdout-filters 1,x", "[default0]:out 0\n[default1]:out 1\n", "err 0\nerr 1\n",
     "0/stdout 1/stdout filtered_stdout"),
])  # fmt: skip
def test_where_what_ranks_print_goes(folder, capsys, arguments, out, err, files):
    assert torchrun(folder, PRINT, "--nproc-per-node", "2", "--log-dir", "logs", *arguments.split()) == 0
    captured = capsys.readouterr()
    for printed, expected in (captured.out, out), (captured.err, err):  # PyTorch shows each file by itself
        assert sorted(printed.splitlines()) == sorted(expected.splitlines())
    (attempt,) = folder.glob("logs/none_*/attempt_0")
    found = sorted(path.relative_to(attempt) for path in attempt.rglob("*.log"))
    assert " ".join(str(path.with_suffix("")) for path in found) == files
    for path in found:
        kind, rank = path.stem[-3:], path.parts[0]
        assert (attempt / path).read_text() == (
            "[default1]:out 1\n" if "filtered" in path.stem else f"{kind} {rank}\n"
        )


def table(text):
    """What the report of a failure says: rank, local rank, exit code, and the first line of the traceback."""
    assert "Root Cause (first observed failure):" in text
    return re.findall(
        r"rank +: (\d+) \(local_rank: (\d+)\)\n  exitcode +: (-?\d+) .*\n  error_file: .*\n  traceback : (.*)",
        text,
    )


SEE = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"


@pytest.mark.parametrize(("end", "code", "said"), [
    ("raise ValueError('bad batch')", "1", SEE), ("import sys; sys.exit(5)", "5", SEE),
    ("os._exit(4)", "4", SEE),
    ("os.kill(os.getpid(), 9)", "-9", r"Signal 9 (SIGKILL) received by PID \d+"),
    ("from torch.distributed.elastic.multiprocessing.errors import record\nrecord(lambda: 1 / 0)()", "1",
     "Traceback (most recent call last):"),
])  # fmt: skip
def test_the_report_of_a_failure(folder, capsys, end, code, said):
    text = "import os\nif os.environ['RANK'] == '3':\n    " + end.replace("\n", "\n    ")
    assert torchrun(folder, text, "--nnodes", "2", "--nproc-per-node", "2") == 1
    err = capsys.readouterr().err
    ((rank, local, exitcode, traceback),) = table(err)
    assert (rank, local, exitcode) == ("3", "1", code)
    assert re.fullmatch(said.replace("(", r"\(").replace(")", r"\)"), traceback)
    assert "ChildFailedError" in err
    assert "script.py FAILED" in err
    assert "labkit/" not in err.replace(str(folder), "").replace(str(ROOT), "")


def test_each_rank_has_its_say_before_it_ends_and_what_several_fail_by_is_shown_once(folder, capsys):
    text = "import os\nrank = int(os.environ['RANK'])\nprint('hello', rank)\nif rank: raise ValueError('bad')"
    assert torchrun(folder, text, "--nproc-per-node", "3") == 1
    captured = capsys.readouterr()
    assert captured.out == "hello 0\nhello 1\nhello 2\n"
    assert captured.err.count("ValueError: bad") == 1
    assert len(re.findall(r"rank +: [12] ", captured.err)) == 2


def test_restarts(folder, capsys):
    text = (
        "import os, sys, torch.distributed as dist\n"
        "dist.init_process_group('nccl')\n"
        "attempt = os.environ['TORCHELASTIC_RESTART_COUNT']\n"
        "print(attempt, end=' ')\n"
        "if attempt != '2' and dist.get_rank() == 1:\n    sys.exit(1)\n"
        "dist.destroy_process_group()\n"
    )
    assert torchrun(folder, text, "--nproc-per-node", "2", "--max-restarts", "5") == 0
    assert capsys.readouterr() == ("0 0 1 1 2 2 ", "")
    assert torchrun(folder, text, "--nproc-per-node", "2", "--max-restarts", "1") == 1


def test_a_deadlock_ends_at_once(folder, capsys):
    text = (
        "import torch.distributed as dist\n"
        "dist.init_process_group('nccl')\n"
        "if dist.get_rank() == 0:\n    dist.barrier(device_ids=[0])\n"
    )
    assert torchrun(folder, text, "--nproc-per-node", "2") == 1
    err = capsys.readouterr().err
    assert "script.py:4" in err
    table, _, told = err.partition("\n====")[2].rpartition("====\n")
    assert "Root Cause" in table
    assert told.startswith(
        "Traceback (most recent call last):\n"
    )  # below what torchrun says, of the script alone
    assert re.findall('File "(.*)"', told) == [str(folder / "script.py")]
    assert "Deadlock: no rank can go on" in told
    assert err.count("no rank can go on") == 1


def test_threads_that_show_files_do_not_pass_for_help_in_a_deadlock(folder, capsys):
    text = "import queue\nqueue.Queue().get()\n"
    assert torchrun(folder, text, "--nproc-per-node", "2", "--tee", "1", "--log-dir", "logs") == 1
    assert "Queue.get" in capsys.readouterr().err


@pytest.mark.parametrize("mode", [(), pytest.param(("--processes",), marks=pytest.mark.more)])
def test_the_last_that_is_said_is_what_labkit_told(as_command, mode):
    text = (
        "import sys, torch, torch.distributed as dist\n"
        "dist.init_process_group('nccl')\n"
        "torch.cuda.set_device(dist.get_rank())\n"
        "if 'value' in sys.argv and dist.get_rank(): raise ValueError('of the script')\n"
        "dist.all_reduce(torch.ones(2 + dist.get_rank(), device='cuda'))\n"
    )
    options = (*mode, "--nproc-per-node", "2", "--max-restarts", "1")
    code, _, err = as_command(text, options=options)
    assert code
    assert "Do: " in err.splitlines()[-2]
    assert err.splitlines()[-1] == "See lesson 11_collectives: Two sums in another order"
    assert "do not call the same" in err.rpartition("====\n")[2]
    code, _, err = as_command(text, "value", options=options)
    assert code
    assert err.endswith("====\n")


@pytest.mark.parametrize(("call", "kind"), [
    ("dist.recv(x, 0) if rank else dist.send(x, 1)", "send"),
    ("dist.all_reduce(x)", "all_reduce"),
    ("dist.all_reduce(x, async_op=True)", "all_reduce"),
])  # fmt: skip
def test_a_call_that_nobody_came_to_is_told_when_all_have_ended(folder, capsys, call, kind):
    """Real ranks end, unless something waits for the GPU (ProcessGroupNCCL.cpp, ~ProcessGroupNCCL and shutdown)."""
    text = (
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('nccl')\n"
        "torch.cuda.set_device(dist.get_rank())\n"
        "x = torch.ones(2).cuda()\n"
        f"rank = dist.get_rank()\nfor step in range(3 - rank):\n    {call}\n"
    )
    assert torchrun(folder, text, "--nproc-per-node", "2") == 1
    err = capsys.readouterr().err
    assert "Unmet: all ranks have ended" in err
    assert kind in err
    assert "script.py:7" in err
    assert "exit code 0" in err
    assert torchrun(folder, text.replace("3 - rank", "3"), "--nproc-per-node", "2") == 0
    if kind != "send":  # it is in NCCL's buffer
        assert torchrun(folder, text + "dist.destroy_process_group()\n", "--nproc-per-node", "2") == 1
        assert "Deadlock" in (err := capsys.readouterr().err)
        assert "script.py:8, `dist.destroy_process_group()`" in err


def test_each_argument_is_taken_said_to_do_nothing_or_refused(folder, capsys):
    values = {
        "numa_binding": "node", "start_method": "fork", "monitor_interval": "1", "shutdown_timeout": "1",
    }  # fmt: skip
    known = {action.dest: action for action in get_args_parser()._actions}
    for name in NOTHING_TO_DO:
        assert torchrun(folder, "", known[name].option_strings[0], values.get(name, "x=1")) == 0
        assert f"--{name.replace('_', '-')}: no effect" in capsys.readouterr().err
    for name in PROCESSES_ONLY:
        value = [] if known[name].nargs == 0 else ["x"]
        assert torchrun(folder, "", known[name].option_strings[0], *value) == 2
        assert "add --processes" in capsys.readouterr().err


def test_variables_of_pytorch_set_the_defaults(folder, capsys, monkeypatch):
    monkeypatch.setenv("PET_NPROC_PER_NODE", "2")
    monkeypatch.setenv("PET_NNODES", "1:2")
    assert torchrun(folder, "import os; print(os.environ['WORLD_SIZE'], os.environ['GROUP_WORLD_SIZE'])") == 0
    assert capsys.readouterr().out.splitlines() == ["4 2"] * 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--nproc-per-node 3 --gpus 2 script.py", "3 ranks on a node of 2 GPUs"), ("nothing.py", "no such script"),
        ("--nproc-per-node many script.py", "must be a number"), ("--nproc-per-node 0 script.py", "at least 1"),
        ("--nnodes 2 --node-rank 1 script.py", "this command runs all 2 nodes"), ("", "no script given"),
        ("--memory lots script.py", "lots"), ("--timeline . script.py", "cannot write"), ("--bogus", "--bogus"),
        ("--nnodes x script.py", "--nnodes"),
        ("--max-restarts -1 script.py", "--max-restarts"),
    ],
)  # fmt: skip
def test_what_cannot_be(folder, capsys, arguments, said):
    (folder / "script.py").write_text("print('ran')")
    assert main(["torchrun", *arguments.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1


MESSAGE = """
dist.init_process_group("nccl")
if rank:
    dist.send(torch.ones(3).cuda(), 0)
else:
    dist.recv(torch.ones(3).cuda(), 1)
print("out", rank)
"""
SUMMED = (
    "--nproc-per-node 2 --memory 1GiB --tee 1 --role a --summary --timeline t.html --trace t.json".split()
)


def recorded(folder, err):
    """The collectives and messages of the file for Perfetto; the page and the summary are looked at."""
    _, said, lines = err.partition("labkit: 2 ranks\n")  # torchrun itself warns of OMP_NUM_THREADS
    assert said
    for rank, line in enumerate(lines.splitlines()):
        assert re.fullmatch(
            rf"  rank {rank}  cuda:{rank}  peak [\d.]+ KiB of 1024.00 MiB, "
            r"\d+ collectives of [\d.]+ \w+, waited [\d.]+ (s|ms|µs)",
            line,
        )
    page = (folder / "t.html").read_text("utf-8")
    assert "Timeline of script.py" in page
    assert "all_reduce" in page
    assert "Memory" in page
    events = json.loads((folder / "t.json").read_text())["traceEvents"]
    assert len({event["id"] for event in events if event.get("cat") == "met"}) > 3
    met = [event for event in events if event["ph"] == "X" and "sequence" in event["args"]]
    assert len({event["args"]["last"] for event in met if event["name"] in ("send", "recv")}) == 1
    names = "group sequence ranks nbytes shapes place".split()
    return sorted([event["pid"], event["name"], *(event["args"][name] for name in names)] for event in met)


def test_the_summary_and_the_pages(folder, capfd):
    folder_with(folder, TRAIN + MESSAGE)
    assert main(["torchrun", *SUMMED, "script.py"]) == 0
    captured = capfd.readouterr()
    assert sorted(captured.out.splitlines()) == ["[a0]:out 0", "[a1]:out 1"]
    assert len(recorded(folder, captured.err)) == 10


def test_the_arguments_that_were_typed_reach_pytorchs_launcher(folder, capfd):
    (folder / "script.py").write_text(PRINT)
    code, out, err = outcome(folder, "torchrun", "--processes", *SUMMED[:8], "script.py")
    assert (code, sorted(out.splitlines())) == (0, ["[a0]:out 0", "[a1]:out 1"]), err


@pytest.mark.parametrize("name", RECORDS)
def test_processes_are_not_recorded_and_say_so(folder, capsys, name):
    value = {"summary": [], "times": ["h100"]}.get(name, ["x.out"])
    assert torchrun(folder, PRINT, "--processes", f"--{name}", *value) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"--{name} needs ranks that share this process: leave --processes out" in err


def test_the_record_of_a_new_attempt_begins_empty():
    kept = RunRecord(1)
    for _ in range(2):
        kept.trace.events.append(Event("collective", "cuda:0", nbytes=2, rank=0, name="all_reduce"))
    assert (kept.totals[0].calls, kept.dropped_events, len(kept.trace.events)) == (2, 1, 1)
    kept.clear()
    assert (dict(kept.totals), kept.dropped_events, len(kept.trace.events)) == ({}, 0, 0)


def folder_with(folder, text):
    (folder / "script.py").write_text(text)
    return folder


def test_as_a_command(folder):
    text = "import atexit, sys\natexit.register(print, 'end')\n"
    text += "import torch\nprint(torch.cuda.device_count(), sys.path[0])"
    code, out, err = outcome(folder_with(folder, text), "torchrun", "--nproc-per-node", "2", "script.py")
    assert (code, out, err) == (0, f"2 {folder}\nend\n" * 2, "")


@pytest.mark.parametrize("text", [
    "import os, torch\nos.environ['RANK']",
    pytest.param("import torch\ntorch.distributed.init_process_group('gloo')", marks=pytest.mark.more),
])  # fmt: skip
def test_labkit_run_points_to_it(folder, text):
    code, _, err = outcome(folder_with(folder, text), "run", "--gpus", "2", "script.py")
    assert code == 1
    assert (
        err.splitlines()[-1]
        == "labkit: start this script with torchrun: labkit torchrun --nproc-per-node 2 script.py"
    )


def test_other_errors_do_not():
    assert hint_of(KeyError("rank")) is None
    assert hint_of(KeyError()) is None


@pytest.mark.parametrize(
    "more", [pytest.param(["--processes"], marks=pytest.mark.more), [], ["--nnodes", "2"]]
)
def test_the_gpus_of_all_ranks_pass_for_a_model(tmp_path, more):
    (tmp_path / "script.py").write_text("import torch\nprint(torch.cuda.get_device_name(1))\n")
    command = [
        *python(), "-m", "labkit", "torchrun", "--nproc-per-node", "2", "--gpu-model", "H200", *more,
    ]  # fmt: skip
    done = subprocess.run([*command, "script.py"], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.stdout.splitlines() == ["NVIDIA H200"] * (4 if "--nnodes" in more else 2), done.stderr
