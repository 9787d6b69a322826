"""The text form of a notebook in two languages: cells one below the other, each with its English and its Chinese.

A cell begins with ``%% id`` (text) or ``%% id code`` (with a tag, if it has one: ``%% id code parameters``);
in a text cell a line ``%% zh`` stands between English and Chinese.
"""

from __future__ import annotations

import re

from .words import Problem

_HEAD = re.compile(r"%% (?P<id>[a-z0-9-]+)(?P<code> code)?(?: (?P<tag>[\w-]+))?")
BETWEEN = "%% zh"


def parse(text: str) -> list[tuple[str, bool, str | None, tuple[str, str]]]:
    """(id, whether it is code, tag, (English, Chinese)) of each cell; Problem names the line that is wrong."""
    found: list[tuple[str, bool, str | None, list[list[str]]]] = []
    for number, line in enumerate(text.splitlines(), 1):
        head = _HEAD.fullmatch(line.rstrip())
        if line.rstrip() == BETWEEN:
            if not found or found[-1][1] or len(found[-1][3]) == 2:
                raise _at(
                    number,
                    f"'{BETWEEN}' stands once, inside a text cell",
                    f"'{BETWEEN}' 在文字单元格里写一次",
                )
            found[-1][3].append([])
        elif head:
            id = head["id"]
            if any(id == cell[0] for cell in found):
                raise _at(number, f"there are two cells {id!r}", f"有两个单元格都叫 {id!r}")
            found.append((id, bool(head["code"]), head["tag"], [[]]))
        elif line.startswith("%% "):  # a cell magic, %%writefile, has no blank
            raise _at(number, f"not a cell's first line: {line!r}", f"不是单元格的首行：{line!r}")
        elif found:
            found[-1][3][-1].append(line)
        elif line.strip():
            raise _at(number, "text before the first cell", "第一个单元格之前有文字")
    for id, code, _, texts in found:
        if not code and len(texts) != 2:
            raise Problem(
                en=f"cell {id}: no Chinese; it follows a line '{BETWEEN}'",
                zh=f"单元格 {id}：没有中文；中文写在 '{BETWEEN}' 这一行之后",
            )
    return [
        (id, code, tag, ("\n".join(texts[0]).strip("\n"), "\n".join(texts[-1]).strip("\n")))
        for id, code, tag, texts in found
    ]


def _at(line: int, en: str, zh: str) -> Problem:
    return Problem(en=f"line {line}: {en}", zh=f"第 {line} 行：{zh}")
