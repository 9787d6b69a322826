"""Run a torchrun script once, and print the output of `torchrun --summary` and `diagnose --ranks` together.

The page shows memory and waiting time of each rank, faults with line and remedy, and the comparison with one GPU.
Exit code 0: no fault. 1: faults. 2: bad usage. 3: not judged, because the script trained no model, the ranks exchanged
nothing, or there was nothing to compare with; the page says which.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit import __version__

from .diagnose import exit_code
from .ending import write
from .torchrun import summary
from .usage import UsageError, announce_loading, at_least, bad_usage, check_script_exists, check_writable
from .wording import Wording

if TYPE_CHECKING:
    from labkit_diagnose.result import Diagnosis, Finding

WORDING = Wording(
    "check",
    ranks={"type": at_least(2), "default": 4},
    nodes={"type": at_least(1), "default": 1},
    sarif={"type": Path},
    fail_on={"choices": ("error", "warning"), "default": "warning"},
    subject={"nargs": argparse.PARSER},
)


def run(options: argparse.Namespace) -> int:
    script, *arguments = options.subject
    check_script_exists(script)
    check_writable("--sarif", options.sarif)
    if options.ranks % options.nodes:
        raise UsageError(
            en=f"--nodes must divide --ranks: {options.ranks} ranks on {options.nodes} nodes",
            zh=f"--nodes 必须能整除 --ranks：{options.nodes} 个节点分不匀 {options.ranks} 个 rank",
        )
    announce_loading()
    from labkit.trace import emitting
    from labkit_ranks.diagnosis import diagnose_ranks
    from labkit_ranks.rank.run_record import RankInfo, RunRecord, rank_info

    kept, parts = RunRecord(0), list[RankInfo]()
    trace = emitting.begin()
    trace.events, trace.samples = kept.trace.events, kept.trace.samples

    def ends(world: Any) -> None:
        parts[:] = filter(None, map(rank_info, world.ranks))
        emitting.end(trace)

    # Keep standard output for the result: send the script's prints to standard error.
    try:
        with redirect_stdout(sys.stderr), bad_usage(FileNotFoundError, TypeError, ValueError):
            memory = options.memory or (None if options.gpu_model else "16 TiB")
            gpus = {"memory": memory, "gpu_model": options.gpu_model, "nodes": options.nodes}
            found = diagnose_ranks(script, options.ranks, arguments, **gpus, ends=ends)
    finally:
        if not parts:
            emitting.end(trace)
    if options.json:
        print(json.dumps(_facts(found, kept, parts), indent=1, ensure_ascii=False))
    else:
        print(found, "", summary(kept, parts), sep="\n")
        if not any(total.calls for total in kept.totals.values()):
            WORDING.tell("not-distributed")
    if options.sarif:
        text = json.dumps(sarif(found, Path(script)), indent=1, ensure_ascii=False)
        write(options.sarif, text, "--sarif")
    return exit_code(found, options.fail_on)


def _facts(found: Diagnosis, kept: Any, parts: Any) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(found.to_json())
    facts["by_rank"] = []
    for part in parts:
        total = kept.totals[part.rank]
        held = {"peak_bytes": total.peak, "capacity_bytes": part.capacity}
        brought = {"collectives": total.calls, "bytes": total.nbytes, "waited_seconds": total.waited}
        facts["by_rank"].append({"rank": part.rank, "node": part.node, **held, **brought})
    return facts


def sarif(found: Diagnosis, script: Path) -> dict[str, Any]:
    """Return the findings in SARIF 2.1.0, which code hosts show beside the lines of code."""
    rules = {finding.name: {"id": finding.name, "help": {"text": finding.fix}} for finding in found.findings}
    driver = {"name": "labkit", "version": __version__, "rules": list(rules.values())}
    results = [
        {
            "ruleId": finding.name,
            "level": finding.severity,  # SARIF has the same three
            "message": {"text": f"{finding.reason}\n{WORDING['do'](fix=finding.fix)}"},
            "locations": _locations(finding, script),
        }
        for finding in found.findings
    ]
    notes = [{"level": "warning", "message": {"text": found.summary()}}] * (
        not getattr(found, "judged", True)
    )
    invocation = {"executionSuccessful": True, "toolExecutionNotifications": notes}
    one = {"tool": {"driver": driver}, "invocations": [invocation], "results": results}
    return {"version": "2.1.0", "runs": [one]}


def _locations(finding: Finding, script: Path) -> list[dict[str, Any]]:
    """Return the lines named in a finding, or the first line of the script; paths relative to the current folder."""
    named = re.findall(r"([\w.\-]+\.py):(\d+)", finding.where) or [(script.name, "1")]
    found = []
    for name, line in dict.fromkeys(named):
        folder = script.parent
        path = folder / name if (folder / name).is_file() else next(folder.rglob(name), script)
        region = {"artifactLocation": {"uri": _relative(path)}, "region": {"startLine": int(line)}}
        found.append({"physicalLocation": region})
    return found


def _relative(path: Path) -> str:
    whole = path.resolve()
    return (whole.relative_to(Path.cwd()) if whole.is_relative_to(Path.cwd()) else whole).as_posix()
