"""Threads see the machine; replicas take turns; nothing hangs, nothing is left behind."""

import _thread
import ctypes
import gc
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import labkit
from labkit import turns
from labkit.turns import Deadlock, current_task, locks
from simgpu.state.threads import keep_memory_warm
from tools.warm import python

pytestmark = pytest.mark.timeout(60)  # a hang is seen soon


@pytest.fixture
def no_beat(monkeypatch):
    """Waiting tasks do not poll: releasing something must wake them."""
    monkeypatch.setattr(turns.scheduler, "_POLL_SECONDS", 1000)


@pytest.fixture
def all_wait(monkeypatch):
    """An event that is set when every task waits."""
    event, check = threading.Event(), turns.Scheduler.check_deadlock

    def noted(scheduler):
        check(scheduler)
        if scheduler.running is None and scheduler.live:
            with turns.keep_turn():
                event.set()

    monkeypatch.setattr(turns.Scheduler, "check_deadlock", noted)
    return event


@contextmanager
def beside(function):
    """Run ``function`` in a thread beside the block."""
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    yield
    thread.join()


class Tells(nn.Linear):
    """Notes the device that it runs on, then runs."""

    def __init__(self, log):
        super().__init__(4, 4)
        self.log = log

    def forward(self, x):
        self.log.append(x.device.index)
        return super().forward(x)


