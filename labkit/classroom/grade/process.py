"""A judge is a process that grades submissions one after the other, with a template of workers of its own.

:mod:`.whole_class` starts one for each core and speaks with it in lines of JSON. No student's code runs here; what
comes from a worker passes :mod:`..wall.session` before anything looks at it.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..assignment import load
from ..wall.templates import template
from .submission import draws, grade


def serve(config: dict[str, Any]) -> None:
    """Grades each order that comes on stdin, and answers it with a line on stdout, until stdin or the template ends."""
    told = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a judge prints is not an answer
    assignment = load(Path(config["assignment"]))
    secret, hidden = bytes.fromhex(config["secret"]), [Path(path) for path in config["hidden"]]
    with closing(template(config["way"], assignment.preload, hidden)) as workers:
        for line in sys.stdin:
            order = json.loads(line)
            draw = draws(secret, order["student"], assignment.name, order["answers"])
            graded = grade(assignment, order["answers"], order["numbers"], draw, workers)
            told.write(json.dumps(asdict(graded)) + "\n")
            told.flush()


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    serve(json.loads(sys.stdin.readline()))
