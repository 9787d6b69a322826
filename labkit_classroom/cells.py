"""Parse the text form of a notebook: a list of cells in English and Chinese.

A cell begins with ``%% id`` (text) or ``%% id code`` (with a tag, if it has one: ``%% id code parameters``);
in a text cell a line ``%% zh`` stands between English and Chinese.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .messages import Problem, Words

_HEAD = re.compile(r"%% (?P<id>[a-z0-9-]+)(?P<code> code)?(?: (?P<tag>[\w-]+))?")
BETWEEN = "%% zh"


@dataclass(frozen=True)
class BilingualCell:
    """A cell of the text, in both languages."""

    id: str
    code: bool
    tag: str | None
    text: Words

    @property
    def role(self) -> str:
        """Return ``text``, or a code cell's tag, or ``free`` without a tag."""
        return (self.tag or "free") if self.code else "text"


def parse(text: str) -> list[BilingualCell]:
    """Parse the cells. Raise Problem with the number of an invalid line."""
    found: list[tuple[re.Match[str], list[list[str]]]] = []  # the first line of each cell, and its texts
    for number, line in enumerate(text.splitlines(), 1):
        head = _HEAD.fullmatch(line.rstrip())
        if line.rstrip() == BETWEEN:
            if not found or found[-1][0]["code"] or len(found[-1][1]) == 2:
                raise _problem_at_line(
                    number,
                    f"'{BETWEEN}' stands once, inside a text cell",
                    f"'{BETWEEN}' 在文字单元格里写一次",
                )
            found[-1][1].append([])
        elif head:
            id = head["id"]
            if any(id == other["id"] for other, _ in found):
                raise _problem_at_line(number, f"there are two cells {id!r}", f"有两个单元格都叫 {id!r}")
            found.append((head, [[]]))
        elif line.startswith("%% "):  # cell magics such as %%writefile have no blank
            raise _problem_at_line(
                number, f"not a cell's first line: {line!r}", f"不是单元格的首行：{line!r}"
            )
        elif found:
            found[-1][1][-1].append(line)
        elif line.strip():
            raise _problem_at_line(number, "text before the first cell", "第一个单元格之前有文字")
    made = []
    for head, texts in found:
        if not head["code"] and len(texts) != 2:
            raise Problem(
                en=f"cell {head['id']}: no Chinese; it follows a line '{BETWEEN}'",
                zh=f"单元格 {head['id']}：没有中文；中文写在 '{BETWEEN}' 这一行之后",
            )
        both = ("\n".join(lines).strip("\n") for lines in (texts[0], texts[-1]))
        made.append(BilingualCell(head["id"], bool(head["code"]), head["tag"], Words(*both)))
    return made


def _problem_at_line(line: int, en: str, zh: str) -> Problem:
    return Problem(en=f"line {line}: {en}", zh=f"第 {line} 行：{zh}")
