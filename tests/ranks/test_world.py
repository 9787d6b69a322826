"""Ranks in one process: they meet, they fail, they are told when nobody can go on, and they begin anew."""

import gc
import os
import signal
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import labkit
from labkit import turns
from labkit.turns import Deadlock
from labkit_ranks.rank.rank import current_thread_rank
from labkit_ranks.threads import waiting
from labkit_ranks.threads.store import SharedStore
from labkit_ranks.threads.world import RanksFailed, World

N = 4


def begin() -> int:
    """What every script begins with; returns the rank."""
    if not dist.is_initialized():
        dist.init_process_group("nccl")
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    return dist.get_rank()


def ones(*shape):
    return torch.ones(*shape, device="cuda")


def add(rank):
    begin()
    x = ones(2) * rank.number
    dist.all_reduce(x)
    return x.tolist()


@pytest.fixture
def world():
    with World(N) as made:
        made.run(lambda rank: begin())
        yield made


def test_each_has_its_own_place(world):
    def look(rank):
        return (
            rank.number, os.environ["RANK"], str(ones(1).device), dist.get_world_size(), current_thread_rank() is rank,
        )  # fmt: skip

    assert world.run(look) == [(k, str(k), f"cuda:{k}", N, True) for k in range(N)]
    assert "RANK" not in os.environ
    assert current_thread_rank() is None
    assert not dist.is_initialized()


def test_a_sum(world):
    assert world.run(add) == [[6.0, 6.0]] * N


def test_a_rank_that_raises_ends_the_others(world):
    ended = []

    def fail(rank):
        if rank.number == 2:
            raise ValueError("boom")
        try:
            dist.all_reduce(ones(3))
        finally:
            ended.append(rank.number)

    with pytest.raises(RanksFailed, match="boom") as caught:
        world.run(fail)
    assert list(caught.value.errors) == [2]
    assert sorted(ended) == [0, 1, 3]


def test_each_runs_up_to_its_own_next_wait_though_another_has_failed(world):
    ran = []

    def fail(rank):
        ran.append(("first", rank.number))
        dist.all_reduce(ones(3))
        ran.append(("second", rank.number))
        if rank.number == 3:
            raise ValueError("boom")
        dist.barrier()
        ran.append(("third", rank.number))

    with pytest.raises(RanksFailed, match="boom"):
        world.run(fail)
    assert sorted(ran) == [(what, number) for what in ("first", "second") for number in range(4)]


def test_who_is_to_be_ended_waits_for_nothing_more_and_fails_on_its_own_behalf(world):
    ended = []

    def fail(rank):
        if rank.number == 1:
            raise ValueError("boom")
        if rank.number == 2:
            raise KeyError("of rank 2")
        try:
            while True:  # it looks again and again, and would for ever
                dist.distributed_c10d._get_default_store().check(["never"])
        finally:
            ended.append(rank.number)

    with pytest.raises(RanksFailed, match="boom") as caught:
        world.run(fail)
    assert {number: type(error) for number, error in caught.value.errors.items()} == {
        1: ValueError,
        2: KeyError,
    }
    assert sorted(ended) == [0, 3]


def test_a_deadlock_is_raised_in_one(world):
    def stuck(rank):
        if rank.number:
            dist.all_reduce(ones(3))

    with pytest.raises(RanksFailed, match="no rank can go on") as caught:
        world.run(stuck)
    assert len(caught.value.errors) == 1
    assert isinstance(caught.value.error, Deadlock)
    assert "ranks 1–3  wait for rank 0 in all_reduce" in str(caught.value.error)


@pytest.mark.parametrize("busy", [False, True])
def test_a_timeout_is_that_of_the_clocks(world, busy):
    def late(rank):
        group = dist.new_group(timeout=timedelta(seconds=0.2))
        if rank.number == 1:
            if busy:
                while True:
                    pass
            time.sleep(60)
        dist.all_reduce(ones(3), group=group)

    with pytest.raises(RanksFailed, match="Watchdog caught collective operation timeout") as caught:
        world.run(late)
    assert caught.value.rank != 1


