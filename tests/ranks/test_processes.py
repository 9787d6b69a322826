"""Ranks as real processes: started from a preloaded one by PyTorch's elastic launcher."""

import os
import pickle
import re
import signal
import socket
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from labkit_ranks.calls.call import CollectiveCall
from labkit_ranks.processes import deadlock_detector, store_keys
from labkit_ranks.processes.call_packing import pack
from labkit_ranks.processes.deadlock_detector import DeadlockDetector
from labkit_ranks.threads.world import World
from labkit_ranks.torchrun import forked_workers, in_processes
from labkit_ranks.torchrun.forked_workers import ForkedWorkers
from tools.warm import python

ROOT = Path(__file__).parents[2]
LAUNCH = ("-m", "labkit", "torchrun", "--processes", "--gpus", "2", "--memory", "1 GiB")


def begin(tmp_path, script, *arguments, of=LAUNCH, **options):
    (tmp_path / "train.py").write_text(script)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "LABKIT_LANGUAGE": "en"}
    command = [*python(), *of, *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path, **options
    )


def run(*args, **options):
    with begin(*args, stderr=subprocess.PIPE, **options) as process:
        out, err = process.communicate(timeout=200)
    return process.returncode, out, err


TRAIN = """
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def train():
    dist.init_process_group("nccl")
    rank, device = dist.get_rank(), torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.manual_seed(0)
    # An odd number of numbers, 480 kB
    model = torch.nn.Sequential(torch.nn.Linear(8, 10_000), torch.nn.Tanh(), torch.nn.Linear(10_000, 3)).to(device)
    model = DDP(model, device_ids=[device.index])
    step = torch.optim.SGD(model.parameters(), 0.1)
    for k in range(3):
        rows = torch.randn(5, 8, generator=torch.Generator().manual_seed(10 * k + rank)).to(device)
        step.zero_grad()
        model(rows).square().mean().backward()
        step.step()
    held = torch.cuda.memory_allocated()
    dist.destroy_process_group()
    return [parameter.detach().cpu() for parameter in model.parameters()], held


if __name__ == "__main__":
    facts = {name: os.environ[name] for name in ("LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")}
    facts |= {"argv": sys.argv, "path": sys.path[0], "cwd": os.getcwd(), "main": sys.modules["__main__"].__file__}
    # A class of __main__ is found by name, as in any process.
    import pickle

    class Mine: ...

    assert type(pickle.loads(pickle.dumps(Mine()))) is Mine
    torch.save((facts, *train()), f"{sys.argv[1]}/{os.environ['RANK']}.pt")
"""


def test_two_nodes_train_as_one_process_and_end_with_the_same_bits(tmp_path):
    code, _, err = run(
        tmp_path, TRAIN, "--nnodes", "2", "--nproc-per-node", "1", "train.py", str(tmp_path), "-x"
    )
    assert code == 0, err
    names = {}
    exec(compile(TRAIN, "train.py", "exec"), names)
    with World(2, nodes=2) as world:
        threads = world.run(lambda rank: names["train"]())
    for rank, (weights, held) in enumerate(threads):
        facts, other, other_held = torch.load(tmp_path / f"{rank}.pt", weights_only=False)
        assert facts == {
            "LOCAL_RANK": "0", "GROUP_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1",
            "argv": ["train.py", str(tmp_path), "-x"], "path": str(tmp_path), "cwd": str(tmp_path),
            "main": str(tmp_path / "train.py"),
        }  # fmt: skip
        assert all(torch.equal(mine, one) for mine, one in zip(weights, other, strict=True))
        assert held == other_held


