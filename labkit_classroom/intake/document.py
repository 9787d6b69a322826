"""Read the cells of a submitted notebook, from any tool, with limits on bytes and cells."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..messages import Problem, Remark, Words, text_maker

MOST_BYTES = 20_000_000
_MOST_CELLS = 20_000
# First bytes of other kinds of files, and what each is.
_KINDS = {
    b"%PDF": Words("a PDF", "PDF 文件"),
    b"PK\x03\x04": Words("a ZIP archive or an Office document", "压缩包或 Office 文档"),
    b"Rar!": Words("a RAR archive", "RAR 压缩包"),
    b"\x1f\x8b": Words("a .tar.gz or .gz archive", ".tar.gz 或 .gz 压缩包"),
    b"7z\xbc\xaf": Words("a 7z archive", "7z 压缩包"),
    b"\xd0\xcf\x11\xe0": Words("an old Office document", "旧版 Office 文档"),
    b"\x89PNG": Words("a picture", "图片"),
    b"\xff\xd8\xff": Words("a picture", "图片"),
}
note = text_maker(Remark, __file__)  # makes a remark on a file or answer


class WrongFile(Problem):
    """Raised for a file that is no notebook: ``note`` says what the file is, and what to hand in."""

    def __init__(self, *words: str, **facts: object) -> None:
        self.note = note("wrong-file", *words, **facts)
        super().__init__(en=self.note.en, zh=self.note.zh)


@dataclass(frozen=True)
class FoundCell:
    """A cell of a submitted notebook. ``labkit``: our metadata, {} if lost."""

    source: str
    code: bool = True
    id: str = ""
    labkit: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Document:
    """A submitted notebook. ``labkit``: our metadata, {} if lost."""

    cells: list[FoundCell]
    labkit: Mapping[str, Any] = field(default_factory=dict)


def read_document(content: bytes, most: int = MOST_BYTES) -> Document:
    """Read the cells of a notebook. Raise WrongFile for other files, and above ``most`` bytes."""
    if len(content) > most:
        raise WrongFile("too-large", most=most // 1_000_000)
    for start, kind in _KINDS.items():
        if content.startswith(start):
            raise WrongFile(what=kind)
    if not content.strip(b"\0 \t\r\n\xef\xbb\xbf"):
        raise WrongFile(what=Words("an empty file", "空文件"))
    wide = content.startswith((b"\xff\xfe", b"\xfe\xff"))
    text = content.decode("utf-16" if wide else "utf-8-sig", "replace").lstrip()
    if text.startswith("{"):
        return _notebook(text)
    if text.startswith("<"):
        raise WrongFile(what=Words("a web page", "网页"))
    raise WrongFile(what=Words("text of another kind, no JSON", "别的文本，不是 JSON"))


def _notebook(text: str) -> Document:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError, MemoryError):
        broken = Words(
            "broken JSON, cut off or changed on its way", "不完整的 JSON，可能在传输中被截断或改动"
        )
        raise WrongFile(what=broken) from None
    cells = found.get("cells")
    if not isinstance(cells, list):
        raise WrongFile(what=Words("JSON of another kind", "另一种 JSON 文件"))
    if len(cells) > _MOST_CELLS:
        raise WrongFile("too-many-cells", count=len(cells))
    return Document([_cell(cell) for cell in cells if isinstance(cell, dict)], _labkit(found))


def _cell(cell: Mapping[str, Any]) -> FoundCell:
    source = cell.get("source")
    lines = source if isinstance(source, list) else [source]
    # Replace lone surrogates, which no file can hold.
    text = "".join(line for line in lines if isinstance(line, str)).encode("utf-8", "replace").decode("utf-8")
    name = cell.get("id")
    return FoundCell(
        text.replace("\r\n", "\n").replace("\r", "\n"),
        cell.get("cell_type") == "code",
        name if isinstance(name, str) else "",
        _labkit(cell),
    )


def _labkit(found: Mapping[str, Any]) -> Mapping[str, Any]:
    metadata = found.get("metadata")
    ours = metadata.get("labkit") if isinstance(metadata, dict) else None
    return ours if isinstance(ours, dict) else {}
