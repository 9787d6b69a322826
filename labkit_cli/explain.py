"""Explain why ranks hang, from dumps of PyTorch's Flight Recorder, or from the lines of a watchdog in a log.

Exit code 0: every collective was completed. 1: a fault. 2: bad usage, such as a file that is neither. 3: the log cannot
tell.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from .usage import UsageError, announce_loading, bad_usage
from .wording import Wording

WORDING = Wording("explain", dumps={"nargs": "+"})


def run(options: argparse.Namespace) -> int:
    for path in options.dumps:
        if not Path(path).exists():
            raise UsageError(en=f"{path} does not exist", zh=f"{path} 不存在")
    announce_loading()
    from labkit_diagnose.result import lesson_line
    from labkit_ranks.diagnosis.kinds import topic_of
    from labkit_ranks.explain import BadDump, explain, explain_log, read_dumps, read_logs

    with bad_usage(OSError, BadDump):
        of_log = explain_log(read_logs(options.dumps))
        dumps = {} if of_log else read_dumps(options.dumps)
    if not of_log and not dumps:
        raise UsageError(en="there are no files", zh="没有文件")
    found = of_log or explain(dumps)
    topic = topic_of(found.fault) if found.fault else None
    if options.json:
        facts = {**asdict(found), "lesson": topic.lesson if topic else ""}
        print(json.dumps(facts, indent=1, ensure_ascii=False))
    else:
        print(found, *([lesson_line(topic.lesson, topic.heading())] if topic else []), sep="\n")
    return 1 if found.fault else 3 if of_log else 0
