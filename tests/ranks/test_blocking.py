"""A rank that stands in a call of C lets the others go on, where that is seen; where it is not, it is told."""

import contextlib
import ctypes
import itertools
import os
import socket
import sqlite3
import subprocess
import threading
import time
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

import labkit
from labkit_ranks.threads import stall_detector
from labkit_ranks.threads.world import World

fcntl = pytest.importorskip("fcntl")


def begin(rank):
    torch.cuda.set_device(rank.local)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank.local))
    return rank.number


@pytest.fixture
def world():
    with World(3) as made:
        yield made


@contextlib.contextmanager
def locked(path, how):
    with open(path, "a") as file:
        getattr(fcntl, how)(file, fcntl.LOCK_EX)
        yield
        getattr(fcntl, how)(file, fcntl.LOCK_UN)


@contextlib.contextmanager
def locked_by_filelock(path, how):
    with pytest.importorskip("filelock").FileLock(path):
        yield


@contextlib.contextmanager
def in_transaction(path, how):
    database = sqlite3.connect(path, timeout=20)
    database.execute("begin immediate")
    database.execute("create table if not exists t (x)")
    yield
    database.commit()
    database.close()


LOCKS = [(locked, "flock"), (locked, "lockf"), (locked_by_filelock, "filelock"), (in_transaction, "sqlite")]


@pytest.mark.parametrize(("lock", "how"), LOCKS, ids=[how for _, how in LOCKS])
def test_a_lock_keeps_ranks_out_and_lets_them_go_on(world, tmp_path, lock, how):
    inside, most = [], []

    def work(rank):
        begin(rank)
        for _ in range(2):
            with lock(tmp_path / "lock", how):
                inside.append(rank.number)
                most.append(len(inside))
                time.sleep(0.02)
                inside.pop()
        dist.barrier()

    if how == "lockf" and not hasattr(fcntl, "F_OFD_SETLK"):
        pytest.skip("locks of an open file are Linux's")
    world.run(work)
    assert most == [1] * 6


def test_a_lock_that_is_taken_is_refused_to_who_does_not_wait(world, tmp_path):
    def work(rank):
        begin(rank)
        with open(tmp_path / "lock", "a") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                found = True
            except BlockingIOError:
                found = False
            dist.barrier()
            return found

    assert world.run(work).count(True) == 1


def test_sockets(world):
    port = []

    def work(rank):
        number = begin(rank)
        if number:
            dist.barrier()
            with socket.create_connection(("127.0.0.1", port[0])) as client, client.makefile("rwb") as file:
                for k in range(50):
                    file.write(b"%d\n" % k)
                    file.flush()
                    assert int(file.readline()) == 2 * k
            return None
        with socket.create_server(("127.0.0.1", 0)) as server:
            port.append(server.getsockname()[1])
            dist.barrier()
            for _ in range(2):
                client, _ = server.accept()
                with client:
                    while line := client.recv(100):
                        client.sendall(b"%d\n" % (2 * int(line)))
            server.settimeout(0.05)
            with pytest.raises(TimeoutError):
                server.accept()
        return None

    began = time.monotonic()
    world.run(work)
    assert time.monotonic() - began < 10


def test_pipes(world):
    pipe = os.pipe()

    def work(rank):
        if begin(rank) == 0:
            with open(pipe[0], "rb", closefd=False) as file:
                found = os.read(pipe[0], 5), file.readline()
        else:
            for text in (b"hello", b"again\n") if rank.number == 1 else ():
                time.sleep(0.05)
                os.write(pipe[1], text)
            found = None
        dist.barrier()
        return found

    assert world.run(work)[0] == (b"hello", b"again\n")
    for end in pipe:
        os.close(end)


@pytest.mark.parametrize("how", ["run", "wait", "read", "timeout"])
def test_a_child_process_that_waits_for_another_rank(world, tmp_path, how):
    made, told = tmp_path / "made", threading.Event()
    order = f"while [ ! -e {made} ]; do sleep 0.02; done; echo seen"

    def work(rank):
        found = None
        if begin(rank) == 0:
            child = subprocess.Popen(order, shell=True, stdout=subprocess.PIPE, text=True)
            if how == "timeout":
                with pytest.raises(subprocess.TimeoutExpired):
                    child.wait(timeout=0.4)
                told.set()
            elif how == "wait":
                child.wait()
            found = child.stdout.read() if how == "read" else child.communicate(timeout=20)[0]
            assert child.wait() == 0
        elif rank.number == 1:
            if how == "timeout":
                told.wait()
            else:
                time.sleep(0.1)
            made.touch()
        dist.barrier()
        return found

    assert world.run(work)[0] == "seen\n"


