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
    from ..distributed.explain import BadDump, explain, read

    try:
        dumps = read(options.dumps)
    except (OSError, BadDump) as error:
        raise UsageError(en=str(error), zh=str(error)) from None
    if not dumps:
        raise UsageError(en="there are no files", zh="没有文件")
    found = explain(dumps)
    print(json.dumps(asdict(found), indent=1, ensure_ascii=False) if options.json else found)
    return int(bool(found.fault))
