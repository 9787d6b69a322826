"""The template is a process that has imported what answers need, and is forked for each question of a submission.

It runs no student's code itself. For each worker it forks a *keeper*, which forks the worker into a world of its own,
and waits for its end. The judge holds the other end of the keeper's socket: if the judge lets
go of it, or dies, the worker and all that it started are killed.
"""

from __future__ import annotations

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

from . import banned, kept, sandbox, student

_ban = cache(banned.Ban.find)


def main(config: dict[str, Any]) -> None:
    """Serve on the socket ``config["control"]`` until it is closed. ``config``: see :class:`..templates.Template`."""
    control, preload, way = socket.socket(fileno=config.pop("control")), config.pop("preload"), config["way"]
    try:
        sandbox.enter(**config)
        _import(preload)
        kept_things = kept.keep()
    except BaseException as error:
        control.send(json.dumps({"failed": f"{type(error).__name__}: {error}"[:2000]}).encode())
        traceback.print_exc()
        os._exit(1)
    control.send(json.dumps({"ready": True}).encode())
    while True:
        sent, fds, _, _ = socket.recv_fds(control, 1 << 16, 4)
        if not sent:
            with suppress(ChildProcessError):
                while os.waitpid(-1, 0)[0]:
                    pass
            os._exit(0)
        order = json.loads(sent)
        ban = _ban(tuple(order["without"]))
        if os.fork() == 0:
            control.close()
            try:
                _keep(way, order, ban, kept_things, *fds)
            finally:
                os._exit(70)
        for fd in fds:
            os.close(fd)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _import(preload: list[str]) -> None:
    """Import what workers will need, on one thread: a process with several cannot be forked safely."""
    import torch

    torch.set_num_threads(1)
    import labkit

    with labkit.simulate(gpus=2):
        a = torch.nn.Linear(2, 2).to("cuda:1")
        a(torch.ones(1, 2, device="cuda:1")).sum().backward()
    # torch._dynamo makes a cache folder as it is imported, but only workers have a writable one.
    tempfile.tempdir = "/tmp"
    with mock.patch("os.makedirs"):
        for name in preload:
            importlib.import_module(name)
    tempfile.tempdir = None


def _keep(
    way: str, order: dict[str, Any], ban: banned.Ban, things: kept.Rows,
    requests: int, replies: int, bell: int, told: int,
) -> None:  # fmt: skip
    """Start one worker and wait for its end, or for the judge to let go of the other end of ``told``."""
    judge = socket.socket(fileno=told)
    judge.send(b"here")  # the credentials of this process go with it
    judge.recv(1)
    sandbox.alone()
    child = os.fork()
    if not child:
        code = 70
        try:
            judge.close()
            ban.take_away(sandbox.hide)
            things = kept.with_refusals(things)
            sandbox.confine(way, order["cpu"], order["address_space"], order["processes"])
            requests, replies, bell = _keep_only(requests, replies, bell)
            student.main(requests, replies, things, bell, forks=True)
            code = 0
        finally:
            os._exit(code)
    for fd in requests, replies, bell:
        os.close(fd)
    watched = os.pidfd_open(child)
    ready, _, _ = select.select([watched, judge.fileno()], [], [])
    if watched not in ready:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os._exit(0)


def _keep_only(*fds: int) -> tuple[int, ...]:
    """Close every file but these, which get the numbers from 3 on; 0, 1 and 2 lead nowhere."""
    nowhere = os.open("/dev/null", os.O_RDWR)
    for number in 0, 1, 2:
        os.dup2(nowhere, number)
    high = [os.dup2(fd, 200 + k) for k, fd in enumerate(fds)]
    os.closerange(3, 200)
    os.closerange(200 + len(fds), 4096)
    kept = tuple(os.dup2(fd, 3 + k) for k, fd in enumerate(high))
    os.closerange(200, 200 + len(fds))
    for fd in kept:
        os.set_inheritable(fd, False)
    return kept
