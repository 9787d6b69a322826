"""The kinds of findings of ranks, from ``kinds.txt``, and the lessons that teach them, from ``topics.txt``."""

from __future__ import annotations

from pathlib import Path

from labkit_diagnose.findings import read_findings, read_topics

_TOPICS = Path(__file__).with_name("topics.txt")
KINDS, PHRASES = read_findings(_TOPICS, Path(__file__).with_name("kinds.txt"))
TAUGHT = read_topics(_TOPICS)  # by the name of a finding or of a fault among calls
