"""Threads see the machine; replicas take turns; nothing hangs, nothing is left behind."""

import _thread
import gc
import queue
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.cuda import comm

import labkit


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


@pytest.mark.parametrize("wrap", [nn.DataParallel, labkit.DataParallel])
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


def test_fewer_replicas_than_the_order_names():
    with labkit.simulate(gpus=4, order=[3, 1, 0, 2]):
        log = []
        nn.DataParallel(Tells(log).cuda())(torch.ones(2, 4))
        assert sorted(log) == [0, 1]


def test_threads_may_race():
    with labkit.simulate(gpus=2, order="threads"):
        meet = threading.Barrier(2, timeout=30)

        class Meets(nn.Linear):
            def forward(self, x):
                meet.wait()  # both must be running at once
                return super().forward(x)

        assert nn.DataParallel(Meets(4, 4).cuda())(torch.ones(4, 4)).shape == (4, 4)


@pytest.mark.parametrize("wrap", [nn.DataParallel, labkit.DataParallel])
def test_replicas_that_wait_for_each_other_do_not_deadlock(wrap):
    """A batch norm over all replicas: each sends its mean to the first, which sends the total back."""

    class Synchronised(nn.Module):
        def __init__(self):
            super().__init__()
            self.inbox, self.outbox = queue.Queue(), queue.Queue()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, x):
            if x.device.index:
                self.inbox.put(x.mean())
                return x - self.outbox.get(timeout=30).to(x.device)
            total = (x.mean() + sum(self.inbox.get(timeout=30).to(x.device) for _ in range(2))) / 3
            for _ in range(2):
                self.outbox.put(total)
            return x - total

    for order in (None, [2, 1, 0], "threads"):
        with labkit.simulate(gpus=3, order=order):
            x = torch.arange(12.0).view(6, 2)
            output = wrap(Synchronised().cuda())(x)
            assert torch.allclose(output.cpu(), x - x.mean())


def test_a_subclass_that_scatters_its_own_sizes():
    class Balanced(nn.DataParallel):
        """Gives the first GPU, which holds the output too, fewer rows."""

        def scatter(self, inputs, kwargs, device_ids):
            (x,) = inputs
            pieces = comm.scatter(x, device_ids, [2, 6], 0)
            return [(piece,) for piece in pieces], [{} for _ in pieces]

    with labkit.simulate(gpus=2):
        log = []
        model = Tells(log).cuda()
        x = torch.randn(8, 4)
        assert torch.allclose(Balanced(model)(x), model(x.cuda()))


@pytest.mark.parametrize("wrap", [nn.DataParallel, labkit.DataParallel])
def test_an_interrupt_in_a_replica_ends_the_call(wrap, monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda args: None)

    class Interrupted(nn.Linear):
        def forward(self, x):
            if x.device.index == 1:
                raise KeyboardInterrupt
            return super().forward(x)

    with labkit.simulate(gpus=3):
        # PyTorch has no result for the replica then; labkit's engine raises the interrupt itself.
        with pytest.raises((KeyboardInterrupt, KeyError)):
            wrap(Interrupted(4, 4).cuda())(torch.ones(6, 4))
        assert torch.ones(1, device="cuda:2").is_cuda


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


@pytest.mark.parametrize("wrap", [nn.DataParallel, labkit.DataParallel])
def test_a_thousand_calls_with_random_failures_leave_nothing(wrap, gpus):
    chance = random.Random(0)
    model = Fails().cuda()
    call, x = wrap(model), torch.ones(4, 4, device="cuda:0")
    call(x)
    gc.collect()
    before = [torch.cuda.memory_allocated(k) for k in range(2)]
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
    assert threading.active_count() < 10