def test_a_rank_that_stands_in_c_is_told_with_its_line(world, monkeypatch, capfd):
    monkeypatch.setattr(stall_detector, "_BEAT", 0.05)

    def hold():
        ctypes.CDLL(None).usleep(900_000)

    def work(rank):
        if begin(rank) == 1:
            hold()
        dist.barrier()

    world.run(work)
    err = capfd.readouterr().err
    assert err.count("labkit: rank 1 has computed nothing") == 1
    for text in "in hold\n    ctypes.CDLL(None).usleep(900_000)", "--processes":
        assert text in err


def test_a_lock_that_nobody_gives_back_is_told(world, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(stall_detector, "_BEAT", 0.05)

    def work(rank):
        number = begin(rank)
        with open(tmp_path / "lock", "a") as file:
            if number == 0:
                fcntl.flock(file, fcntl.LOCK_EX)
                threading.Timer(0.9, lambda: fcntl.flock(file, fcntl.LOCK_UN)).start()
            dist.barrier()
            if number == 1:
                fcntl.flock(file, fcntl.LOCK_EX)
            dist.barrier()

    labkit.set_language("zh")
    world.run(work)
    err = capfd.readouterr().err
    assert "rank 1 已经" in err
    assert "--processes" in err


def test_who_computes_sleeps_or_asks_is_not_told(world, monkeypatch, capfd):
    monkeypatch.setattr(stall_detector, "_BEAT", 0.05)
    monkeypatch.setattr("builtins.input", ctypes.CDLL(None).usleep)  # C has no frame

    def work(rank):
        number = begin(rank)
        if number == 0:
            end = time.monotonic() + 0.7
            while time.monotonic() < end:
                torch.ones(100) @ torch.ones(100)
        elif number == 1:
            time.sleep(0.7)
        else:
            input(500_000)
        dist.barrier()

    world.run(work)
    assert "has computed nothing" not in capfd.readouterr().err


def test_outside_of_ranks_nothing_is_changed(world):
    assert fcntl.flock is not None
    one, other = socket.socketpair()
    with one, other:
        one.settimeout(0.01)
        with pytest.raises(TimeoutError):
            one.recv(1)


class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, at):
        ctypes.CDLL(None).usleep(900_000)
        return at


def test_a_rank_that_waits_for_a_loaders_worker_is_not_told(world, monkeypatch, capfd):
    monkeypatch.setattr(stall_detector, "_BEAT", 0.05)

    def work(rank):
        if begin(rank) == 1:
            assert [batch.item() for batch in torch.utils.data.DataLoader(Slow(), num_workers=1)] == [0]
        dist.barrier()

    world.run(work)
    assert "has computed nothing" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("changes", "computes", "looks"),
    [([1, 2, 3, 4, 5], 0, 0), ([1, 1, 2, 2, 2], 0, 3), ([1, 1, 1, 1, 1], 0.5, 0)],
)
def test_frames_are_looked_at_only_where_nobody_runs(monkeypatch, changes, computes, looks):
    """Who looks at them holds what they hold: a rank that measures its memory would find more."""
    seen, given = [], iter(changes)
    monkeypatch.setattr(stall_detector, "_stack", seen.append)
    monkeypatch.setattr(stall_detector.time, "process_time", itertools.count(0, computes).__next__)
    scheduler = SimpleNamespace(running=None, live=[0, 1], switches=0)

    class Over:
        def wait(self, seconds):
            scheduler.switches = next(given, None)
            return scheduler.switches is None

    one = stall_detector.StallDetector.__new__(stall_detector.StallDetector)
    task = SimpleNamespace(name="rank 0")
    scheduler.running, scheduler.live = task, [task, task]
    one._ranks, one._scheduler, one._over = (
        [SimpleNamespace(name="rank 0", task=task, stands=False)], scheduler, Over(),
    )  # fmt: skip
    one._work()
    assert len(seen) == looks
