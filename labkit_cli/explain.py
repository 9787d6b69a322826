"""Explain why ranks hang, from dumps of PyTorch's Flight Recorder on a real cluster or in a simulated run.

Exit code 0: every collective was completed. 1: a fault. 2: bad usage, such as a file that is no dump.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from .usage import UsageError, announce_loading, bad_usage
from .wording import Wording

WORDING = Wording("explain", dumps={"nargs": "+"})


def run(options: argparse.Namespace) -> int:
    announce_loading()
    from labkit_diagnose.result import lesson_line
    from labkit_ranks.diagnosis.kinds import topic_of
    from labkit_ranks.explain import BadDump, explain, read_dumps

    with bad_usage(OSError, BadDump):
        dumps = read_dumps(options.dumps)
    if not dumps:
        raise UsageError(en="there are no files", zh="没有文件")
    found = explain(dumps)
    topic = topic_of(found.fault) if found.fault else None
    if options.json:
        facts = {**asdict(found), "lesson": topic.lesson if topic else ""}
        print(json.dumps(facts, indent=1, ensure_ascii=False))
    else:
        print(found, *([lesson_line(topic.lesson, topic.heading())] if topic else []), sep="\n")
    return int(bool(found.fault))
