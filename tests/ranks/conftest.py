"""A notebook's kernel for the tests of ``%%ranks``."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from jupyter_client.manager import start_new_kernel

from labkit_course.notebooks.kernel import start
from labkit_ranks.threads.world import World
from tools.warm import python

ANSI = re.compile(r"\x1b\[[0-9;]*m")


class Kernel:
    """A kernel to be asked cells; each gives what it printed and showed, as text, and the error's name."""

    def __init__(self):
        self.manager, self.client = start(lambda: start_new_kernel(kernel_name="python3"))

    def run(self, code, answers=(), on_text=None):
        texts, self.asked, self.error, self.shown = [], [], None, []
        answers = list(answers)

        def output(message):
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                texts.append(content["text"])
            elif kind == "error":
                self.error = content["ename"]
                texts.append("\n".join(content["traceback"]) + "\n")
            elif kind in ("display_data", "execute_result", "update_display_data"):
                self.shown.append(content["data"])
                texts.append(content["data"].get("text/plain", "") + "\n")
            if on_text is not None and texts:
                on_text(texts[-1])

        def stdin(message):
            self.asked.append(message["content"]["prompt"])
            self.client.input(answers.pop(0) if answers else "c")

        self.reply = self.client.execute_interactive(
            code, allow_stdin=True, stdin_hook=stdin, output_hook=output, timeout=100
        )
        return ANSI.sub("", "".join(texts))

    def close(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture
def as_command(tmp_path):
    """A function that runs a script by ``labkit torchrun``: the exit code, what came out, what was said of errors."""

    def run(text, *arguments, options=("--nproc-per-node", "4"), language="en", **environment):
        (tmp_path / "train.py").write_text(text, "utf-8")
        root = str(Path(__file__).parents[2])
        told = {"PYTHONPATH": root, "OMP_NUM_THREADS": "1", "LABKIT_LANGUAGE": language, **environment}
        command = [*python(), "-m", "labkit", "torchrun", *options, "train.py", *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, env=os.environ | told, cwd=tmp_path, timeout=200
        )
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.fixture(scope="module")
def kernel(warm_kernels):
    made = Kernel()
    made.run("import labkit")
    yield made
    made.close()


def join(rank, backend="nccl"):
    """Begin as most scripts do."""
    torch.cuda.set_device(rank.local)
    dist.init_process_group(backend)


@pytest.fixture
def joined(request):
    """A world of as many ranks as the module's ``N`` says, which have joined."""
    with World(request.module.N) as made:
        made.run(join)
        yield made


@pytest.fixture
def on_ranks():
    """A function that runs another on ranks that have joined, and returns their results."""

    def run(work, size=2, backend="nccl"):
        with World(size) as world:
            world.run(lambda rank: join(rank, backend))
            return world.run(work)

    return run
