"""Isolate a process from files, network, other processes and privileges, with Linux's system calls alone.

There are two steps. The fork server calls :func:`enter_namespaces` before it imports anything large: from then on it
sees only the system, Python and labkit, read-only. Each worker calls :func:`confine` before it runs a student's code:
writable folders, limits, no capabilities, and a filter of system calls. Neither step can be undone.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import resource
import signal
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

_NEWNS, _NEWUTS, _NEWIPC = 0x20000, 0x4000000, 0x8000000
_NEWUSER, _NEWPID, _NEWNET, _NEWCGROUP = 0x10000000, 0x20000000, 0x40000000, 0x2000000
_WORLD = _NEWUSER | _NEWNS | _NEWPID | _NEWIPC | _NEWNET | _NEWUTS | _NEWCGROUP
_BIND, _REC, _PRIVATE, _NOSUID, _NODEV = 4096, 16384, 1 << 18, 2, 4
_DETACH = 2  # of umount2
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV, _RECURSIVE = 1, 2, 4, 0x8000
# The system call has the same number on x86-64 and ARM64.
_MOUNT_SETATTR = 442
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_SET_PDEATHSIG, _SET_DUMPABLE, _SET_SECCOMP, _CAPBSET_DROP = 1, 4, 22, 24
_SET_SECUREBITS, _SET_NO_NEW_PRIVS = 28, 38
_CAPABILITY_VERSION_3 = 0x20080522  # linux/capability.h
_NOROOT_LOCKED = 0b101111  # securebits: user id 0 gets no privileges, locked

# System folders that Python and its libraries read, where they exist.
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store")
SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime")
HOME = "/answer"  # the worker's writable folder
DEVICES = ("null", "zero", "full", "random", "urandom")
WORKSPACE = 64 << 20  # bytes of each writable folder
_FILES = 4096  # files and folders in each writable folder
_SOCKET_BYTES = "4096 65536 262144"  # buffers of a socket: minimum, default, maximum

_libc: Any = ctypes.CDLL(None, use_errno=True)


class Refused(OSError):
    """Raised when the system forbids a step; ``.strerror`` names the step."""


def _call(what: str, result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise Refused(number, f"{what}: {os.strerror(number)}")
    return result


def _mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    words = [word.encode() if word is not None else None for word in (source, target, kind)]
    _call(f"mount {target}", _libc.mount(*words, ctypes.c_ulong(flags), options.encode()))


def _read_only(target: str, recursive: bool) -> None:
    attributes = (ctypes.c_uint64 * 4)(_ATTR_RDONLY | _ATTR_NOSUID | _ATTR_NODEV, 0, 0, 0)
    flags = _RECURSIVE if recursive else 0
    done = _libc.syscall(_MOUNT_SETATTR, -100, target.encode(), flags, ctypes.byref(attributes), 32)
    _call(f"mount_setattr {target}", done)


def _prctl(option: int, *values: int) -> None:
    _call(f"prctl {option}", _libc.prctl(option, *(ctypes.c_ulong(v) for v in (*values, 0, 0, 0, 0)[:4])))


# -- the fork server


def enter_namespaces(
    *, way: str, readable: Sequence[str], hidden: Sequence[str], shown: Sequence[str], ids: Sequence[int]
) -> None:
    """Enter new namespaces from a process with one thread; return in a child, the first process there.

    way       "root" or "user": who makes the namespaces.
    readable  files and folders that stay visible, read-only.
    hidden    folders within ``readable`` that become empty, except for ``shown`` within them.
    ids       two unused user ids, for the way "root".
    """
    if way == "root":
        map_ids = _prepare_id_map(ids)
        _call("unshare", _libc.unshare(_NEWNS))
        _build_root(readable, hidden, shown)
        _call("unshare", _libc.unshare(_WORLD))
        map_ids()
        os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
    else:
        user, group = os.geteuid(), os.getegid()
        _call("unshare", _libc.unshare(_WORLD))
        for name, text in ("setgroups", "deny"), ("uid_map", f"1 {user} 1"), ("gid_map", f"1 {group} 1"):
            with open(f"/proc/self/{name}", "w") as stream:
                stream.write(text)
        _build_root(readable, hidden, shown)
    _fork_and_follow()
    socket.sethostname("sandbox")
    _enable_loopback()
    _prctl(_SET_DUMPABLE, 0)


def _prepare_id_map(ids: Sequence[int]) -> Callable[[], None]:
    """Fork a process that stays outside; return a function to let the process map user ids."""
    ready, told = os.pipe()
    inside, child = os.getpid(), os.fork()
    if not child:
        code = 1
        try:
            os.close(told)
            if os.read(ready, 1):
                for name in "uid_map", "gid_map":
                    with open(f"/proc/{inside}/{name}", "w") as stream:
                        stream.write("".join(f"{k} {number} 1\n" for k, number in enumerate(ids)))
                code = 0
        finally:
            os._exit(code)
    os.close(ready)

    def map_ids() -> None:
        os.write(told, b".")
        os.close(told)
        if os.waitpid(child, 0)[1]:
            raise Refused(1, "uid_map: the ids could not be given")

    return map_ids


def _build_root(readable: Sequence[str], hidden: Sequence[str], shown: Sequence[str]) -> None:
    root = "/sys"  # a mount point: the folder exists on every Linux, and no code here reads it
    _mount("none", "/", None, _REC | _PRIVATE)
    _mount("tmpfs", root, "tmpfs", _NOSUID | _NODEV, "mode=755,size=16m")
    for path in (*SYSTEM, *SYSTEM_FILES, *readable):
        if os.path.lexists(path):
            _mount_path(root, path)
    for name in DEVICES:
        _mount_path(root, f"/dev/{name}", devices=True)
    for name in HOME, "/tmp", "/dev/shm", "/etc":
        os.makedirs(root + name, exist_ok=True)
    for name, text in ("passwd", f"student:x:1:1::{HOME}:/bin/sh\n"), ("group", "student:x:1:\n"):
        with open(f"{root}/etc/{name}", "w") as stream:
            stream.write(text)
    os.chmod(f"{root}/etc", 0o755)
    for path in hidden:
        _hide_path(root, path)
    for path in shown:
        _mount_path(root, path)
    for path in hidden:  # a writable folder would let one worker leave files for the next
        if os.path.ismount(root + os.path.realpath(path)):
            _read_only(root + os.path.realpath(path), recursive=False)
    os.chdir(root)
    number = _PIVOT_ROOT.get(platform.machine())
    if number is None:
        raise Refused(38, f"pivot_root on {platform.machine()}")
    _call("pivot_root", _libc.syscall(number, b".", b"."))
    _call("umount /", _libc.umount2(b".", _DETACH))
    os.chdir("/")


def _mount_path(root: str, path: str, devices: bool = False) -> None:
    target = root + path
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(path):
        if not os.path.lexists(target):
            os.symlink(os.readlink(path), target)
        return
    if os.path.ismount(target) or os.path.islink(target):
        return
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    elif not os.path.exists(target):
        with open(target, "w"):
            pass
    _mount(path, target, None, _BIND | _REC)
    if not devices:
        _read_only(target, recursive=True)


def _hide_path(root: str, path: str) -> None:
    """Mount an empty folder over ``path``."""
    target = root + os.path.realpath(path)
    if os.path.isdir(target):
        _mount("tmpfs", target, "tmpfs", _NOSUID | _NODEV, "mode=755,size=1m")


def _fork_and_follow() -> None:
    """Continue in a child. The parent waits for its end, and ends with the same exit code."""
    child = os.fork()
    if not child:
        _prctl(_SET_PDEATHSIG, signal.SIGKILL)
        return
    with suppress(OSError):
        os.closerange(3, 1024)
    _, status = os.waitpid(child, 0)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _enable_loopback() -> None:
    """Enable 127.0.0.1 between processes of the sandbox."""
    import fcntl

    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        set_flags, up, running = 0x8914, 0x1, 0x40
        fcntl.ioctl(any_socket, set_flags, struct.pack("16sh14x", b"lo", up | running))
    for name in "tcp_rmem", "tcp_wmem":  # buffers of sockets count as no process's memory
        with suppress(OSError), open(f"/proc/sys/net/ipv4/{name}", "w") as stream:
            stream.write(_SOCKET_BYTES)


# -- a worker


def unshare_children() -> None:
    """Give the next child of this process new namespaces."""
    _call("unshare", _libc.unshare(_NEWPID | _NEWNS | _NEWIPC))


def hide(path: str) -> None:
    """Make the folder or file ``path`` empty in this worker's mount namespace."""
    if os.path.isdir(path):
        _mount("tmpfs", path, "tmpfs", _NOSUID | _NODEV, "mode=755,size=1m")
        _read_only(path, recursive=False)
    else:
        _mount("/dev/null", path, None, _BIND)


