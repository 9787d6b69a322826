"""The kinds of findings of a check-up of ranks, the phrases around them, and where the course teaches them."""

from pathlib import Path

from ...diagnosis.findings import declared, taught

_TOPICS = Path(__file__).with_name("topics.txt")
KINDS, PHRASES = declared(_TOPICS, Path(__file__).with_name("kinds.txt"))
TAUGHT = taught(_TOPICS)  # of the kinds, and of the faults that end ranks
