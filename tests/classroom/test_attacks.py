"""Attacks on grading: each is blocked, nobody else's marks suffer, nothing is found out, and the teacher is told."""

import os
import socket
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import sandboxed
from attacks import ATTACKS, HONEST

from labkit_classroom.assignment import load
from labkit_classroom.grade.submission import draws, grade
from labkit_classroom.sandbox.inside.processes import descendants
from labkit_classroom.sandbox.isolation import SandboxServer
from labkit_classroom.sandbox.workers import Limits

SECRET = "THE-CLASS-SECRET"
LIMITS = Limits(cpu=0.6, wall=60, memory=400 << 20)  # the clock is for busy machines
HERE = Path(__file__).parent

WAY = sandboxed.way()


@pytest.fixture(scope="module")
def assignment():
    return load(HERE / "attacked")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """What a teacher has: a gradebook, a roster, other submissions, a socket, a process, a name in the environment."""
    home = tmp_path_factory.mktemp("teacher")
    for name in "marks.jsonl", "roster.csv", "class.json", "2021002.ipynb":
        (home / name).write_text(SECRET)
    return home


@pytest.fixture(scope="module")
def neighbours(home):
    """A process and sockets of the teacher's, that must stay as they are and hear nothing."""
    with (
        pytest.MonkeyPatch.context() as patch,
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1) as process,
    ):
        patch.setenv("TEACHERS_TOKEN", SECRET)
        tcp, unix, abstract = socket.socket(), socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
        tcp.bind(("127.0.0.1", 0))
        unix.bind(str(home / "socket"))
        abstract.bind(f"\0labkit-test-{os.getpid()}")
        for one in tcp, unix, abstract:
            one.listen()
            one.setblocking(False)
        yield process, (tcp, unix, abstract)
        for one in tcp, unix, abstract:
            one.close()
        process.kill()


@pytest.fixture(scope="module")
def template(neighbours, home):
    with closing(SandboxServer(WAY, hidden=[home])) as template:
        yield template
        honest = graded(load(HERE / "attacked"), template, HONEST)
    assert [mark.points for mark in honest.questions.values()] == [4, 1], "an attack has harmed the server"
    assert not honest.troubles


def graded(assignment, template, double, limits=LIMITS):
    answers = {"double": double, "triple": "def triple(x):\n    return 3 * x"}
    return grade(assignment, answers, {}, draws(b"secret", "1", "attacked", answers), template, limits)


def outlived(template):
    """What still runs in the sandbox besides the template; a supervisor may need a moment to end."""
    end = time.monotonic() + 30
    while found := [pid for pid in descendants(template.process) if not ended(pid)]:
        if time.monotonic() > end:
            return found
    return []


def ended(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith(("Z", "X"))
    except OSError:
        return True


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_blocked(name, assignment, template, home, neighbours):
    source, trouble, points = ATTACKS[name]
    process, sockets = neighbours
    paths = [str(path) for path in sorted(home.iterdir()) if path.is_file()] + [
        str(HERE / "attacked" / "judges.py")
    ]
    known = {
        "PATHS": paths, "CANARY": str(home / "canary"), "PID": process.pid,
        "PORT": sockets[0].getsockname()[1], "UNIX": str(home / "socket"),
        "ABSTRACT": f"labkit-test-{os.getpid()}",
    }  # fmt: skip
    knowledge = "; ".join(f"{name} = {value!r}" for name, value in known.items())
    before = {path: path.read_bytes() for path in home.iterdir() if path.is_file()}
    judges = (HERE / "attacked" / "judges.py").read_bytes()

    limits = replace(LIMITS, wall=1.0) if trouble == "wall" else LIMITS
    found = graded(assignment, template, f"{knowledge}\n{source}", limits)

    assert points in (None, found.questions["double"].points), found
    if trouble != "wall":  # whose clock may be too short for a busy machine
        assert found.questions["triple"].points == 1, "the student's other answer suffers"
    told = str(found)  # all that anybody is told
    assert SECRET not in told
    assert "JUDGES-WORD" not in told
    if trouble:
        assert trouble in {note.kind for note in found.troubles}
    elif points:
        assert not found.troubles
    assert all(note.kind != "judge" for note in found.troubles), "the judge itself stumbled"
    assert "\x1b" not in told
    assert "\\x1b" not in told
    told.encode("utf-8")
    # Nothing of the teacher's has changed, and nobody has been spoken to. The next attack's honest `triple` shows that
    # the next student is graded as ever, and the fixture `template` shows it after the last attack.
    assert {path: path.read_bytes() for path in home.iterdir() if path.is_file()} == before
    assert (HERE / "attacked" / "judges.py").read_bytes() == judges
    assert process.poll() is None
    for one in sockets:
        with pytest.raises(BlockingIOError):
            one.accept()
    assert not outlived(template), "something has outlived its answer"


@pytest.mark.more
@pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="the tests above are by a user already"
)
def test_a_user_without_rights_is_as_safe(tmp_path):
    """The same attacks, graded by a user who may do nothing but make namespaces."""
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", str(Path(__file__))]
    chosen = " or ".join(
        f"({word})"
        for word in ("gradebook", "walking", "killing", "network", "out and sandbox", "lifted", "asked")
    )
    environment = os.environ | {"PYTHONPATH": str(HERE.parents[1]), "TMPDIR": "/tmp"}
    done = subprocess.run(
        [sys.executable, HERE / "as_nobody.py", *command, "-k", f"attack and ({chosen})", "-rs"],
        cwd=HERE.parents[1],
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert "10 passed" in done.stdout
