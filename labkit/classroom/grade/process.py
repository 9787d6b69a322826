"""A judge is a process that grades submissions one after the other, with a template of workers of its own.

:mod:`.whole_class` starts one for each core and speaks with it in lines of JSON. No student's code runs here; what
comes from a worker passes :mod:`..wall.session` before anything looks at it.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...base.language import say
from ..assignment import Assignment, load
from ..draw import Numbers
from ..wall.templates import Bare, CannotStart, Template, template
from .submission import draws, grade


def serve(config: dict[str, Any]) -> None:
    """Grades each order that comes on stdin, and answers it with a line on stdout, until stdin ends."""
    told = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a judge prints is not an answer
    assignment = load(Path(config["assignment"]))
    secret = bytes.fromhex(config["secret"])
    hidden = [Path(path) for path in config["hidden"]]
    workers: Template | Bare | None = None
    for line in sys.stdin:
        order = json.loads(line)
        numbers: Numbers = order["numbers"]
        draw = draws(secret, order["student"], assignment.name, order["answers"])
        for attempt in 1, 2:
            workers = workers or _template(config, assignment, hidden)
            try:
                graded = grade(assignment, order["answers"], numbers, draw, workers)
            except CannotStart:  # the template is gone: no student's code can do that, but the system may
                workers.close()
                workers = None
                if attempt == 2:
                    raise
            else:
                told.write(json.dumps(asdict(graded)) + "\n")
                told.flush()
                break
    if workers:
        workers.close()


def _template(config: dict[str, Any], assignment: Assignment, hidden: list[Path]) -> Template | Bare:
    try:
        return template(config["way"], assignment.preload, hidden)
    except CannotStart as error:
        text = say(en=f"the sandbox could not be started: {error}", zh=f"沙箱无法启动：{error}")
        raise CannotStart(text) from None


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    serve(json.loads(sys.stdin.readline()))