def test_who_is_told_that_time_is_over_does_not_end_the_one_that_tells(world, monkeypatch):
    asked = []

    class Waiter:
        def wait(self, ready, what, inside, patience):
            asked.append((ready(), patience()))

    monkeypatch.setattr(turns, "current_task", Waiter)
    monkeypatch.setattr(waiting, "current_thread_rank", lambda: world.ranks[0])
    world.ranks[1].wait_until(world.ranks[0].clock() + 60)
    for told in (True, False):
        waiting.wait_for_ranks(None, lambda told=told: told, timedelta(seconds=0.2), lambda: world.ranks[1:])
    assert asked == [(True, True), (True, False)]


def test_others_go_on_while_one_sleeps_and_clocks_run_side_by_side(world):
    order = []

    def nap(rank):
        for _ in range(1000 if rank.number == 0 else 0):
            if len(order) == N - 1:
                break
            time.sleep(0.01)
        order.append(rank.number)
        came = rank.clock()
        dist.barrier()
        return came, rank.clock()

    clocks = world.run(nap)
    assert order[-1] == 0
    assert clocks[0][0] >= 0.01
    assert min(after for _, after in clocks) >= max(came for came, _ in clocks)


def test_a_place_that_cannot_be_entered_ends_the_run(world, monkeypatch):
    def refuse():
        raise KeyError("no such place")

    monkeypatch.setattr(world.ranks[2].state, "enter", refuse)
    with pytest.raises(RanksFailed, match="no such place") as caught:
        world.run(add)
    assert caught.value.rank == 2
    monkeypatch.undo()
    assert world.run(add) == [[6.0, 6.0]] * N


def test_a_small_message_is_on_its_way_when_its_sender_goes_on(world):
    def exchange(rank):
        size = 2**21 if large else 2  # 8 MiB are more than NCCL's buffer
        got = torch.zeros(size, device="cuda")
        if rank.number < 2:
            value = torch.full((size,), float(rank.number), device="cuda")
            dist.send(value, 1 - rank.number)
            value.fill_(9)
            dist.recv(got, 1 - rank.number)
        return got[0].item()

    large = False
    assert world.run(exchange)[:2] == [1.0, 0.0]
    large = True
    with pytest.raises(RanksFailed, match="send"):
        world.run(exchange)


def test_nodes_have_gpus_of_their_own():
    def look(rank):
        begin()
        x = torch.empty(2**20, dtype=torch.uint8, device="cuda")
        dist.all_reduce(x)
        return str(x.device), torch.cuda.device_count(), torch.cuda.memory_allocated()

    with World(4, nodes=2) as made:
        assert made.run(look) == [(f"cuda:{k}", 2, 2**20) for k in (0, 1, 0, 1)]
        assert len(made.machine.gpus) == 2


def test_nothing_is_left_behind():
    threads_before = set(threading.enumerate())
    before = dict(os.environ), dist.distributed_c10d._world, time.sleep
    with World(N) as made:
        made.run(add)
        threads = [rank._thread for rank in made.ranks]
    for thread in threads:
        thread.join(10)
    assert set(threading.enumerate()) <= threads_before  # those of other tests may just be ending
    assert (dict(os.environ), dist.distributed_c10d._world, time.sleep) == before
    assert not torch.cuda.is_available()


def test_who_asks_for_what_cannot_be():
    with pytest.raises(ValueError, match="nodes must divide"):
        World(4, nodes=3)
    with pytest.raises(ValueError, match="size"):
        World(0)
    with (
        World(2) as world,
        pytest.raises(RanksFailed, match="ranks cannot be started, run or ended by a rank"),
    ):
        world.run(lambda rank: World(2))


def error_of_a_thread(function, limit=None):
    """The error that ``function()`` raises in a thread of this rank, which joins it, by ``limit`` seconds each time."""
    errors = []

    def call():
        try:
            function()
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    while thread.is_alive():
        thread.join(limit)
    return errors[0]


def test_a_thread_of_a_rank_does_not_wait_for_ever(world):
    def aside(rank):
        if rank.number != 2:
            x = torch.ones(1, device=f"cuda:{rank.number}")
            raise error_of_a_thread(lambda: dist.all_reduce(x))

    with pytest.raises(RanksFailed) as caught:
        world.run(aside)
    assert isinstance(caught.value.error, Deadlock)
    assert "  ranks 0, 1, 3  wait for rank 2 in all_reduce " in str(caught.value.error)