FAULTS = """
import os
import sys
import threading
from datetime import timedelta

import torch
import torch.distributed as dist

attempt, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
x = torch.ones(3, device="cuda")
store = dist.distributed_c10d._get_default_store()
dist.all_reduce(x)
if attempt == 0:  # another call
    dist.all_reduce(x) if rank else dist.broadcast(x, 0)
elif attempt == 1:  # each waits for the other's message
    dist.recv(x, 1 - rank)
elif attempt == 2:  # uneven inputs
    for batch in range(2 + rank):
        dist.all_reduce(x)
elif attempt == 3:
    if rank:
        raise ValueError("of the script")
    dist.all_reduce(x)
elif attempt == 4:
    if rank:
        os.kill(os.getpid(), 9)
    dist.all_reduce(x)
elif attempt == 5:
    if rank:
        store.wait(["never"])
    dist.barrier()
elif attempt == 6:
    if rank:
        dist.new_group([0, 1])
elif attempt == 7:  # calls that nobody comes to
    if rank:
        dist.send(x, 0)
        dist.all_reduce(x, async_op=True)
        other = int(store.get("process"))
        try:
            while True:
                os.kill(other, 0)
        except ProcessLookupError:  # rank 0 has gone when this one ends
            pass
    else:
        store.set("process", str(os.getpid()))
elif attempt == 8:  # gloo says the same
    gloo = dist.new_group(backend="gloo")
    dist.all_reduce(torch.ones(3), group=gloo) if rank else dist.barrier(gloo)
elif attempt == 9:  # a send that stands behind a receive of its own rank
    for work in [dist.irecv(torch.empty_like(x), 1 - rank), dist.isend(x, 1 - rank)]:
        work.wait()
else:
    # Who waits in a store for a short time goes on after it, and so does who is given the key by its own thread.
    try:
        dist.PrefixStore("a", store).wait(["never"], timedelta(seconds=0.5))
    except dist.DistStoreError as error:
        assert "wait timeout after 500ms" in str(error)
    if rank:
        threading.Timer(0.5, store.set, ("given", "yes")).start()
    assert store.get("given") == b"yes"
    # Messages larger than what waits for nobody, from both at once; Works in another order than that of the calls.
    there, here = torch.full((2_000_000,), float(rank), device="cuda"), torch.empty(2_000_000, device="cuda")
    for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, there, 1 - rank), dist.P2POp(dist.irecv, here, 1 - rank)]
    ):
        work.wait()
    group = dist.new_group([0, 1])
    works = [dist.all_reduce(x, async_op=True), dist.all_reduce(here, group=group, async_op=True)]
    for work in works if rank else works[::-1]:
        work.wait()
    # What waits for a thread of this process goes on.
    event = threading.Event()
    threading.Timer(0.3, event.set).start()
    event.wait()
    print(f"rank {rank}: {x.tolist()} {here.unique().tolist()}", flush=True)
    # Messages of two ranks go in the order of the calls: a large one holds up what stands behind it, until it is met.
    boxes = [torch.zeros(3, device="cuda") for _ in range(2)]
    if rank:
        for work in [dist.isend(there, 0), *(dist.irecv(box, 0) for box in boxes), dist.isend(x, 0)]:
            work.wait()
        assert [box.tolist() for box in boxes] == [[2.0] * 3, [3.0] * 3]
    else:
        for number in (2.0, 3.0):
            dist.isend(torch.full((3,), number, device="cuda"), 1)
        dist.recv(here, 1)
        dist.recv(boxes[0], 1)
        assert (here.unique().tolist(), boxes[0].tolist()) == ([1.0], x.tolist())
    # A message reaches who asks for it when its sender has nothing else to do.
    if rank:
        dist.send(x, 0)
        store.set("sent", "")
    else:
        store.wait(["sent"])
        dist.recv(x, 1)
    # The GPU runs a call that nobody waits for.
    one = torch.ones(1, device="cuda")
    dist.all_reduce(one, async_op=True)
    torch.cuda.synchronize()
    assert one.item() == 2
    dist.all_reduce(one, async_op=True)
    dist.destroy_process_group()
    assert one.item() == 4
"""


