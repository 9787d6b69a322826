"""The sandbox from the outside: who its processes are, what it shows, and that it goes with whoever started it."""

import errno
import os
import platform
import select
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import engine
import pytest
import sandboxed
from attacked import drivers

from labkit.base import ours
from labkit_classroom.sandbox.isolation import _FIRST_ID, SandboxServer, configuration, environment
from labkit_classroom.sandbox.workers import AnswerSession, Limits
from labkit_course import content

WAY = sandboxed.way()
HIDDEN = Path(os.__file__).parent / "wsgiref"  # as if it were a course within Python's own folders
LIMITS = Limits(wall=60)


@pytest.fixture(scope="module")
def template():
    with closing(SandboxServer(WAY, hidden=[HIDDEN])) as template:
        yield template


def answer(template, source, while_there=lambda: None):
    with closing(AnswerSession(template.worker, [("prologue", ""), ("q", source)], LIMITS)) as session:
        found = session.answer(drivers.double, {"x": 1})
        return found, while_there()


def status(pid):
    return dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
    )


SOCKETS = """
import os, socket, time
def fill():
    kept = []
    while True:
        try:
            kept += socket.socketpair()
            kept[-1].setblocking(False)
            while kept[-1].send(bytes(1 << 16)): pass
        except BlockingIOError: pass
        except OSError: time.sleep(1e6)
def double(x):
    for _ in range(24):
        if os.fork() == 0: fill()
    time.sleep(1e6)
"""


def test_memory_that_the_kernel_holds_for_a_worker_counts(template):
    if not template._memory_limit_file:
        pytest.skip("no control group of memory can be made on this computer")
    limits = Limits(cpu=60, wall=200, memory=64 << 20)
    with closing(AnswerSession(template.worker, [("prologue", ""), ("q", SOCKETS)], limits)) as session:
        assert session.answer(drivers.double, {"x": 1}).ended in ("died", "memory")  # by the kernel, or by us
    assert answer(template, "def double(x):\n    return 7")[0].value == 7


def workers(template):
    """The processes within the keepers'."""
    children = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (entry / "status").exists():
            children.setdefault(int(status(entry.name)["PPid"]), []).append(int(entry.name))
    return [pid for supervisor in children.get(template.process, ()) for pid in children.get(supervisor, ())]


def test_the_template_has_one_thread_when_it_is_forked(template):
    assert status(template.process)["Threads"] == "1"


