"""The kinds of findings of ranks, from ``kinds.txt``, and the lessons that teach them, from ``topics.txt``."""

from __future__ import annotations

from pathlib import Path

from labkit_diagnose.findings import Topic, read_findings

KINDS, PHRASES, TOPICS = read_findings(
    *(Path(__file__).with_name(f"{name}.txt") for name in ("topics", "kinds"))
)


def topic_of(fault: str) -> Topic:
    """Return the topic that teaches a finding, or a fault among calls."""
    return TOPICS.get(fault, TOPICS["others"])
