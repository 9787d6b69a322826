"""Replicas one after another in one thread, and what happens when one of them waits for another."""

import queue
import threading

import pytest

import labkit
from labkit.base import turns


def test_in_order_and_in_the_callers_thread():
    seen = []
    turns.run_one_by_one(4, lambda at: seen.append((at, threading.current_thread())), pytest.fail)
    assert seen == [(at, threading.current_thread()) for at in range(4)]
    assert not [thread for thread in threading.enumerate() if "watcher" in thread.name]


def test_those_that_have_not_begun_get_threads_when_one_waits():
    box, seen = queue.Queue(), []

    def here(at):
        seen.append(at)
        if at == 1:
            assert {box.get(timeout=30), box.get(timeout=30)} == {2, 3}

    turns.run_one_by_one(4, here, box.put)
    assert seen == [0, 1]


def test_what_a_replica_raises_ends_the_others_turns():
    seen = []

    def here(at):
        seen.append(at)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        turns.run_one_by_one(3, here, pytest.fail)
    assert seen == [0]
    assert not [thread for thread in threading.enumerate() if "watcher" in thread.name]


def test_a_machine_says_whether_replicas_take_turns():
    assert not turns.in_device_order
    with labkit.simulate(gpus=2):
        assert turns.in_device_order
        with labkit.simulate(gpus=2, order="threads"):
            assert not turns.in_device_order
        assert turns.in_device_order
    assert not turns.in_device_order
