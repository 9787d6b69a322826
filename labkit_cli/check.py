"""Run torchrun scripts once each, and print the output of `torchrun --summary` and `diagnose --ranks` together.

The page shows memory and waiting time of each rank, faults with line and remedy, and the comparison with one GPU.
Several scripts with arguments are separated by `:::`. Without a script, pyproject.toml names them, and options too:
`[tool.labkit]` with `check = ["train.py --epochs 1"]`, `ranks = 8`.
Exit code 0: no fault. 1: faults. 2: bad usage. 3: not judged, because the script trained no model, the ranks exchanged
nothing, or there was nothing to compare with; the page says which. Of several scripts, 1 comes before 3.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
import tomllib
from collections.abc import Sequence
from contextlib import redirect_stdout
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from labkit import __version__

from .diagnose import exit_code
from .ending import write
from .torchrun import summary
from .usage import MODULE, UsageError, announce_loading, at_least, bad_usage, check_writable, split_program
from .wording import Wording

if TYPE_CHECKING:
    from labkit_diagnose.result import Diagnosis, Finding
    from labkit_ranks.rank.run_record import RunRecord
    from labkit_ranks.threads.world import World

WORDING = Wording(
    "check",
    ranks={"type": at_least(2), "default": 4},
    nodes={"type": at_least(1), "default": 1},
    sarif={"type": Path},
    fail_on={"choices": ("error", "warning"), "default": "warning"},
    m=MODULE,
    subject={"nargs": argparse.REMAINDER},
)
_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_SETTINGS = ("ranks", "nodes", "memory", "gpu-model", "fail-on")  # options that pyproject.toml may hold


def split_arguments(argv: list[str]) -> tuple[list[str], list[str]]:
    """Put pyproject.toml's options before the command line's, which override them. No other program gets arguments."""
    at = argv.index("check") + 1
    settings = _read_settings()
    found = [f"--{name}={settings[name]}" for name in _SETTINGS if name in settings]
    return [*argv[:at], *found, *argv[at:]], []


def _read_settings() -> dict[str, Any]:
    """Return the table ``[tool.labkit]`` of pyproject.toml in the current folder."""
    path = Path("pyproject.toml")
    if not path.is_file():
        return {}
    with bad_usage(file=path):
        text = path.read_bytes()
    try:
        settings: dict[str, Any] = tomllib.loads(text.decode()).get("tool", {}).get("labkit", {})
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from None
    unknown = sorted(set(settings) - {*_SETTINGS, "check"})
    if unknown:
        known = ", ".join((*_SETTINGS, "check"))
        raise UsageError(
            en=f"{path}: [tool.labkit] has no setting {unknown[0]}; its settings are {known}",
            zh=f"{path}：[tool.labkit] 没有 {unknown[0]} 这一项，可用的是 {known}",
        )
    scripts = settings.get("check", [])
    if not isinstance(scripts, list) or not all(isinstance(script, str) for script in scripts):
        raise UsageError(
            en=f'{path}: check must be a list of command lines such as ["train.py --epochs 1"], got {scripts!r}',
            zh=f'{path}：check 要写成命令行的列表，如 ["train.py --epochs 1"]，现在是 {scripts!r}',
        )
    return settings


def _list_scripts(words: Sequence[str]) -> list[list[str]]:
    """Return each script with its arguments: those given, or else those of pyproject.toml."""
    if words:
        cuts = [-1, *(at for at, word in enumerate(words) if word == ":::"), len(words)]
        found = [list(words[a + 1 : b]) for a, b in pairwise(cuts)]
    else:
        found = [shlex.split(line) for line in _read_settings().get("check", [])]
    if not found or not all(found):
        raise UsageError(
            en='no script given: labkit check train.py, or check = ["train.py"] under [tool.labkit] in pyproject.toml',
            zh='没有给出脚本：labkit check train.py，或者在 pyproject.toml 的 [tool.labkit] 里写 check = ["train.py"]',
        )
    return found


def run(options: argparse.Namespace) -> int:
    scripts = [split_program(words) for words in _list_scripts(["-m"] * options.module + options.subject)]
    check_writable("--sarif", options.sarif)
    if options.ranks % options.nodes:
        raise UsageError(
            en=f"--nodes must divide --ranks: {options.ranks} ranks on {options.nodes} nodes",
            zh=f"--nodes 必须能整除 --ranks：{options.nodes} 个节点分不匀 {options.ranks} 个 rank",
        )
    announce_loading()
    checked, facts = [], []
    for at, (script, arguments, module) in enumerate(scripts):
        found, kept = _check(script, arguments, module, options)
        checked.append((found, Path(f"{script.replace('.', '/')}.py" if module else script)))
        if options.json:
            facts.append(_facts(found, kept))
        else:
            if at:
                print()
            print(found, "", summary(kept), sep="\n")
            failed = any(finding.severity == "error" for finding in found.findings)
            if not failed and not any(total.calls for total in kept.totals.values()):
                WORDING.tell("not-distributed", flush=True)
    if options.json:
        print(json.dumps(facts if len(facts) > 1 else facts[0], indent=1, ensure_ascii=False))
    if options.sarif:
        write(options.sarif, json.dumps(sarif(checked), indent=1, ensure_ascii=False), "--sarif")
    codes = {exit_code(found, options.fail_on) for found, _ in checked}
    return 1 if 1 in codes else max(codes)


def _check(
    script: str, arguments: Sequence[str], module: bool, options: argparse.Namespace
) -> tuple[Diagnosis, RunRecord]:
    """Run one script; return what was found, and the record of its first run."""
    from labkit_ranks.diagnosis import diagnose_ranks
    from labkit_ranks.rank.run_record import RunRecord

    # Record the first run only: ``ends`` closes the recording, or ``finally`` if the run did not get that far.
    kept = RunRecord(0)

    def ends(world: World) -> None:
        kept.note_ranks(world.ranks)
        kept.close()

    # Keep standard output for the result: send the script's prints to standard error.
    kept.open()
    try:
        with redirect_stdout(sys.stderr), bad_usage(FileNotFoundError, TypeError, ValueError):
            memory = options.memory or (
                None if options.gpu_model else "16 TiB"
            )  # plenty, unless a GPU model is named
            gpus = {"memory": memory, "gpu_model": options.gpu_model, "nodes": options.nodes}
            found = diagnose_ranks(script, options.ranks, arguments, module=module, **gpus, ends=ends)
    finally:
        kept.close()
    return found, kept


def _facts(found: Diagnosis, kept: RunRecord) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(found.to_json())
    facts["by_rank"] = []
    for part in kept.ranks:
        total = kept.totals[part.rank]
        held = {"peak_bytes": total.peak, "capacity_bytes": part.capacity}
        brought = {"collectives": total.calls, "bytes": total.nbytes, "waited_seconds": total.waited}
        facts["by_rank"].append({"rank": part.rank, "node": part.node, **held, **brought})
    return facts


def sarif(checked: Sequence[tuple[Diagnosis, Path]]) -> dict[str, Any]:
    """Return the findings of scripts in SARIF 2.1.0, which code hosts show beside the lines of code."""
    found = [(finding, script) for diagnosis, script in checked for finding in diagnosis.findings]
    rules = {finding.name: _rule(finding) for finding, _ in found}
    driver = {"name": "labkit", "version": __version__, "rules": list(rules.values())}
    results = [
        {
            "ruleId": finding.name,
            "level": finding.severity,  # error, warning and note are SARIF's, too
            "message": {"text": f"{finding.reason}\n{WORDING['do'](fix=finding.fix)}"},
            "locations": _locations(finding, script),
        }
        for finding, script in found
    ]
    notes = [
        {"level": "warning", "message": {"text": diagnosis.summary()}}
        for diagnosis, _ in checked
        if not getattr(diagnosis, "judged", True)
    ]
    invocation = {"executionSuccessful": True, "toolExecutionNotifications": notes}
    one = {"tool": {"driver": driver}, "invocations": [invocation], "results": results}
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [one]}


def _rule(finding: Finding) -> dict[str, Any]:
    described = {"shortDescription": finding.name.replace("_", " "), "fullDescription": finding.reason}
    texts = {key: {"text": text} for key, text in (described | {"help": finding.fix}).items()}
    return {"id": finding.name, **texts, "defaultConfiguration": {"level": finding.severity}}


def _locations(finding: Finding, script: Path) -> list[dict[str, Any]]:
    """Return the lines named in a finding, or the first line of the script; paths relative to the current folder."""
    named = re.findall(r"([\w.\-]+\.py):(\d+)", finding.where) or [(script.name, "1")]
    found = []
    for name, line in dict.fromkeys(named):
        folder = script.parent
        path = folder / name if (folder / name).is_file() else next(folder.rglob(name), script)
        region = {"artifactLocation": {"uri": _uri(path)}, "region": {"startLine": int(line)}}
        found.append({"physicalLocation": region})
    return found


def _uri(path: Path) -> str:
    whole = path.resolve()
    if not whole.is_relative_to(Path.cwd()):
        return whole.as_uri()
    return quote(whole.relative_to(Path.cwd()).as_posix())