def test_each_attempt_ends_by_itself_and_says_why(tmp_path):
    code, out, err = run(
        tmp_path, FAULTS, "--nproc-per-node", "2", "--max-restarts", "10", "--tee", "3", "train.py"
    )
    assert code == 0, err
    for rank in range(2):  # whose lines may meet in one
        assert out.count(f"[default{rank}]:rank {rank}: [4.0, 4.0, 4.0] [1.0]") == 1
    assert "rank 0  broadcast from rank 0 [3] float32  train.py:17" in err
    assert "rank 1  all_reduce SUM [3] float32         train.py:17" in err
    deadlocks = err.split("Deadlock: ")[1:]
    assert len(deadlocks) == 5  # one rank tells
    for text in "rank 0  waits in recv from rank 1", "rank 1  waits in recv from rank 0", "train.py:19":
        assert text in deadlocks[0]
    for text in "rank 0  has ended; its last call was all_reduce, call 3", "came for the 3rd time":
        assert text in deadlocks[1]
    assert "rank 0  waits for rank 1 in barrier" in deadlocks[2]
    assert "rank 1  waits in store.wait('never') at train.py:33" in deadlocks[2]
    assert "rank 1  waits for rank 0 in new_group" in deadlocks[3]
    for rank in range(2):
        assert f"rank {rank}  waits in irecv from rank {1 - rank} [3] float32 at train.py:54" in deadlocks[4]
    assert re.search(
        r"The isend of rank \d at train.py:54 has not begun: .* and the irecv before it", deadlocks[4]
    )
    assert err.count("Unmet: all ranks have ended") == 1
    for call in "send to rank 0 [3] float32  train.py:40", "all_reduce SUM [3] float32  train.py:41":
        assert f"[default1]:  rank 1  {call}\n" in err
    assert "rank 0  barrier                     train.py:52\n" in err
    assert "ValueError: of the script" in err
    assert err.count("(exitcode: -9)") == 1


SPAWN = """
import sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank, size, path):
    dist.init_process_group(init_method=f"file://{path}", rank=rank, world_size=size)
    x = torch.full((2,), float(rank + 1), device=f"cuda:{rank}")
    dist.all_reduce(x)
    group = dist.new_group([0, 1])
    dist.all_reduce(x, group=group, async_op=True)
    dist.destroy_process_group(group)  # runs the call
    assert x.tolist() == [6.0, 6.0]
    group = dist.new_group([0, 1])
    dist.all_reduce(x, group=dist.group.WORLD if rank else group)


if __name__ == "__main__":
    mp.spawn(work, (2, sys.argv[1]), nprocs=2)
"""


def test_spawned_ranks_meet_by_nccl_and_are_told_of_a_deadlock(tmp_path):
    command = "-m", "labkit", "run", "--gpus", "2", "train.py", str(tmp_path / "store")
    code, _, err = run(tmp_path, SPAWN, of=command)
    assert code == 1
    assert err.count("Deadlock: no rank can go on") == 1
    assert "rank 0  waits for rank 1 in all_reduce SUM [2] float32, call 1 of group" in err
    assert "rank 1  waits for rank 0 in all_reduce SUM [2] float32, call 2 of group" in err


UNMET = SPAWN.replace("dist.all_reduce(x)", "rank or dist.irecv(x, src=1)").partition("    group =")[0]
UNMET += 'if __name__ == "__main__":' + SPAWN.partition('if __name__ == "__main__":')[2]


