"""On which core one that was woken goes on."""

import os
import threading

import pytest

from labkit import turns
from labkit.turns import turn

pytestmark = pytest.mark.skipif(
    turn._core() is None or len(os.sched_getaffinity(0)) < 2,
    reason="one core, or threads cannot be sent to one",
)


def test_a_thread_wakes_where_the_other_ran_and_may_then_run_anywhere(monkeypatch):
    """Whoever is woken is sent to the core of the one before; awake, it has all cores again."""
    everywhere, sent, seen = os.sched_getaffinity(0), [], []
    real = os.sched_setaffinity

    def send(thread, to):
        sent.append((thread, set(to)))
        real(thread, to)

    monkeypatch.setattr(os, "sched_setaffinity", send)
    box = []

    def waits():
        turns.participant().wait(lambda: box, "the box")
        seen.append((threading.get_native_id(), os.sched_getaffinity(0)))

    turns.Baton(["first", "second"]).run([waits, lambda: box.append(1)])
    [(thread, may)] = seen
    assert may == everywhere
    [(woken, core), (itself, all_again)] = sent
    assert woken == thread
    assert len(core) == 1
    assert core < everywhere
    assert (itself, all_again) == (0, everywhere)


def test_who_may_run_on_some_cores_only_stays_there():
    sleeper = turn.Sleeper()
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        sleeper.rest()
        sleeper.beckon()
        sleeper.rise()
        assert os.sched_getaffinity(0) == {min(before)}
    finally:
        os.sched_setaffinity(0, before)


def test_who_is_beckoned_before_it_sleeps_does_not_take_that_for_its_own_choice():
    sleeper = turn.Sleeper()
    before = os.sched_getaffinity(0)
    try:
        sleeper.rest()
        sleeper.beckon()
        sleeper.rest()
        assert len(os.sched_getaffinity(0)) == 1
        sleeper.rise()
        assert os.sched_getaffinity(0) == before
    finally:
        os.sched_setaffinity(0, before)


def test_a_thread_that_is_no_more_is_left_alone():
    sleeper = turn.Sleeper()
    thread = threading.Thread(target=sleeper.rest)
    thread.start()
    thread.join()
    before = os.sched_getaffinity(0)
    sleeper.beckon()
    sleeper.rise()
    assert os.sched_getaffinity(0) == before
