"""The causes of differences, from ``causes.txt``, and their lessons."""

from pathlib import Path

from labkit_diagnose.findings import read_findings

CAUSES, PHRASES = read_findings(*(Path(__file__).with_name(f"{name}.txt") for name in ("topics", "causes")))