def test_a_thread_cannot_join_itself(world):
    def aside(rank):
        with pytest.raises(RuntimeError, match="cannot join current thread"):
            threading.current_thread().join(0.01)

    world.run(aside)


def rest():
    threading.Event().wait(0.3)


def rest_aside():
    thread = threading.Thread(target=rest)
    thread.start()
    return thread


@pytest.mark.parametrize(("by_thread", "before"), [
    (False, rest), (True, rest), (False, lambda: rest_aside().join(0.1)),
    (False, lambda: rest_aside().join()),
], ids=["its main thread, later", "a thread, later", "after a join with a limit", "after a join"])  # fmt: skip
def test_a_thread_waits_for_ranks_that_come_later(world, monkeypatch, by_thread, before):
    monkeypatch.setattr(waiting, "_LONG", 5)

    def aside(rank):
        x = torch.full((1,), float(rank.number), device=f"cuda:{rank.number}")

        def reduce():
            if rank.number == 1:
                before()
            dist.all_reduce(x)

        if rank.number == 1 and not by_thread:
            reduce()
            return x.item()
        thread = threading.Thread(target=reduce)
        thread.start()
        while thread.is_alive():
            thread.join(0.05 if rank.number else None)
        return x.item()

    assert world.run(aside) == [6.0] * N


def test_threads_that_wait_for_each_other_are_told(world, monkeypatch):
    monkeypatch.setattr(waiting, "_LONG", 5)

    def aside(rank):
        groups = [dist.new_group(range(N)) for _ in range(2)]
        x = torch.ones(1, device=f"cuda:{rank.number}")
        raise error_of_a_thread(lambda: dist.all_reduce(x, group=groups[rank.number % 2]))

    with pytest.raises(RanksFailed) as caught:
        world.run(aside)
    assert isinstance(caught.value.error, Deadlock)
    assert "They wait in calls of different groups" in str(caught.value.error)


def test_a_thread_waits_no_longer_than_it_says(world):
    def aside(rank):
        if rank.number != 2:
            x = torch.ones(1, device=f"cuda:{rank.number}")
            late = timedelta(milliseconds=40)
            # Who looks now and then is dead to nobody.
            raise error_of_a_thread(lambda: dist.all_reduce(x, async_op=True).wait(late), limit=0.01)

    with pytest.raises(RanksFailed, match="timeout"):
        world.run(aside)


def test_a_peer_that_does_not_exist(world):
    def send(rank):
        dist.send(ones(1), N)

    with pytest.raises(RanksFailed, match="invalid root 4"):
        world.run(send)


def test_an_interrupt_is_raised_in_each_rank(world):
    saved, caller = [], threading.get_ident()

    def loop(rank):
        try:
            for step in range(10**6):
                dist.all_reduce(ones(1))
                if rank.number == 0 and step == 3:
                    signal.pthread_kill(caller, signal.SIGINT)
        except KeyboardInterrupt:
            saved.append((rank.number, current_thread_rank() is rank, os.environ["RANK"]))
            raise

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a run in the background ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            world.run(loop, interrupts=True)
    finally:
        signal.signal(signal.SIGINT, before)
    assert sorted(saved) == [(k, True, str(k)) for k in range(N)]
    assert world.run(add) == [[6.0, 6.0]] * N


def test_a_message_from_anybody_may_be_asked_for_first():
    def ask(rank):
        dist.init_process_group("gloo")
        x = torch.full((1,), float(rank.number))
        if rank.number == 0:
            return dist.recv(x), x.item()  # before rank 3 has had a turn
        if rank.number == 3:
            dist.send(x, 0)
        return None

    with World(N) as world:
        assert world.run(ask)[0] == (3, 3.0)


def test_default_groups_of_several_addresses_are_several():
    def work(rank):
        torch.cuda.set_device(rank.local)
        team, number = divmod(rank.number, 2)
        dist.init_process_group(
            "nccl", init_method=f"tcp://127.0.0.1:{29700 + team}", rank=number, world_size=2
        )
        x = torch.tensor([10.0**rank.number], device="cuda")
        dist.all_reduce(x)
        pair = dist.new_group([0, 1])
        dist.all_reduce(x, group=pair)
        if rank.number == 2:
            dist.barrier()
        return x.item()

    with World(4) as world:
        with pytest.raises(RanksFailed) as failed:
            world.run(work)
        assert "waits for rank 3 in barrier" in str(failed.value)
        assert [rank.result for rank in world.ranks] == [22.0, 22.0, None, 2200.0]