def test_a_spawned_rank_that_nobody_met_fails_and_does_not_abort(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        script = UNMET.replace("file://{path}", f"tcp://127.0.0.1:{free.getsockname()[1]}")
    code, _, err = run(tmp_path, script, of=("-m", "labkit", "run", "--gpus", "2", "train.py", ""))
    assert code == 1
    assert "recv from rank 1" in err
    assert "exit code 1" in err  # and not SIGABRT


ENDLESS = """
import os
import signal

os.write(1, b"%d\\n" % os.getpid())
signal.signal(signal.SIGALRM, lambda *_: print("still here", flush=True))
signal.alarm(60)
signal.pause()
"""


def test_no_rank_outlives_its_launcher(tmp_path):
    with begin(tmp_path, ENDLESS, "--nproc-per-node", "2", "train.py") as process:
        ranks = [process.stdout.readline() for _ in range(2)]
        process.send_signal(signal.SIGKILL)
        assert all(rank.strip().isdigit() for rank in ranks)
        assert process.stdout.read() == ""  # nobody has it open any more


def test_a_worker_is_forked_for_each_counted_start_and_an_uncounted_one_gets_a_new_python():
    workers = ForkedWorkers(1, lambda arguments: len(arguments))
    try:
        first = workers.start((["train.py", "--lr", "1"], {}, {}))
        assert first.wait() == first.poll() == 3
        assert workers.start((["train.py"], {}, {})) is None
    finally:
        workers.close()


def test_when_the_launcher_is_gone_its_guard_kills_who_has_not_ended():
    ended, goes_on = (subprocess.Popen(["sleep", "60"], start_new_session=True) for _ in range(2))
    to_guard, guard = forked_workers._fork_guard({ended.pid, goes_on.pid})
    os.write(to_guard, ended.pid.to_bytes(forked_workers._PID_BYTES, "little"))
    os.close(to_guard)
    os.waitpid(guard, 0)
    assert goes_on.wait() == -signal.SIGKILL
    assert ended.poll() is None  # another process may have its number by now
    ended.kill()
    ended.wait()


def test_waiting_for_a_worker_that_goes_on_times_out():
    workers = ForkedWorkers(1, lambda arguments: signal.pause())
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            workers.start(([], {}, {})).wait(0)
    finally:
        workers.close()


# What needs no processes.


@pytest.mark.parametrize("tensor", [
    torch.arange(6.0).view(2, 3).t(), torch.tensor(3), torch.empty(0, 4), torch.tensor([True, False]),
    torch.randn(3, dtype=torch.complex64).conj(), torch.randn(5).bfloat16(),
    torch.randn(2, 2, dtype=torch.float64),
])  # fmt: skip
def test_a_call_arrives_as_it_was_sent(tensor):
    call = CollectiveCall(
        "all_reduce", [torch.ones(3, dtype=torch.uint8), tensor], [torch.empty(2, 5)], op="SUM", root=1
    )
    call.group, call.seq, call.rank, call.ranks = "dp", 3, 7, (5, 7)
    call.locate()
    there = pickle.loads(pack(call, values=True))
    assert (there.kind, there.op, there.root, there.ranks, there.seq) == ("all_reduce", "SUM", 1, (5, 7), 3)
    assert there.short_place == call.short_place
    assert torch.equal(there.inputs[1], tensor)
    assert there.inputs[1].dtype == tensor.dtype
    assert [tuple(output.shape) for output in there.outputs] == [(2, 5)]


def test_no_deadlock_before_every_rank_has_looked_twice_since_the_last_change(monkeypatch):
    store = dist.HashStore()
    ranks = [
        DeadlockDetector(SimpleNamespace(rank=lambda at=at: at, size=lambda: 2, store=store), 1)
        for at in (0, 1)
    ]
    monkeypatch.setattr(deadlock_detector, "_PATIENCE", 0.0)
    calls = [CollectiveCall("all_reduce"), CollectiveCall("barrier")]

    def look(*numbers):
        for at in numbers:
            ranks[at]._record_look(calls[at])
        return [one.told.call.kind for one in ranks[0].find_deadlock()]

    assert look(0, 0, 0, 0) == []  # rank 1 runs
    assert look(1, 1, 0) == []  # rank 0 sees that rank 1 waits, too
    assert look(1, 1, 1, 0) == []  # rank 0 has looked once since
    assert look(0) == ["all_reduce", "barrier"]
    ranks[1].publish_progress()  # it has sent a message that rank 0 may wait for
    assert look(0, 0, 0) == []
    assert look(0, 0, 1) == []
    assert look(1) == ["all_reduce", "barrier"]
    ranks[0]._record_end_of_wait()
    assert look(1, 1) == []


@pytest.mark.parametrize("size", [1, 100, 101, 250])
def test_long_values_are_kept_in_pieces(monkeypatch, size):
    monkeypatch.setattr(store_keys, "_PIECE", 100)
    store, value = dist.HashStore(), bytes(range(size))
    store_keys.write_value(store, "key", value)
    assert store_keys.read_values(store, ["key"]) == [value]
    store_keys.delete_value(store, "key", value)
    assert store.num_keys() == 0


@pytest.mark.parametrize(
    ("own", "others", "code"), [(0, (0, 0), 0), (0, (0, 3), 3), (0, (-9, 0), -9), (4, (3, 3), 4)]
)
def test_the_exit_code_of_several_nodes_is_the_first_that_failed(monkeypatch, own, others, code):
    """A node is a child of this process, which may have other children: theirs end here too, and say nothing."""
    statuses = [abs(one) if one < 0 else one << 8 for one in others]
    children, ended = iter((101, 102)), iter([(7, 5 << 8), *zip((101, 102), statuses, strict=True)])
    monkeypatch.setattr(in_processes.os, "fork", lambda: next(children))
    monkeypatch.setattr(in_processes.os, "wait", lambda: next(ended))
    monkeypatch.setattr(in_processes, "_run_node", lambda options: own if options.node_rank == 0 else None)
    options = SimpleNamespace(nnodes="3", standalone=False, node_rank=0, master_port=29500)
    assert in_processes._launch(options, {"master_port"}) == code
