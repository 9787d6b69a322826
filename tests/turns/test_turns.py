"""Taking turns without a machine: who runs when, meetings, deadlocks, and that nobody is left behind."""

import asyncio
import signal
import subprocess
import sys
import threading
import time
import weakref

import pytest
from jupyter_core.utils import run_sync

from labkit import turns
from labkit.base.language import using
from labkit.turns import Deadlock, TaskGroup, current_task

pytestmark = pytest.mark.timeout(30)


def names(count):
    return [f"rank {at}" for at in range(count)]


class Meeting:
    """A barrier made of turns alone: nobody goes on before ``parties`` have come."""

    def __init__(self, parties):
        self.parties, self.came = parties, 0

    def join(self):
        self.came += 1
        needed = -(-self.came // self.parties) * self.parties
        if self.came < needed:
            current_task().wait(lambda: self.came >= needed, f"the meeting of {self.parties}")


@pytest.mark.parametrize(("order", "expected"), [(None, [0, 1, 2, 3]), ([2, 0, 5, 3, 1, 4], [2, 0, 3, 1])])
def test_in_order_and_in_the_callers_thread(order, expected):
    seen = []

    def call(at):
        seen.append((at, threading.current_thread()))
        return at * at

    assert TaskGroup(names(4), order).run([lambda at=at: call(at) for at in range(4)]) == [0, 1, 4, 9]
    assert seen == [(at, threading.current_thread()) for at in expected]


def test_the_example_of_the_docstring():
    box, seen = [], []

    def first():
        seen.append("a")
        assert current_task().wait(lambda: box, "the box")
        seen.append("d")

    task_group = TaskGroup(["first", "second", "third"])
    task_group.run([first, lambda: (seen.append("b"), box.append(1)), lambda: seen.append("c")])
    assert seen == ["a", "b", "c", "d"]
    assert task_group.scheduler.switches == 3
    assert current_task() is None


def test_who_has_waited_keeps_nothing_of_it():
    class Box(list):
        pass

    seen, boxes = [], []

    def first():
        box = Box()
        boxes.append(box)
        current_task().wait(lambda box=box: len(box) > 0, "the box")
        known = weakref.ref(box)
        boxes.clear()
        del box
        seen.append(known())

    TaskGroup(["first", "second"]).run([first, lambda: boxes[0].append(1)])
    assert seen == [None]


def test_four_ranks_meet_the_same_way_every_time():
    def once():
        seen, meeting = [], Meeting(4)

        def rank(at):
            for step in range(3):
                seen.append((step, at))
                meeting.join()

        TaskGroup(names(4)).run([lambda at=at: rank(at) for at in range(4)])
        return seen

    first = once()
    assert sorted(first) == [(step, at) for step in range(3) for at in range(4)]
    assert [step for step, _ in first] == sorted(
        step for step, _ in first
    )  # nobody leaves before all have come
    assert first[:4] == [(0, at) for at in range(4)]
    assert all(once() == first for _ in range(99))


@pytest.mark.parametrize(("language", "has_ended"), [("en", "rank 2 has ended"), ("zh", "rank 2 已经结束")])
def test_one_that_never_comes_is_named_at_once(language, has_ended):
    meeting = Meeting(4)
    functions = [meeting.join, meeting.join, lambda: None, meeting.join]
    with using(language), pytest.raises(Deadlock) as caught:
        TaskGroup(names(4)).run(functions)
    lines = str(caught.value).splitlines()[1:5]
    assert [line.split()[1] for line in lines] == ["0", "1", "2", "3"]
    assert has_ended in lines.pop(2)
    assert all("the meeting of 4" in line for line in lines)


def test_each_of_a_deadlock_may_mend_it():
    told = []

    def stuck(at):
        try:
            current_task().wait(lambda: False, "nothing")
        except Deadlock:
            told.append(at)
        return at

    assert TaskGroup(names(3)).run([lambda at=at: stuck(at) for at in range(3)]) == [0, 1, 2]
    assert sorted(told) == [0, 1, 2]


def test_a_notebook_clients_threads_are_no_help():
    """nbclient leaves a loop of its own behind, with asyncio's helpers: whoever runs notebooks still hears at once."""

    async def inside():
        return await asyncio.get_running_loop().run_in_executor(None, threading.current_thread)

    async def outside():
        return run_sync(inside)()  # in a loop that runs already: a thread is started for another, and stays

    found = []  # in a thread of its own: this one may be in a loop already, as under a browser's tests
    client = threading.Thread(target=lambda: found.append(asyncio.run(outside())))
    client.start()
    client.join()
    assert found[0].is_alive()
    with pytest.raises(Deadlock):
        TaskGroup(names(2)).run([lambda: current_task().wait(lambda: False, "nothing")] * 2)


def test_a_thread_that_waits_for_a_child_of_asyncio_is_no_help():
    """A browser's driver is such a child: with it alive, no deadlock was told, and the call hung."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    threading.Thread(name="waitpid-0", target=child.wait, daemon=True).start()
    try:
        with pytest.raises(Deadlock):
            TaskGroup(names(2)).run([lambda: current_task().wait(lambda: False, "nothing", inside=False)] * 2)
    finally:
        child.communicate(b"\n")


def test_no_alarm_where_a_thread_outside_could_help(monkeypatch):
    monkeypatch.setattr(turns.scheduler, "_POLL_SECONDS", 1000)  # they do not look again by themselves
    box, ready = [], threading.Event()

    def outside():
        ready.wait(30)
        box.append(1)
        turns.wake_stalled()

    helper = threading.Thread(target=outside)
    helper.start()

    def first():
        ready.set()
        return current_task().wait(lambda: box, "the box")

    assert TaskGroup(names(2)).run([first, lambda: current_task().wait(lambda: box, "the box")]) == [
        True,
        True,
    ]
    helper.join()


def test_no_alarm_before_the_caller_has_heard_that_the_one_it_waits_for_is_over(monkeypatch):
    box, result, join = [], [], turns.ScheduledTask.join

    def late(self, timeout=None):
        over = join(self, timeout)
        while not turns.stalled:
            time.sleep(0.001)
        return over

    def begin(function):
        return lambda: threading.Thread(target=lambda: task_group.run_task(tasks[function], function)).start()

    def second():
        result.append(current_task().wait(lambda: box, "the box"))

    task_group = TaskGroup()
    tasks = {
        function: task_group.add(name, begin(function))
        for name, function in (("first", list), ("second", second))
    }
    task_group.start()
    with monkeypatch.context() as patch:
        patch.setattr(turns.ScheduledTask, "join", late)
        assert task_group.wait_for(tasks[list])
    box.append(1)
    turns.wake_stalled()
    assert task_group.wait_for(tasks[second])
    assert result == [True]


def test_the_users_time_ends_a_wait_and_no_alarm_comes_before():
    def first():
        return current_task().wait(lambda: False, "nothing", timeout=0.01)

    assert TaskGroup(names(2)).run([first, first]) == [False, False]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_what_one_raises_ends_the_others(error):
    seen, ended = [], threading.Event()

    def waits():
        try:
            current_task().wait(lambda: False, "nothing")
        except turns.TaskEnded:
            ended.set()
            raise

    def fails():
        seen.append(1)
        raise error

    with pytest.raises(error):
        TaskGroup(names(3)).run([waits, fails, lambda: seen.append(2)])
    assert seen == [1]
    assert ended.wait(30)
    assert not turns.stalled
    assert current_task() is None
    assert TaskGroup(names(1)).run([lambda: 5]) == [5]


def test_of_several_that_race_and_fail_the_first_is_raised():
    def fails(at):
        raise ValueError(f"number {at}")

    with pytest.raises(ValueError, match="number 1"):
        turns.run_together(names(3), [int, lambda: fails(1), lambda: fails(2)])


class Watch:
    """Counts who is inside."""

    inside = 0

    def __enter__(self):
        self.inside += 1

    def __exit__(self, *exc_info):
        self.inside -= 1


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals")
def test_an_interrupted_call_is_not_watched_though_one_of_it_is_stuck():
    watch, stuck, seen, caller = Watch(), threading.Lock(), [], threading.get_ident()
    stuck.acquire()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupts():
        while not task_group.scheduler.awaited:
            time.sleep(0.001)
        signal.pthread_kill(caller, signal.SIGINT)
        # Python misses a signal that comes just before it falls asleep on a lock: once more, then.
        while not stuck.acquire(timeout=2) and not seen:
            signal.pthread_kill(caller, signal.SIGINT)

    thread = threading.Thread(target=lambda: task_group.run_task(task, interrupts), daemon=True)
    task_group = TaskGroup(watch=watch)
    task, _ = task_group.add("first", thread.start), task_group.add("second", int)
    try:
        task_group.start()
        assert watch.inside == 1
        with pytest.raises(KeyboardInterrupt):
            task_group.wait_for(task)
        seen.append(watch.inside)
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [0]
    assert thread.is_alive()
    stuck.release()
    thread.join()


def test_whom_a_participant_calls_has_its_turn_before_the_next():
    seen, box = [], []

    def inner(at):
        seen.append(f"1.{at}")
        if at == 0:
            current_task().wait(lambda: box, "the box")
            seen.append("1.0 again")

    def outer(at):
        seen.append(f"{at}")
        if at == 1:
            TaskGroup(names(2)).run([lambda k=k: inner(k) for k in range(2)])
            seen.append("1 again")
        if at == 2:
            box.append(1)

    TaskGroup(names(3)).run([lambda at=at: outer(at) for at in range(3)])
    assert seen == ["0", "1", "1.0", "1.1", "2", "1.0 again", "1 again"]


def test_what_fails_inside_ends_those_inside_alone():
    seen = []

    def inner():
        current_task().wait(lambda: False, "nothing")

    def outer(at):
        if at == 0:
            with pytest.raises(ZeroDivisionError):
                TaskGroup(names(3)).run([inner, lambda: 1 // 0, inner])
        seen.append(at)

    TaskGroup(names(2)).run([lambda at=at: outer(at) for at in range(2)])
    assert seen == [0, 1]


def test_what_fails_ends_those_too_whom_others_called():
    ended = []

    def inner():
        try:
            current_task().wait(lambda: False, "nothing")
        except BaseException as error:
            ended.append(type(error))
            raise

    def outer(at):
        if at == 0:
            with pytest.raises(ZeroDivisionError):
                TaskGroup(names(2)).run([lambda: TaskGroup(names(2)).run([inner, inner]), lambda: 1 // 0])
            while len(ended) < 2:
                time.sleep(0.001)

    TaskGroup(names(2)).run([lambda at=at: outer(at) for at in range(2)])
    assert ended == [turns.TaskEnded, turns.TaskEnded]


def test_the_context_is_entered_where_the_thread_is_not_the_callers():
    box, threads, caller = [], [], threading.current_thread()

    class Context:
        def __enter__(self):
            threads.append(threading.current_thread())

        def __exit__(self, *exc_info):
            pass

    TaskGroup(names(2)).run(
        [lambda: current_task().wait(lambda: box, "the box"), lambda: box.append(1)], Context
    )
    assert len(threads) == 1
    assert threads != [caller]


def test_one_whose_thread_cannot_be_started_fails_and_the_next_goes_on():
    task_group, done = TaskGroup(), []

    def begin(name):
        def act():
            if name == "second":
                raise RuntimeError("can't start new thread")
            threading.Thread(
                target=task_group.run_task, args=(tasks[name], lambda: done.append(name))
            ).start()

        return act

    tasks = {name: task_group.add(name, begin(name)) for name in ("first", "second", "third")}
    task_group.start()
    assert all(map(task_group.wait_for, [*tasks.values()]))
    assert done == ["first", "third"]
    assert str(tasks["second"].failure) == "can't start new thread"
    assert tasks["third"].failure is None


def in_threads(*functions):
    """A task group with a task, in its own thread, for each function."""
    task_group = TaskGroup()

    def started(at, function):
        thread = threading.Thread(
            target=lambda: task_group.run_task(task_group.tasks[at], function), daemon=True
        )
        return task_group.add(f"rank {at}", thread.start)

    return task_group, [started(at, function) for at, function in enumerate(functions)]


@pytest.mark.parametrize("interrupts", [False, True])
def test_a_waking_task_takes_its_turn_before_it_is_ended(interrupts):
    """Others may have waited too long, as it has; an interrupt meets it when it has come, and it alone."""
    over, heard = [], []

    def impatient():
        try:
            current_task().wait(lambda: bool(over), "a friend")
        except KeyboardInterrupt:
            assert interrupts
        heard.append(1)

    def patient():
        current_task().wait(lambda: bool(heard), "the end")
        heard.append(2)

    task_group, (first, second) = in_threads(impatient, patient)

    def slowly():  # not before the scheduler is free
        with task_group.scheduler:
            pass

    first.on_turn = slowly
    task_group.start()
    while second.waits_for != "the end":
        time.sleep(0.001)
    with task_group.scheduler:
        over.append(1)
        task_group.scheduler.run_next()
        assert task_group.scheduler.running is first
        if interrupts:
            first.error = KeyboardInterrupt()
            task_group.scheduler.interrupt_running()
        else:
            task_group.scheduler.end_running()
    assert all(task_group.wait_for(one, 30) for one in (first, second))
    assert heard == [1, 2]


def test_one_that_is_ended_within_the_ring_holds_it_no_more():
    """What ends it may come after it has taken the scheduler's lock, and before it is within."""
    heard = []

    def ended():
        current_task().scheduler.__enter__()
        raise turns.TaskEnded

    task_group, tasks = in_threads(ended, lambda: heard.append(1))
    task_group.start()
    assert all(task_group.wait_for(one, 30) for one in tasks)
    assert heard == [1]