def test_a_worker_is_nobody_and_may_nothing(template):
    def look_at_it():
        (pid,) = workers(template)
        mounts = [line.split() for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()]
        writable = {mount[4] for mount in mounts if "rw" in mount[5].split(",")}
        # Where an environment or this checkout stands in /tmp, /tmp is shown and stays as it is.
        assert {path for path in writable if not path.startswith("/dev/")} - {"/tmp"} == {"/answer"}
        return status(pid)

    found, told = answer(template, "def double(x):\n    return 1", look_at_it)
    assert found.value == 1
    assert told["NoNewPrivs"] == "1"
    assert told["Seccomp"] == "2"
    assert {told[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    if WAY == "root":
        assert all(int(uid) > _FIRST_ID for uid in told["Uid"].split())
        assert all(int(gid) > _FIRST_ID for gid in told["Gid"].split())
        assert not told["Groups"].strip()
        assert told["Uid"] != status(template.process)["Uid"]


def test_a_teachers_folder_within_what_must_be_seen_is_empty(template):
    found, _ = answer(template, f"import os\ndef double(x):\n    return os.listdir({str(HIDDEN)!r})")
    assert found.value == []
    assert list(HIDDEN.iterdir())


# What of labkit's package a student's code sees: what it computes with, and what runs it. No judge and no answer.
SEEN = """
labkit simgpu labkit_diagnose labkit_ranks labkit_classroom/__init__.py labkit_classroom/meeting.py
labkit_classroom/sandbox/__init__.py labkit_classroom/sandbox/inside
"""


FORBIDDEN = (
    "labkit_content",
    "labkit_content.assignments.primitives.judges",
    "labkit_classroom.judging",
    "labkit_classroom.checking",
    "labkit.classroom.judging",
    "labkit_course",
    "labkit_course.lessons",
    "labkit_cli",
)


def test_of_labkit_a_worker_sees_only_what_is_named(template):
    """The worker lists every file that it can reach, wherever that lies, and imports what it must not have."""
    source = f"""
import importlib, os
def double(x):
    found = [os.path.join(at, name) for at, _, names in os.walk("/") for name in names]
    had = []
    for module in {FORBIDDEN}:
        try:
            had.append(importlib.import_module(module).__name__)
        except ImportError:
            pass
    known = [path for path in found if path.startswith({tuple(ours.FOLDERS)!r})]
    return known, [path for path in found if os.path.basename(path) in ("judges.py", "assignment.txt")], had
"""
    found, _ = answer(template, source)
    known, secret, had = found.value
    inside = {Path(path).relative_to(ours.HOME) for path in known if "__pycache__" not in path}
    rooms = {"/".join(path.parts[: 3 if path.parts[0] == "labkit_classroom" else 1]) for path in inside}
    assert rooms == set(SEEN.split())
    assert (secret, had) == ([], [])
    assert not any(path.startswith(str(content.FOLDER)) for path in known)


# Numbers on x86-64 of system calls that no answer needs.
REFUSED = """
ptrace 101 process_vm_readv 310 process_vm_writev 311 pidfd_getfd 438 kcmp 312 unshare 272 setns 308 mount 165
umount2 166 pivot_root 155 chroot 161 open_tree 428 move_mount 429 fsopen 430 fsconfig 431 fsmount 432 fspick 433
mount_setattr 442 open_by_handle_at 304 name_to_handle_at 303 bpf 321 perf_event_open 298 userfaultfd 323
io_uring_setup 425 io_uring_enter 426 io_uring_register 427 keyctl 250 add_key 248 request_key 249 kexec_load 246
kexec_file_load 320 init_module 175 finit_module 313 delete_module 176 reboot 169 swapon 167 swapoff 168 acct 163
quotactl 179 syslog 103 settimeofday 164 clock_settime 227 adjtimex 159 clock_adjtime 305 sethostname 170
setdomainname 171 fanotify_init 300 memfd_create 319 memfd_secret 447 shmget 29 msgget 68 semget 64 mq_open 240
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are those of x86-64")
def test_system_calls_that_no_answer_needs_are_refused(template):
    calls = dict(zip(REFUSED.split()[::2], map(int, REFUSED.split()[1::2]), strict=True))
    source = f"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def double(x):
    return {{name: (libc.syscall(number, -1, 0, 0, 0, 0), ctypes.get_errno()) for name, number in {calls}.items()}}
"""
    found, _ = answer(template, source)
    assert found.value == dict.fromkeys(calls, (-1, errno.EPERM))


def test_the_environment_is_made_anew(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv("LABKIT_LANG", "zh")
    assert "x" not in environment().values()
    assert environment()["LABKIT_LANG"] == "zh"


def test_when_the_judge_is_killed_all_is_gone():
    """With SIGKILL, which leaves it no time to tidy up, while a student's children sleep."""
    code = (
        "import sys\nfrom labkit_classroom.sandbox.isolation import SandboxServer\n"
        "from labkit_classroom.sandbox.workers import Limits\n"
        "template = SandboxServer(sys.argv[1])\nworker = template.worker(Limits())\n"
        "source = 'import os, time\\nif os.fork() == 0:\\n    os.setsid(); time.sleep(1e6)'\n"
        "worker.request({'do': 'define', 'sources': [['q', source]]}, Limits(wall=60))\n"
        "print(template.process, flush=True)\ninput()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, WAY], stdin=-1, stdout=-1) as judge:
        inside = os.pidfd_open(int(judge.stdout.readline()))
        judge.send_signal(signal.SIGKILL)
        ended, _, _ = select.select(
            [inside], [], [], 60
        )  # the first process of a namespace ends after all others
        os.close(inside)
    assert ended
    assert judge.returncode == -signal.SIGKILL


def test_another_answer_that_ends_its_process_costs_this_one_nothing(template):
    """A question may need an earlier one's answer: run before it, but no reason to lose its points."""
    for other, ended in (
        ("import os\nos._exit(0)", "died"),
        ("raise SystemExit", None),
        ("def helper(: pass", None),
    ):
        sources = [("prologue", ""), ("other", other), ("q", "def double(x):\n    return 2 * x")]
        with closing(AnswerSession(template.worker, sources, LIMITS)) as session:
            assert session.answer(drivers.double, {"x": 21}).value == 42
            assert [why for why, _ in session.troubles] == ([ended] if ended else [])


def test_threads_of_an_answer_without_ranks_take_no_turns_on_a_server_for_ranks():
    """The server has opened a machine for ranks."""
    source = "import simgpu\ndef double(x):\n    return simgpu.machine_in_use() is None"
    assert answer(engine.server(), source)[0].value is True


def test_a_driver_that_stands_beside_a_judge_is_not_sent(template):
    from attacked import judges

    with closing(AnswerSession(template.worker, [("prologue", ""), ("q", "")], LIMITS)) as session:
        with pytest.raises(ValueError, match="keep drivers in a module of their own"):
            session.answer(judges.ints.hints, {})
        with pytest.raises(ValueError, match="at the top of a module"):
            session.answer(lambda student: 1, {})


def test_a_worker_that_is_closed_leaves_no_file_open(template):
    def opened():
        return sorted(os.listdir("/proc/self/fd"), key=int)

    with closing(template.worker(LIMITS)):
        pass
    before = opened()
    with closing(template.worker(LIMITS)):
        assert opened() != before
    assert opened() == before


def test_judges_whose_numbers_are_neighbours_share_no_user(monkeypatch):
    given = []
    for process in (100, 101, 102, 103, 2**22 - 1):
        monkeypatch.setattr(os, "getpid", lambda process=process: process)
        given += configuration(WAY)["ids"]
    assert len(set(given)) == len(given)
    assert all(_FIRST_ID <= one < 2**31 for one in given)
