"""Say why ranks hang, from the dumps that PyTorch's Flight Recorder left: of a real cluster, or of a simulated run.

Exit code 0 if every call was met, 1 if something is wrong, 2 for bad usage (a file that is no dump among them).
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from ..base.language import say
from .usage import UsageError, add_options, loading
from .wording import Wording

WORDING = Wording("explain")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = say(en="labkit explain [options] DUMPS ...", zh="labkit explain [选项] DUMPS ...")
    add_options(parser, WORDING, "options", dumps={"nargs": "+"})


def run(options: argparse.Namespace) -> int:
    loading()
    from ..diagnosis.result import lesson_line
    from ..distributed.diagnosis.meaning import TAUGHT
    from ..distributed.explain import BadDump, explain, read

    try:
        dumps = read(options.dumps)
    except (OSError, BadDump) as error:
        raise UsageError(en=str(error), zh=str(error)) from None
    if not dumps:
        raise UsageError(en="there are no files", zh="没有文件")
    found = explain(dumps)
    topic = TAUGHT.get(found.fault)
    if options.json:
        facts = {**asdict(found), "lesson": topic.lesson if topic else ""}
        print(json.dumps(facts, indent=1, ensure_ascii=False))
    else:
        print(found, *([lesson_line(topic.lesson, topic.heading())] if topic else []), sep="\n")
    return int(bool(found.fault))