def test_every_kind_of_thread_sees_the_machine(gpus):
    class Own(threading.Thread):
        def run(self):
            seen.append(torch.ones(1, device="cuda:1").device.index)

    seen, done = [], threading.Event()
    threads = [Own(), threading.Thread(target=lambda: seen.append(torch.ones(1).cuda(1).get_device()))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with ThreadPoolExecutor(1) as pool:
        seen.append(pool.submit(lambda: (torch.ones(1, device="cuda:1") * 2).device.index).result())
    _thread.start_new_thread(lambda: (seen.append(torch.ones(1).to("cuda:1").device.index), done.set()), ())
    assert done.wait(30)
    assert seen == [1, 1, 1, 1]


def test_a_thread_that_outlives_the_machine_is_left_in_peace():
    go, seen = threading.Event(), []

    def late():
        go.wait(30)
        seen.append((torch.ones(2) + 1).tolist())

    with labkit.simulate(gpus=2):
        thread = threading.Thread(target=late)
        thread.start()
    go.set()
    thread.join()
    assert seen == [[2, 2]]


def test_a_thread_that_outlives_the_machine_sees_the_next():
    with ThreadPoolExecutor(1) as pool:
        for gpus in (2, 3):
            with labkit.simulate(gpus=gpus):
                made = pool.submit(lambda at: torch.ones(1, device=at) * 2, f"cuda:{gpus - 1}").result()
                assert made.device == torch.device("cuda", gpus - 1)


@pytest.mark.parametrize(
    ("order", "expected"), [(None, [0, 1, 2, 3]), ([2, 0, 3, 1], [2, 0, 3, 1]), ([3, 2, 1, 0],) * 2]
)
def test_replicas_run_in_the_order_asked_for(wrap, order, expected):
    with labkit.simulate(gpus=4, order=order):
        log = []
        model = wrap(Tells(log).cuda())
        for _ in range(5):
            output = model(torch.arange(32.0).view(8, 4))
            assert log == expected
            assert output.shape == (8, 4)
            log.clear()


def test_threads_may_race():
    with labkit.simulate(gpus=2, order="threads"):
        meet = threading.Barrier(2, timeout=30)

        class Meets(nn.Linear):
            def forward(self, x):
                meet.wait()  # both must be running at once
                return super().forward(x)

        assert nn.DataParallel(Meets(4, 4).cuda())(torch.ones(4, 4)).shape == (4, 4)


class Fails(nn.Module):
    """Fails on the GPUs it is told to fail on."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.fails = ()

    def forward(self, x):
        if x.device.index in self.fails:
            raise ValueError("bad luck")
        return x * self.weight


def test_a_thousand_calls_with_random_failures_leave_nothing(wrap, gpus):
    chance = random.Random(0)
    model = Fails().cuda()
    call, x = wrap(model), torch.ones(4, 4, device="cuda:0")
    call(x)
    gc.collect()
    before, threads = [torch.cuda.memory_allocated(k) for k in range(2)], threading.active_count()
    failed = 0
    gc.disable()  # what is not freed by reference counts alone stays visible
    try:
        for _ in range(1000):
            model.fails = chance.choice([(), (), (0,), (1,), (0, 1)])
            try:
                call(x)
            except ValueError:
                failed += 1
        if wrap is nn.DataParallel:
            # torch's ExceptionWrapper.reraise keeps the exception in a local: a cycle of PyTorch's own.
            gc.collect()
        assert [torch.cuda.memory_allocated(k) for k in range(2)] == before
    finally:
        gc.enable()
    assert 400 < failed < 800
    assert threading.active_count() <= threads


def held():
    """A lock that is taken."""
    one = threading.Lock()
    one.acquire()
    return one


def entered(one, does):
    """Do that within ``one``."""
    with one:
        does()


def full():
    one = queue.Queue(1)
    one.put(0)
    return one


# What is made, how it is waited for, and how that is given: by functions of Python's, for a bound method of C would be
# taken from its object too early to be seen.
KINDS = {
    "event": (threading.Event, lambda one: one.wait(), lambda one: one.set()),
    "lock": (held, lambda one: one.acquire(), lambda one: one.release()),
    "with lock": (held, lambda one: entered(one, int), lambda one: one.release()),
    "condition": (threading.Condition, lambda one: entered(one, one.wait), lambda one: entered(one, one.notify)),
    "semaphore": (lambda: threading.Semaphore(0), lambda one: one.acquire(), lambda one: one.release()),
    "barrier": (lambda: threading.Barrier(2), lambda one: one.wait(), lambda one: one.wait()),
    "queue": (queue.Queue, lambda one: one.get(), lambda one: one.put(1)),
    "full queue": (full, lambda one: one.put(1), lambda one: one.get()),
    "simple queue": (queue.SimpleQueue, lambda one: one.get(), lambda one: one.put(1)),
    "future": (Future, lambda one: one.result(), lambda one: one.set_result(1)),
}  # fmt: skip


def pair(kind):
    """How one of that kind is waited for and given."""
    make, wait, give = KINDS[kind]
    one = make()
    return partial(wait, one), partial(give, one)


class Hands(nn.Module):
    """Replica 0 waits for what replica 1 gives."""

    def __init__(self, wait, give):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.wait, self.give, self.log = wait, give, []

    def forward(self, x):
        at = x.device.index
        self.log.append(at)
        if at < 2:
            (self.wait, self.give)[at]()
            self.log.append(f"{at} again")
        return x * self.weight


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_a_replica_waits_for_the_next_goes_on(kind, before, wrap, no_beat):
    made = pair(kind) if before else None
    with labkit.simulate(gpus=4):
        model = Hands(*(made or pair(kind))).cuda()
        assert wrap(model)(torch.ones(8, 4)).shape == (8, 4)
    assert model.log == [0, 1, "1 again", 2, 3, "0 again"]


def test_an_rlock_that_another_replica_holds(wrap):
    class Holds(nn.Linear):
        mine, go, log = threading.RLock(), threading.Event(), []

        def forward(self, x):
            at = x.device.index
            with self.mine if at < 2 else nullcontext():
                self.log.append(at)
                if at == 0:
                    self.go.wait()
                    self.log.append("0 again")
            if at == 2:
                self.go.set()
            return super().forward(x)

    with labkit.simulate(gpus=3):
        wrap(Holds(4, 4).cuda())(torch.ones(6, 4))
    assert Holds.log == [0, 2, "0 again", 1]


def test_a_sleep_is_no_wait(wrap, gpus):
    class Sleeps(Tells):
        def forward(self, x):
            time.sleep(0.5 * (x.device.index == 0))  # longer than any patience there was
            return super().forward(x)

    log = []
    wrap(Sleeps(log).cuda())(torch.ones(4, 4))
    assert log == [0, 1]


def test_time_that_the_user_sets_is_over_when_nobody_comes(wrap, gpus):
    class Gives(nn.Linear):
        box, simple = queue.Queue(), queue.SimpleQueue()

        def forward(self, x):
            for one in (self.box, self.simple):
                with pytest.raises(queue.Empty):
                    one.get(timeout=0.01)
            return super().forward(x)

    assert wrap(Gives(4, 4).cuda())(torch.ones(4, 4)).shape == (4, 4)


class Crossed(nn.Linear):
    """Each replica takes its own lock, and then the other's."""

    def __init__(self):
        super().__init__(4, 4)
        self.locks = [threading.Lock(), threading.Lock()]
        self.met = threading.Barrier(2)

    def forward(self, x):
        at = x.device.index
        with self.locks[at]:
            self.met.wait()
            with self.locks[1 - at]:
                return super().forward(x)


def test_replicas_stuck_on_each_others_locks_are_named_at_once(wrap, gpus):
    idle, model = threading.Event(), Crossed().cuda()
    line = Crossed.forward.__code__.co_firstlineno + 4
    with beside(idle.wait):  # it could not help: who holds the locks is known
        with pytest.raises(Deadlock) as caught:
            wrap(model)(torch.ones(4, 4))
        idle.set()
    for at in (0, 1):
        place = f"{__file__}:{line} in Crossed.forward"
        text = f"replica {at} on cuda:{at} waits for Lock at {place}, held by replica {1 - at}"
        assert str(caught.value).count(text) == 1
    assert not any(one.locked() for one in model.locks)


class Asks(nn.Linear):
    """Waits for an answer, in one replica under a lock that the other wants."""

    def __init__(self, locked):
        super().__init__(4, 4)
        self.locked, self.lock = locked, threading.Lock()
        self.asked, self.answer = threading.Event(), threading.Event()

    def forward(self, x):
        with self.lock if self.locked else nullcontext():
            if x.device.index == 0 or not self.locked:
                self.asked.set()
                self.answer.wait()
            return super().forward(x)


@pytest.mark.parametrize("locked", [False, True])
def test_a_thread_outside_may_help_even_the_one_who_holds_the_lock(wrap, gpus, no_beat, all_wait, locked):
    asks = Asks(locked).cuda()

    def help_them():
        asks.asked.wait()
        all_wait.wait()
        asks.answer.set()

    with beside(help_them):
        assert wrap(asks)(torch.ones(4, 4)).shape == (4, 4)


def test_no_alarm_for_locks_that_replicas_have_given_back(wrap, gpus, all_wait):
    class Crosses(nn.Linear):
        locks = threading.Lock(), threading.Lock()
        asked, taken = threading.Event(), threading.Event()

        def forward(self, x):
            at = x.device.index
            with self.locks[at]:
                pass
            if at == 1:
                self.asked.set()
            self.taken.wait()
            with self.locks[1 - at]:
                return super().forward(x)

    def takes_both():
        Crosses.asked.wait()
        with Crosses.locks[0], Crosses.locks[1]:
            all_wait.clear()
            Crosses.taken.set()
            all_wait.wait()

    with beside(takes_both):
        assert wrap(Crosses(4, 4).cuda())(torch.ones(4, 4)).shape == (4, 4)


def test_replicas_may_start_threads_and_pools(wrap, gpus, no_beat):
    class Helped(Tells):
        def forward(self, x):
            found = []
            own = threading.Thread(target=lambda: found.append(super(Helped, self).forward(x)))
            own.start()
            own.join()
            with ThreadPoolExecutor(2) as pool:
                return pool.submit(torch.relu, found[0]).result()

    log = []
    for _ in range(20):
        wrap(Helped(log).cuda())(torch.ones(4, 4))
    assert sorted(log) == [0] * 20 + [1] * 20


def own():
    """The methods of Python's locks that a call watches."""
    return type(threading.Lock()).acquire, type(threading.RLock()).__enter__, queue.SimpleQueue.get


def parallel_apply(modules, inputs, joined):
    """As torch's, but it does not wait for the end."""
    threads = [threading.Thread(target=model, args=(x,)) for model, x in zip(modules, inputs, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads[:joined]:
        thread.join()
    return threads


@pytest.mark.parametrize("ends", [None, ValueError, KeyboardInterrupt, Deadlock, "inside"])
def test_locks_are_watched_during_a_call_only(wrap, ends, monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    before = own()

    class Looks(nn.Linear):
        watched, met = [], threading.Barrier(3)

        def forward(self, x):
            self.watched.append(own() != before)
            if ends == "inside" and x.device.index == 0:
                wrap(nn.Linear(4, 4).cuda(), [0, 1])(x)
                self.watched.append(own() != before)
            if ends is Deadlock:
                self.met.wait()
            elif x.device.index == 1 and ends not in (None, "inside"):
                raise ends
            return super().forward(x)

    with labkit.simulate(gpus=2):
        model = wrap(Looks(4, 4).cuda())
        assert own() == before
        for _ in range(2):
            # PyTorch has no result for the interrupted replica.
            errors = (ends, KeyError) if isinstance(ends, type) else ()
            with pytest.raises(errors) if errors else nullcontext():
                model(torch.ones(4, 4))
            assert own() == before
            assert all(Looks.watched)
            assert len(Looks.watched) > 1
            Looks.watched.clear()
        parallel_apply([lambda x: Looks.watched.append(own() != before)], [0], joined=1)
        assert Looks.watched == [False]  # by itself nobody waits for another
    assert own() == before


def test_locks_are_watched_until_the_last_replica_ends_if_nobody_waits_for_it(gpus):
    before, seen, go = own(), [], threading.Event()

    def first(x):
        seen.append(own() != before)

    def second(x):
        go.wait()
        seen.append(own() != before)

    threads = parallel_apply([first, second], [0, 1], joined=1)
    assert own() != before
    go.set()
    while threads[1].is_alive():
        time.sleep(0.001)
    assert seen == [True, True]
    assert own() == before
    parallel_apply([first, second], [0, 1], joined=0)
    assert own() == before
    parallel_apply([first, first], [0, 1], joined=2)
    assert seen == [True] * 4  # those whom nobody joined have not begun, nor do they now


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("who", ["replica", "other"])
def test_a_child_forked_during_a_call_takes_no_turns_and_has_pythons_own_locks(who, gpus):
    before, codes, asked, done = own(), [], threading.Event(), threading.Event()

    def fork():
        if not (child := os.fork()):
            os._exit(7 if own() == before and current_task() is None and threading.Lock().acquire() else 1)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    class Forks(nn.Linear):
        def forward(self, x):
            if x.device.index == 1 and who == "other":
                asked.set()
                done.wait()
            elif x.device.index == 1:
                fork()
            return super().forward(x)

    with beside(lambda: (asked.wait(), fork(), done.set())):
        labkit.DataParallel(Forks(4, 4).cuda())(torch.ones(4, 4))
        asked.set()
    assert set(codes) == {7}
    assert own() == before


def test_a_condition_whose_lock_another_replica_still_holds(wrap):
    class Notifies(nn.Linear):
        condition, go, log = threading.Condition(), threading.Event(), []

        def forward(self, x):
            at = x.device.index
            if at == 0:
                with self.condition:
                    self.condition.wait()
                    self.log.append("0 again")
            if at == 1:
                with self.condition:
                    self.condition.notify()
                    self.go.wait()
                    self.log.append("1 again")
            if at == 2:
                self.go.set()
            return super().forward(x)

    with labkit.simulate(gpus=3):
        wrap(Notifies(4, 4).cuda())(torch.ones(6, 4))
    assert Notifies.log == ["1 again", "0 again"]


def test_a_lock_that_a_thread_outside_has_held_since_before_the_call(wrap, gpus, all_wait):
    lock, held, (read, write) = threading.Lock(), threading.Event(), os.pipe()

    def outside():
        with lock:  # leaves by C's own method, which it has had since it came
            held.set()
            all_wait.wait()
        os.read(read, 1)  # and does nothing more that could be seen

    class Takes(nn.Linear):
        def forward(self, x):
            with lock:
                return super().forward(x)

    with beside(outside):
        held.wait()
        wrap(Takes(4, 4).cuda())(torch.ones(4, 4))
        os.write(write, b"1")


def test_where_locks_cannot_be_watched_replicas_race(wrap, monkeypatch):
    def impossible(kind):
        raise NotImplementedError

    before = own()
    monkeypatch.setattr(locks, "CType", impossible)
    locks.lock_patches.cache_clear()
    try:
        with labkit.simulate(gpus=2):
            model = Hands(*pair("event")).cuda()
            assert wrap(model)(torch.ones(4, 4)).shape == (4, 4)
            assert own() == before
    finally:
        locks.lock_patches.cache_clear()
    assert set(model.log) == {0, 1, "0 again", "1 again"}


@pytest.mark.parametrize("missing", ["pythonapi", "dictionary"])
def test_a_type_of_c_that_cannot_be_changed_says_so(missing, monkeypatch):
    if missing == "pythonapi":
        monkeypatch.setattr(ctypes, "pythonapi", None)
    else:
        monkeypatch.setattr(gc, "get_referents", lambda of: [])
    with pytest.raises(NotImplementedError, match="lock"):
        locks.CType(type(threading.Lock()))


STUCK = """
import queue, signal, sys, threading
import torch
from torch import nn
import labkit

class Stuck(nn.Linear):
    stuck, over = True, False

    def forward(self, x):
        if self.stuck and x.device.index == 2:
            print("all are here", flush=True)
        while self.stuck and not self.over and (sys.argv[2] == "wait" or x.device.index == 2):
            if sys.argv[2] == "wait":
                queue.SimpleQueue().get()
        return super().forward(x)

with labkit.simulate(3):
    threading.Thread(target=threading.Event().wait, daemon=True).start()  # might help, for all that is known
    model = {"torch": nn.DataParallel, "labkit": labkit.DataParallel}[sys.argv[1]](Stuck(4, 4).cuda())
    try:
        model(torch.ones(6, 4))
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        Stuck.stuck = sys.argv[2] == "endless"
        if Stuck.stuck:
            Stuck.forward = nn.Linear.forward
        print(tuple(model(torch.ones(6, 4)).shape), flush=True)
        for thread in threading.enumerate():
            if thread.name.startswith("replica") or "worker" in thread.name:
                # Python loses an exception set in another thread if it is raised in a finalizer there.
                thread.join(5)
                Stuck.over = True
                thread.join()
        print("nobody is left", flush=True)
"""


@pytest.mark.timeout(120)
@pytest.mark.skipif(os.name == "nt", reason="signals")
@pytest.mark.parametrize("engine", ["torch", "labkit"])
@pytest.mark.parametrize("how", ["wait", "endless"])
def test_an_interrupted_call_leaves_nobody_behind(engine, how):
    with subprocess.Popen(
        [*python(), "-c", STUCK, engine, how], stdout=subprocess.PIPE, text=True,
        # Where the tests run in the background the interrupt is ignored, and a child would be too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as child:  # fmt: skip
        assert child.stdout.readline() == "all are here\n"
        rest, sent = "", 0
        while not rest and child.poll() is None:
            # Python misses a signal that comes just before it falls asleep on a lock: once more, then.
            child.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                rest, _ = child.communicate(timeout=2)
            sent += 1
            if sent > 20:
                child.kill()
    assert rest.splitlines() == ["(6, 4)", "nobody is left"]


@pytest.mark.parametrize("order", [None, "threads"])
def test_replicas_keep_what_the_callers_thread_has_set(order):
    class Says(nn.Linear):
        said = []

        def forward(self, x):
            self.said.append(
                (
                    torch.is_grad_enabled(), torch.is_autocast_cache_enabled(),
                    torch.get_autocast_dtype("cuda"), x.device.index,
                )
            )  # fmt: skip
            return super().forward(x)

    with (
        labkit.simulate(gpus=2, order=order),
        torch.no_grad(),
        torch.autocast("cuda", torch.bfloat16, cache_enabled=False),
    ):
        labkit.DataParallel(Says(4, 4).cuda())(torch.ones(4, 4))
    assert sorted(Says.said, key=str) == [(False, False, torch.bfloat16, at) for at in range(2)]
    Says.said.clear()


def test_the_allocator_keeps_memory_unless_the_environment_has_chosen(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("MALLOC_", "GLIBC_"))]:
        monkeypatch.delenv(name)
    said = []
    monkeypatch.setattr(
        ctypes, "CDLL", lambda _: SimpleNamespace(mallopt=lambda *option: said.append(option))
    )
    keep_memory_warm.__wrapped__()
    linux = sys.platform.startswith("linux")
    assert said == [(-8, 1), (-1, 64 * 2**20), (-3, 4 * 2**20)] * linux
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    keep_memory_warm.__wrapped__()
    assert len(said) == 3 * linux
