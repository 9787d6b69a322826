"""Tests of other projects on simulated GPUs: what skips without GPUs, what passes with them, and why the rest does not.

    python tests/conformance/other_suites.py PROJECT --gpus 4 tests/test_a.py tests/test_b.py

PROJECT is a folder with the project's source; its own requirements must be installed. The tests run once without GPUs.
What skips or fails there runs once more under ``pytest --gpus N``. A failure is explained by ``other_suites.toml``;
one whose message also appears without GPUs belongs to the versions that are installed. docs/ranks.md has the results.
"""

from __future__ import annotations

import argparse
import collections
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

_spec = importlib.util.spec_from_file_location("pytorch_own", Path(__file__).with_name("pytorch_own.py"))
_spec.loader.exec_module(own := importlib.util.module_from_spec(_spec))

REASONS = Path(__file__).with_suffix(".toml")
# Reasons to skip that a GPU removes.
WANTS_GPU = r"(?i)\bgpus?\b|cuda|accelerator|nccl|hardware|devices?\b"


def run(project: Path, tests: list[str], gpus: int, seconds: float) -> dict[str, tuple[str, str]]:
    """Run the tests; return test -> (outcome, message)."""
    with tempfile.TemporaryDirectory() as folder:
        report, listed = Path(folder, "report.xml"), Path(folder, "tests.txt")
        listed.write_text("\n".join(tests), "utf-8")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", f"@{listed}"]
        command += ["--continue-on-collection-errors", f"--junitxml={report}", f"--timeout={seconds}"]
        command += ["-o", "junit_family=xunit1", *([f"--gpus={gpus}"] if gpus else [])]
        environment = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **os.environ}
        subprocess.run(command, cwd=project, env=environment, check=False)
        cases = ElementTree.parse(report).getroot().iter("testcase")
        return dict(outcome(case, project) for case in cases)


def outcome(case: ElementTree.Element, project: Path) -> tuple[str, tuple[str, str]]:
    """Return the name of a test, as pytest takes it, with its outcome and message."""
    file, where, name = case.get("file"), case.get("classname", ""), case.get("name", "")
    # A skipped test has unittest's own function in its place.
    if file and not (project / file).resolve().is_relative_to(project.resolve()):
        folders = where.split(".")
        names = ("/".join(folders[:many]) + ".py" for many in range(len(folders), 0, -1))
        file = next((one for one in names if (project / one).is_file()), file)
    module = (file or f"{name.replace('.', '/')}.py").removesuffix(".py").replace("/", ".")
    if name == module:  # a file that could not be imported
        test = f"{name.replace('.', '/')}.py"
    else:
        inner = where.removeprefix(module).strip(".")
        test = "::".join(filter(None, [file, *inner.split("."), name]))
    for part in case:
        if part.tag == "skipped":
            return test, (own.SKIPPED, part.get("message") or "")
        if part.tag in ("failure", "error"):
            return test, (own.FAILED, f"{part.get('message')}\n{part.text}")
    return test, (own.PASSED, "")


def told(text: str) -> str:
    """Return the line of a failure that says what was wrong."""
    lines = [
        line[1:].strip()
        for line in text.splitlines()
        if re.match(r"E +[A-Za-z_][\w.]*(Error|Exception|Exit\w*)?\b", line)
    ]
    return (lines or [own.last_line(text)])[-1][:160]


def main() -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("project", type=Path)
    parser.add_argument("tests", nargs="+", help="files of the project's tests")
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=150, help="the most that one test may take")
    parser.add_argument("--everything", action="store_true", help="also run what passes without GPUs")
    options = parser.parse_args()
    plain = run(options.project, options.tests, 0, options.seconds)
    skipped = {t for t, (kind, why) in plain.items() if kind == own.SKIPPED and re.search(WANTS_GPU, why)}
    failed = {t for t, (kind, _) in plain.items() if kind == own.FAILED}
    chosen = options.tests if options.everything else sorted(skipped | failed)
    found = run(options.project, chosen, options.gpus, options.seconds) if chosen else {}
    report(plain, skipped, found, options.gpus)
    return 0


def report(
    plain: dict[str, tuple[str, str]], skipped: set[str], found: dict[str, tuple[str, str]], gpus: int
) -> None:
    """Print the counts, and each class of failures and skips."""
    without = collections.Counter(kind for kind, _ in plain.values())
    print(f"\nwithout GPUs: {len(plain)} tests, {without[own.PASSED]} pass, {without[own.FAILED]} fail, "
          f"{without[own.SKIPPED]} skip, {len(skipped)} of them for want of GPUs")  # fmt: skip
    before = {told(text) for kind, text in plain.values() if kind == own.FAILED}
    counts: collections.Counter[str] = collections.Counter()
    reasons: collections.Counter[tuple[str, str]] = collections.Counter()
    for test, (kind, text) in found.items():
        category, why = kind, text.splitlines()[0][:100] if kind == own.SKIPPED and text else ""
        if kind == own.FAILED:
            known = own.explained(test, text, REASONS)
            same = (
                (own.VERSION, "fails without GPUs, too")
                if told(text) in before
                else (own.UNEXPLAINED, told(text))
            )
            category, why = known or same
        counts[category] += 1
        if category != own.PASSED:
            reasons[category, why] += 1
    print(
        f"--gpus {gpus}: {len(found)} tests, " + ", ".join(f"{n} {kind}" for kind, n in counts.most_common())
    )
    for (category, why), number in reasons.most_common():
        print(f"  {number:4} {category:12} {why}")


if __name__ == "__main__":
    sys.exit(main())
