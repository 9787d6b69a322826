"""The fork server: a process that has imported torch, and forks a worker for each question of a submission.

It runs no student's code. For each worker it forks a *supervisor*, which forks the worker into new namespaces and waits
for its end. If the judge closes its end of the supervisor's socket, or dies, the supervisor kills the worker with all
its processes.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import tempfile
import traceback
from contextlib import suppress
from functools import cache
from typing import Any
from unittest import mock

from . import banned, linux_sandbox, restore, worker


def main(config: dict[str, Any]) -> None:
    """Serve on the socket ``config["control"]`` until it is closed. ``config`` is made by :mod:`..isolation`."""
    control, preload, way = socket.socket(fileno=config.pop("control")), config.pop("preload"), config["way"]
    try:
        linux_sandbox.enter_namespaces(**config)
        _import_modules(preload)
        originals = restore.take_snapshot()
        if "labkit_ranks.threads.world" in preload:
            importlib.import_module(f"{__package__}.ranks").open_machine()
    except BaseException as error:
        control.send(json.dumps({"failed": f"{type(error).__name__}: {error}"[:2000]}).encode())
        traceback.print_exc()
        os._exit(1)

    @cache
    def prepare(names: tuple[str, ...]) -> tuple[banned.Ban, restore.Snapshot]:
        """Find the functions to ban, once for all workers."""
        gc.unfreeze()  # a ban looks for functions among all objects
        ban = banned.Ban.find(names)
        return ban, restore.keep_refusals(originals, ban.functions)

    control.send(json.dumps({"ready": True}).encode())
    while True:
        sent, fds, _, _ = socket.recv_fds(control, 1 << 16, 4)
        if not sent:
            with suppress(ChildProcessError):
                while os.waitpid(-1, 0)[0]:
                    pass
            os._exit(0)
        order = json.loads(sent)
        prepared = prepare(tuple(order["without"]))
        gc.freeze()  # a collection in a worker would copy the memory pages of all objects
        if os.fork() == 0:
            control.close()
            try:
                _supervise_worker(way, order, *prepared, *fds)
            finally:
                os._exit(70)
        for fd in fds:
            os.close(fd)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _import_modules(preload: list[str]) -> None:
    """Import the modules that workers need, on one thread: a process with several threads cannot be forked safely."""
    import torch

    torch.set_num_threads(1)
    import labkit

    with labkit.simulate(gpus=2):
        a = torch.nn.Linear(2, 2).to("cuda:1")
        a(torch.ones(1, 2, device="cuda:1")).sum().backward()
    # torch._dynamo creates a cache folder when imported, but the fork server has no writable one.
    tempfile.tempdir = "/tmp"
    with mock.patch("os.makedirs"):
        for name in preload:
            importlib.import_module(name)
    tempfile.tempdir = None
    if "labkit_ranks.threads.world" in preload:
        with labkit.ranks(2) as ranks:  # so that each worker finds its modules and caches
            ranks.run(torch.distributed.barrier)


def _supervise_worker(
    way: str, order: dict[str, Any], ban: banned.Ban, snapshot: restore.Snapshot,
    requests: int, replies: int, meeting: int, control: int,
) -> None:  # fmt: skip
    """Start one worker, and wait until it ends or the judge closes the other end of ``control``."""
    judge = socket.socket(fileno=control)
    judge.send(b"here")  # carries this process's credentials
    judge.recv(1)
    linux_sandbox.unshare_children()
    child = os.fork()
    if not child:
        code = 70
        try:
            judge.close()
            ban.apply(linux_sandbox.hide)
            linux_sandbox.confine(way, order["cpu"], order["address_space"], order["processes"])
            requests, replies, meeting = _close_other_files(requests, replies, meeting)
            worker.main(requests, replies, snapshot, meeting, forks=True)
            code = 0
        finally:
            os._exit(code)
    for fd in requests, replies, meeting:
        os.close(fd)
    watched = os.pidfd_open(child)
    ready, _, _ = select.select([watched, judge.fileno()], [], [])
    if watched not in ready:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os._exit(0)


def _close_other_files(*fds: int) -> tuple[int, ...]:
    """Close all other files, and return new numbers from 3 on. Connect 0, 1 and 2 to /dev/null."""
    nowhere = os.open("/dev/null", os.O_RDWR)
    for number in 0, 1, 2:
        os.dup2(nowhere, number)
    high = [os.dup2(fd, 200 + k) for k, fd in enumerate(fds)]
    os.closerange(3, 200)
    os.closerange(200 + len(fds), 4096)
    left = tuple(os.dup2(fd, 3 + k) for k, fd in enumerate(high))
    os.closerange(200, 200 + len(fds))
    for fd in left:
        os.set_inheritable(fd, False)
    return left
