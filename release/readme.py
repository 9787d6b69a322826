"""The README as package indexes show it: they know no other file of the repository, so links get its address.

A metadata hook of hatchling, which runs it when a package is built.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


def absolute(text: str, repository: str) -> str:
    """``text`` with its links and pictures of the repository's own files as addresses."""
    at = f"{repository}/blob/HEAD/"
    text = re.sub(r"(?<=\]\()(?!https?:|#|mailto:)([^)]+)", rf"{at}\1", text)
    return re.sub(r'((?:src|href)=")(?!https?:|#)([^"]+)', rf"\1{repository}/raw/HEAD/\2", text)


class ReadmeHook(MetadataHookInterface):
    """Gives the project its ``readme``."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text("utf-8")
        shown = absolute(text, metadata["urls"]["Repository"])
        metadata["readme"] = {"content-type": "text/markdown", "text": shown}
