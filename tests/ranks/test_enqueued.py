"""NCCL's calls return before the other ranks have come: what makes the host wait for the GPU stands, nothing else."""

import os
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from labkit.turns import Deadlock
from labkit_ranks.calls import faults
from labkit_ranks.threads.world import RanksFailed, World


def run(program, ranks=2, to_end=True, device_id=False):
    def work(rank):
        device = torch.device("cuda", rank.local)
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", **({"device_id": device} if device_id else {}))
        return program(rank.number)

    with World(ranks) as world:
        return world.run(work, to_end=to_end)


def error_of(program, **options):
    with pytest.raises(RanksFailed) as caught:
        run(program, **options)
    return caught.value.error


def one_more(then):
    """Rank 1 makes one call more than the others, and goes on with ``then(x)``."""

    def program(n):
        x = torch.ones(3, device="cuda")
        other = torch.ones(3, device="cuda")
        for _ in range(2 + (n == 1)):
            dist.all_reduce(x)
        if n == 1:
            then(x, other)

    return program


@pytest.mark.parametrize("synchronize", [torch.cuda.synchronize, torch.accelerator.synchronize])
def test_a_synchronize_waits_for_calls_that_nobody_waits_for(synchronize):
    def program(n):
        dist.barrier()  # the first call waits for the others, to connect them
        x = torch.full((3,), n + 1.0, device="cuda")
        dist.all_reduce(x, async_op=True)
        synchronize()
        return x.tolist()

    assert run(program) == [[3.0] * 3] * 2


def event(x, other):
    torch.cuda.current_stream().record_event().synchronize()


READS = {
    "item": lambda x, other: x[0].item(),
    "tolist": lambda x, other: x.tolist(),
    "print": lambda x, other: print(x),
    "another_tensor": lambda x, other: print(other),
    "computed": lambda x, other: (x * 2).cpu(),
    "bool": lambda x, other: bool(x[0] > 1),
    "format": lambda x, other: f"{x[0]:.1f}",
    "nonzero": lambda x, other: x.nonzero(),
    "mask": lambda x, other: x[x > 1],
    "to_device": lambda x, other: torch.ones(3).cuda(),
    "not_blocking": lambda x, other: x.to("cpu", non_blocking=True),
    "copy": lambda x, other: torch.empty(3).copy_(x),
    "synchronize": lambda x, other: torch.cuda.synchronize(),
    "accelerator": lambda x, other: torch.accelerator.synchronize(),
    "stream": lambda x, other: torch.cuda.current_stream().synchronize(),
    "event": event,
    "barrier": lambda x, other: dist.barrier(),
    "object": lambda x, other: dist.all_gather_object([None] * 2, 1),
    "timeout": lambda x, other: dist.all_reduce(other, async_op=True).wait(timedelta(seconds=5)),
    "save": lambda x, other: torch.save(x, "/dev/null"),
    "destroy": lambda x, other: dist.destroy_process_group(),
    "clip": lambda x, other: torch.nn.utils.clip_grad_norm_([], 1.0).item() or x.sum().item(),
}
GOES_ON = {
    "nothing": lambda x, other: None,
    "computes": lambda x, other: (x * 2 + other).sum(),
    "shape": lambda x, other: (x.shape, x.device, x.data_ptr(), torch.cuda.memory_allocated()),
    "on_the_host": lambda x, other: torch.ones(3).sum().item(),
    "another_call": lambda x, other: dist.all_reduce(other),
    "asynchronous": lambda x, other: dist.all_reduce(other, async_op=True).wait(),
    "made": lambda x, other: torch.zeros(4, device="cuda"),
    "to_device_without_waiting": lambda x, other: torch.ones(3).pin_memory().to("cuda", non_blocking=True),
    "event": lambda x, other: torch.cuda.Event().record(),
}


@pytest.mark.parametrize("then", READS)
def test_what_makes_the_host_wait_stands(then):
    error = error_of(one_more(READS[then]))
    assert isinstance(error, Deadlock), error
    assert "all_reduce SUM [3] float32, call 3" in str(error)
    assert "2 times and ended; rank 1 came for the 3rd time" in str(error) or then in (
        "barrier",
        "object",
        "timeout",
    )


@pytest.mark.parametrize("then", GOES_ON)
def test_what_does_not_wait_goes_on_to_the_end(then):
    error = error_of(one_more(GOES_ON[then]))
    assert isinstance(error, faults.Unmet), error
    assert "unequal numbers of batches" in str(error)
    assert "exit code 0" in str(error)
    assert error.report.fault == "uneven_inputs"


def test_the_line_that_reads_is_told_beside_the_call():
    def program(n):
        x = torch.ones(3, device="cuda")
        for _ in range(2 + (n == 1)):
            dist.all_reduce(x)  # the call
        return x.sum().item()  # the read

    text = str(error_of(program))
    first = program.__code__.co_firstlineno
    assert f"test_enqueued.py:{first + 3} in " in text
    assert f"the host at test_enqueued.py:{first + 4} in " in text
    assert "`return x.sum().item()  # the read`" in text