def test_a_tensor_of_a_node_that_is_gone_is_refused_and_one_of_the_machine_is_not(one_gpu):
    kept = {}

    def keep(rank):
        torch.cuda.set_device(rank.local)
        kept[rank.number] = torch.ones(3, device="cuda")

    with World(2, nodes=2) as world:
        world.run(keep)
    assert (kept[0] + 1).tolist() == [2, 2, 2]
    with pytest.raises(RuntimeError, match="not the machine in use"):
        kept[1] + 1
    assert kept[1].cpu().tolist() == [1, 1, 1]


def test_ranks_that_cannot_be_made_leave_the_machine_that_they_found_as_it_was(monkeypatch):
    def fails(self):
        raise RuntimeError("not made")

    with labkit.simulate(gpus=2) as machine:
        monkeypatch.setattr("labkit_ranks.threads.operator_libraries.OperatorLibraries.patches", fails)
        with pytest.raises(RuntimeError, match="not made"):
            World(2)
        monkeypatch.undo()
        assert machine._layers == []
        with World(2) as world:
            assert world.run(lambda rank: begin()) == [0, 1]


def used(store):
    """What a store answers to a bit of everything."""
    store.set("a", "1")
    said = [
        store.get("a"), store.add("a", 4), store.add("n", 2), store.get("a"),
        store.compare_set("a", "9", "x"), store.compare_set("a", "5", "x"), store.get("a"),
        store.compare_set("new", "", "y"), store.compare_set("none", "z", "y"), store.check(["none"]),
        store.check(["a", "n"]), store.delete_key("n"), store.delete_key("n"), store.check(["n"]),
    ]  # fmt: skip
    store.append("a", "more")
    store.multi_set(["k", "l"], ["3", "4"])
    said += [store.get("a"), store.multi_get(["k", "l"]), store.check(["none"])]
    said += [store.has_extended_api()]
    other = store.clone()
    other.set("a", "theirs")
    return [*said, store.get("a"), other.num_keys(), store.num_keys()]


def test_it_answers_as_pytorchs_own():
    real = dist.HashStore()
    assert used(SharedStore(dist.HashStore())) == used(real)


def test_its_queues_are_refused_by_pytorch():
    for store in (SharedStore(dist.HashStore()), dist.PrefixStore("of", SharedStore(dist.HashStore()))):
        with pytest.raises(NotImplementedError, match="queue support"):
            store.queue_push("q", "first")


def test_a_wait_ends_when_its_own_time_is_over():
    def work(rank):
        dist.init_process_group("nccl")
        store = dist.distributed_c10d._get_default_store()
        if rank.number == 1:
            time.sleep(60)
        else:
            store.wait(["never"], timedelta(seconds=0.2))

    with World(2) as world, pytest.raises(RanksFailed, match="wait timeout after 200ms"):
        world.run(work)


def test_who_waits_for_a_key_that_nobody_sets_is_told_so():
    def work(rank):
        dist.init_process_group("nccl")
        if rank.number:
            dist.distributed_c10d._get_default_store().wait(["never"])
        dist.barrier()

    with World(2) as world, pytest.raises(RanksFailed) as failed:
        world.run(work)
    error = failed.value.error
    assert "rank 1  waits in store.wait('default_pg/0//never') at test_world.py:" in str(error)
    assert "The keys in the store are never set" in str(error)
    assert [(wait.call, wait.waits_for) for wait in error.waits.ranks] == [
        ("barrier", (1,)),
        ("store.wait", ()),
    ]


def test_a_store_that_only_cpp_holds_is_still_there():
    def work(rank):
        store = dist.PrefixStore("mine", dist.TCPStore("localhost", 1234, 2, rank.number == 0))
        gc.collect()
        store.set(f"{rank.number}", "here")
        return store.get(f"{1 - rank.number}")

    with World(2) as world:
        assert world.run(work) == [b"here", b"here"]
