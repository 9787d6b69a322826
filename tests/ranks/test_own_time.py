"""Ranks' clocks, by clocks that the test sets: what other programs take of the computer makes no straggler."""

import os
import subprocess
import sys
import threading
from time import perf_counter

import pytest
import torch
import torch.distributed as dist

import labkit
from labkit_ranks.rank import clock
from labkit_ranks.rank.clock import TimedRank
from labkit_ranks.threads.world import World


class Clocks:
    """A clock on the wall, and for each thread how long it has stood ready without a processor."""

    def __init__(self):
        self.wall, self.ready = 0.0, {}

    def computes(self, seconds):
        self.wall += seconds

    def is_kept_waiting(self, seconds):
        self.wall += seconds
        me = threading.get_ident()
        self.ready[me] = self.ready.get(me, 0.0) + seconds


@pytest.fixture
def clocks(monkeypatch, tmp_path):
    found = Clocks()
    monkeypatch.setattr(clock, "perf_counter", lambda: found.wall)
    monkeypatch.setattr(clock, "_thread_state", threading.local())
    files, opened = {}, os.open

    def open_(path, flags):
        if path != clock._FILE:
            return opened(path, flags)
        number = opened(os.devnull, flags)
        files[number] = threading.get_ident()
        return number

    def pread(number, count, at):
        return b"7 %d 9\n" % round(found.ready.get(files[number], 0.0) * 1e9)

    monkeypatch.setattr(clock.os, "open", open_)
    monkeypatch.setattr(clock.os, "pread", pread, raising=False)
    return found


def test_a_turn_is_as_long_as_the_thread_had_a_processor_or_slept(clocks):
    rank = TimedRank(0, 0, 0)
    rank.begin_turn()
    clocks.computes(2)
    clocks.is_kept_waiting(30)
    assert rank.clock() == pytest.approx(2)
    with rank.pause_clock():
        clocks.computes(5)
        clocks.is_kept_waiting(1)
    assert rank.clock() == pytest.approx(2)
    rank.end_turn()
    clocks.computes(100)  # another's turn
    assert rank.clock() == pytest.approx(2)
    rank.begin_turn()
    clocks.computes(1)
    assert rank.clock() == pytest.approx(3)


def test_another_thread_reads_the_clock_of_the_one_that_has_the_turn(clocks):
    rank, read = TimedRank(0, 0, 0), []
    rank.begin_turn()
    clocks.is_kept_waiting(4)
    clocks.computes(1)
    other = threading.Thread(target=lambda: read.append(rank.clock()))
    other.start()
    other.join()
    assert read == [pytest.approx(1)]


@pytest.mark.parametrize(
    ("busy", "waited"), [("computes", [0, 4.0, 3.0]), ("is_kept_waiting", [1.0, 1.0, 0])]
)
def test_who_lost_the_processor_is_no_straggler_and_who_computes_longer_is(clocks, busy, waited):
    """Rank 0 takes four seconds on the wall; of the others rank 2 computes one, rank 1 none."""

    def program(rank):
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank.local)
        dist.barrier()
        if rank.number == 0:
            getattr(clocks, busy)(4)
        if rank.number == 2:
            clocks.computes(1)
        dist.all_reduce(torch.ones(3, device="cuda"))

    with labkit.record() as trace, World(3) as world:
        world.run(program)
    found = {event.rank: event.waited for event in trace if event.name == "all_reduce"}
    assert [round(found[rank], 1) for rank in range(3)] == waited


@pytest.mark.parametrize("read", ["perf_counter", "pread"])
def test_who_loses_the_processor_within_a_reading_reads_no_time_that_is_not_over(clocks, monkeypatch, read):
    """It is ready before either of the two readings, for 30 seconds."""
    rank = TimedRank(0, 0, 0)
    rank.begin_turn()
    clocks.computes(1)
    where = clock if read == "perf_counter" else clock.os
    reads = getattr(where, read)

    def late(*args):
        clocks.is_kept_waiting(30)
        return reads(*args)

    with monkeypatch.context() as once:
        once.setattr(where, read, late)
        assert 0 <= rank.clock() <= 1
    assert rank.clock() == pytest.approx(1)
    clocks.computes(2)
    assert rank.clock() == pytest.approx(3)


def test_where_the_system_does_not_tell_it_is_the_clock_on_the_wall(monkeypatch):
    monkeypatch.setattr(clock, "_FILE", "/nowhere")
    before = perf_counter()
    assert before <= clock.ThreadClock().seconds_run() <= perf_counter()


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells it")
def test_linux_tells_it_for_each_thread_and_for_a_process_of_its_own():
    found, ended = clock.thread_clock(), []
    assert clock.thread_clock() is found
    assert found.seconds_run() <= perf_counter()
    other = threading.Thread(target=lambda: ended.append(clock.thread_clock()))
    other.start()
    other.join()
    assert ended[0] is not found
    assert ended[0].seconds_run() <= perf_counter(), "though the thread has ended"
    found.process = -1  # as a child sees it that was forked
    assert clock.thread_clock() is not found


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells it")
def test_a_clock_that_outlives_its_module_ends_without_a_word(tmp_path):
    """The names of its module stand for None by then, as where C alone holds it."""
    script = tmp_path / "ends.py"
    script.write_text(
        "import gc, os\nfrom labkit_ranks.rank.clock import ThreadClock\nos.clock = ThreadClock()\ngc.freeze()\n"
    )
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert ended.stderr == ""


def test_clocks_that_add_up_the_same_times_in_another_order_agree():
    clocks = []
    for times in ((0.1, 0.2, 0.3), (0.3, 0.2, 0.1)):
        rank = TimedRank(0, 0, 0)  # stands still until its turn
        for seconds in times:
            rank.advance_to(rank.clock() + seconds)
        clocks.append(rank.clock())
    assert clocks[0] == clocks[1]