def test_nothing_of_an_unmet_call_is_ever_seen_though_the_error_is_caught(capsys):
    def program(n):
        x = torch.ones(3, device="cuda")
        for _ in range(2 + (n == 1)):
            dist.all_reduce(x)
        for _ in range(2 if n else 0):
            with pytest.raises(Deadlock):
                x.tolist()

    run(program, to_end=False)


def test_with_blocking_wait_the_call_itself_stands(monkeypatch):
    monkeypatch.setenv("TORCH_NCCL_BLOCKING_WAIT", "1")
    error = error_of(one_more(GOES_ON["nothing"]))
    assert isinstance(error, Deadlock)
    assert "the host at" not in str(error)


def test_blocking_wait_is_read_as_the_group_is_made():
    def program(n):
        os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"
        one_more(GOES_ON["nothing"])(n)

    assert not isinstance(error_of(program), Deadlock)


@pytest.mark.parametrize("device_id", [False, True])
@pytest.mark.parametrize("size", [3, 2**21])
@pytest.mark.parametrize("first", ["send", "isend", "irecv"])
def test_a_ring_whose_ranks_all_begin_alike_stands_at_any_size(first, size, device_id):
    """pytorch#108378: the first message of two ranks makes their communicator, in the call."""

    def program(n):
        x = torch.ones(size, device="cuda")
        dist.all_reduce(torch.ones(1, device="cuda"))
        getattr(dist, first)(x, (n + (1 if "send" in first else 2)) % 3)

    error = error_of(program, ranks=3, device_id=device_id)
    assert isinstance(error, Deadlock)
    assert "watchdog does not see that" in str(error)


def test_a_first_collective_that_is_asynchronous_waits_for_all_in_the_call():
    def program(n):
        if n == 0:
            dist.all_reduce(torch.ones(1, device="cuda"), async_op=True)

    assert isinstance(error_of(program), Deadlock)


def test_the_second_send_does_not_wait_for_its_receiver():
    """pytorch#129341: the first send waits, those after it do not."""
    went_on = []

    def program(n):
        x = torch.ones(2**21, device="cuda")
        store = dist.distributed_c10d._get_default_store()
        if n == 0:
            dist.send(x, 1)
            dist.send(x, 1)
            went_on.append(True)
            store.set("sent", "1")
        else:
            dist.recv(x, 0)
            store.get("sent")
            dist.recv(x, 0)
            assert x.sum().item() == 2**21

    run(program)
    assert went_on


def test_others_may_wait_for_what_comes_behind_a_collective():
    """A GPU would have the sum by then, so the rank that went on reads it."""

    def program(n):
        x = torch.full((2,), n + 1.0, device="cuda")
        dist.all_reduce(torch.ones(1, device="cuda"))
        store = dist.distributed_c10d._get_default_store()
        if n == 1:
            store.get("key")
        dist.all_reduce(x)
        if n == 0:
            store.set("key", "1")
        return x.tolist()

    assert run(program) == [[3.0, 3.0]] * 2


def test_what_was_computed_before_the_others_came_is_refused():
    def program(n):
        x = torch.full((2,), n + 1.0, device="cuda")
        dist.all_reduce(torch.ones(1, device="cuda"))
        store = dist.distributed_c10d._get_default_store()
        if n == 1:
            store.get("key")
        dist.all_reduce(x)
        if n == 0:
            y = x * 2
            store.set("key", "1")
            return y.tolist()

    text = str(error_of(program))
    assert "rank 0 has computed with the result" in text
    assert "[2] float32" in text


def test_a_call_behind_one_that_nobody_joins_gives_no_sum():
    """Two groups in another order: each GPU stands in its first call, and the second of neither begins."""

    def program(n):
        groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
        for group in groups:
            dist.all_reduce(torch.ones(1, device="cuda"), group=group)
        for group in groups if n else groups[::-1]:
            x = torch.ones(2, device="cuda")
            dist.all_reduce(x, group=group)
        return x.tolist()

    assert "different groups" in str(error_of(program))


def test_ddp_reads_bucket_indices_on_the_host():
    """reducer.cpp, sync_bucket_indices: a rank that has only one batch is missed in the second forward."""

    def program(n):
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1).cuda())
        for _ in range(1 + (n == 0)):
            model(torch.ones(3, 2, device="cuda")).sum().backward()

    assert isinstance(error_of(program), Deadlock)


def test_gloo_waits_on_the_host():
    def work(rank):
        dist.init_process_group("gloo")
        for _ in range(2 + rank.number):
            dist.all_reduce(torch.ones(1))

    with World(2) as world, pytest.raises(RanksFailed) as caught:
        world.run(work)
    assert isinstance(caught.value.error, Deadlock)


def test_the_next_run_of_the_same_ranks_begins_anew():
    with World(2) as world:

        def begin(rank):
            torch.cuda.set_device(rank.local)
            dist.init_process_group("nccl")

        def work(rank):
            x = torch.ones(1, device="cuda")
            for _ in range(2 + rank.number * uneven):
                dist.all_reduce(x)
            return x.item() if not uneven else None

        world.run(begin)
        uneven = True
        with pytest.raises(RanksFailed):
            world.run(work)
        uneven = False
        assert world.run(work) == [4.0, 4.0]