def confine(way: str, cpu: int, address_space: int, processes: int) -> None:
    """Limit this process and all future children permanently. ``cpu`` in seconds, ``address_space`` in bytes."""
    os.setsid()
    os.nice(10)  # the judge gets the processor first
    for folder in (HOME, "/tmp", "/dev/shm"):
        # A folder may hold a readable one, such as an environment in /tmp.
        if not os.listdir(folder):
            options = f"mode=1777,size={WORKSPACE},nr_inodes={_FILES}"
            _mount("tmpfs", folder, "tmpfs", _NOSUID | _NODEV, options)
    _read_only("/", recursive=False)
    os.chdir(HOME)
    _drop_rights(way)
    _prctl(_SET_NO_NEW_PRIVS, 1)
    for limit, value in (
        (resource.RLIMIT_CPU, cpu),
        (resource.RLIMIT_AS, address_space),
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_FSIZE, WORKSPACE),
        (resource.RLIMIT_NOFILE, 256),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_MEMLOCK, 1 << 16),
    ):
        most = resource.getrlimit(limit)[1]
        value = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(limit, (value, value))
    _filter_calls()
    _prctl(_SET_DUMPABLE, 0)
    _prctl(_SET_PDEATHSIG, signal.SIGKILL)


def _drop_rights(way: str) -> None:
    """Give up every capability. A process of the real root also becomes user 1 (daemon)."""
    for capability in range(64):
        if _libc.prctl(_CAPBSET_DROP, ctypes.c_ulong(capability), *[ctypes.c_ulong(0)] * 3) < 0:
            break
    _prctl(_SET_SECUREBITS, _NOROOT_LOCKED)
    if way == "root":
        os.setresgid(1, 1, 1)
        os.setresuid(1, 1, 1)
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    _call("capset", _libc.capset(header, bytes(24)))


