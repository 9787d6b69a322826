"""The store of ranks in one process: against PyTorch's own, and how they wait at it."""

import gc
import time
from datetime import timedelta

import pytest
import torch.distributed as dist

from labkit_ranks.threads.store import SharedStore
from labkit_ranks.threads.world import RanksFailed, World


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
    assert "rank 1  waits in store.wait('default_pg/0//never') at test_store.py:" in str(error)
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