# System calls to refuse, with their numbers on x86-64 and ARM64. First paragraph: no answer needs them (the last two
# lines allocate memory that no limit counts). Second paragraph: one rank could send another a message.
_DENIED, _TELLING = Path(__file__).with_name("denied.txt").read_text("utf-8").split("\n\n")
_CLONE, _CLONE3, _SOCKET = (56, 220), (435, 435), (41, 198)
_SIGACTION, _OPEN, _OPENAT = (13, 134), (2, 4095), (257, 56)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, 16)  # 16: netlink, to list one's interfaces
_ARCHITECTURE = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARGUMENT = (_LOAD, 0, 0, 0), [(_LOAD, 0, 0, 16 + 8 * at) for at in range(3)]
_REFUSE = (_RETURN, 0, 0, _ERRNO | 1)
_Steps = list[tuple[int, int, int, int]]


def _filter_calls() -> None:
    """Refuse the system calls of ``_DENIED``, new namespaces, and sockets of other families.

    Ignore changes of SIGCHLD's action: the kernel does not count the processor time of children of a process that
    ignores SIGCHLD.
    """
    column = _ARCHITECTURE.get(platform.machine(), (0, 0))[0]
    code: _Steps = [(_AT_LEAST, 0, 1, 0x40000000), _REFUSE]  # x32 has other numbers
    # The flags of clone3 cannot be seen; those of clone can.
    code += [(_EQUAL, 0, 1, _CLONE3[column]), (_RETURN, 0, 0, _ERRNO | 38)]
    code += [(_EQUAL, 0, 4, _CLONE[column]), _ARGUMENT[0], (_ANY_BIT, 0, 1, _WORLD), _REFUSE, _NUMBER]
    code += [(_EQUAL, 0, 5, _SIGACTION[column]), _ARGUMENT[0], (_EQUAL, 0, 3, signal.SIGCHLD), _ARGUMENT[1]]
    code += [(_EQUAL, 1, 0, 0), (_RETURN, 0, 0, _ERRNO), _NUMBER]
    code += [(_EQUAL, 0, 2 + len(_FAMILIES), _SOCKET[column]), _ARGUMENT[0]]
    for left, family in enumerate(_FAMILIES):
        code += [(_EQUAL, len(_FAMILIES) - left, 0, family)]
    _install_filter(_DENIED, [*code, (_RETURN, 0, 0, _ERRNO | 13)])


def isolate_rank() -> None:
    """Refuse also the calls by which this process could send another process of the sandbox a message."""
    column = _ARCHITECTURE.get(platform.machine(), (0, 0))[0]
    code: _Steps = []
    for call, flags in (_OPEN, _ARGUMENT[1]), (_OPENAT, _ARGUMENT[2]):
        code += [(_EQUAL, 0, 4, call[column]), flags, (_ANY_BIT, 0, 1, _WRITES), _REFUSE, _NUMBER]
    _install_filter(_TELLING, code)


def _install_filter(denied: str, more: _Steps) -> None:
    """Refuse the system calls listed in ``denied``, and run the steps ``more`` on the others."""
    if platform.machine() not in _ARCHITECTURE:
        return
    column, architecture = _ARCHITECTURE[platform.machine()]
    code: _Steps = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _KILL), _NUMBER]
    for numbers in re.findall(r"\w+ (\d+) (\d+)", denied):
        code += [(_EQUAL, 0, 1, int(numbers[column])), _REFUSE]
    code += [*more, (_RETURN, 0, 0, _ALLOW)]
    program = b"".join(struct.pack("HBBI", *step) for step in code)
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(code), ctypes.addressof(buffer))
    nothing = ctypes.c_ulong(0)
    _call("seccomp", _libc.prctl(_SET_SECCOMP, ctypes.c_ulong(2), header, nothing, nothing))


def probe(config: dict[str, Any]) -> None:
    """Try both steps; end the process with code 0 if the system allows them."""
    enter_namespaces(**config)
    unshare_children()
    child = os.fork()
    if not child:
        code = 1
        try:
            confine(config["way"], 10, 4 << 30, 64)
            code = 0
        except OSError as error:
            os.write(2, f"{error}\n".encode())
        finally:
            os._exit(code)
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF)
