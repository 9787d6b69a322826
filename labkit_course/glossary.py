"""The terms of the course in both languages, and a check that texts use them as written.

The terms stand in ``content/glossary.txt``. A text in two languages is checked as a pair: where the English has a term,
the Chinese has its Chinese term, and nowhere stands a word that another translation would use for it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from labkit.base.language import say
from labkit.base.texts import Text, parse

from .content import FOLDER


@dataclass(frozen=True)
class Term:
    """A term, and in one line what it means, in both languages.

    forms    the English forms that stand for it, as a regular expression; "" where the word is too common
             in plain English to be held to it ("split" the verb).
    written  Chinese that counts as using it, besides ``zh`` itself.
    elsewhere   what other texts call it, which a Chinese reader is shown.
    wrong       translations that no text of the course may have, and that no reader sees.
    """

    en: str
    zh: str
    means: Text
    forms: str
    written: tuple[str, ...]
    elsewhere: tuple[str, ...]
    wrong: tuple[str, ...]


@cache
def terms() -> tuple[Term, ...]:
    """All terms, in the order of the glossary."""
    found = []
    for entry in parse((FOLDER / "glossary.txt").read_text("utf-8")):
        en, zh, *more = " ".join(entry.words).split(" | ")
        forms, *lists = (["" if part == "-" else part for part in more] + [""] * 4)[:4]
        others = [tuple(filter(None, words.split("、"))) for words in lists]
        found.append(Term(en, zh, entry.texts[""], forms, *others))
    return tuple(found)


def problems(en: str, zh: str) -> list[str]:
    """The faults in the terms of a text in two languages, a line each; [] if nothing is.

    `Code` between backticks is left out of both: it is the same in every language.
    """
    en, zh = _prose(en).lower(), _prose(zh)
    found = []
    for term in terms():
        if term.forms and re.search(rf"\b(?:{term.forms})\b", en):
            accepted = (*re.split("[，,] ?", term.zh), *term.written)
            if not any(word in zh for word in accepted):
                found.append(f"{term.en!r} is in the English, {term.zh!r} not in the Chinese")
        found += [f"{word!r} is written; the term is {term.zh!r}" for word in term.wrong if word in zh]
    return found


class Glossary:
    """The table of the terms, folded: shows itself as Markdown."""

    def _repr_markdown_(self) -> str:
        """One line a term: a Chinese reader also sees the English, and what the same thing is called elsewhere."""
        head = say(en="Term | What it is", zh="中文 | 英文 | 意思 | 别处也叫")
        rows = [
            say(
                en=f"{term.en} | {term.means}",
                zh=f"{term.zh} | {term.en} | {term.means} | {'、'.join(term.elsewhere)}",
            )
            for term in terms()
        ]
        title = say(en=f"{len(rows)} terms", zh=f"{len(rows)} 个术语")
        return f"<details><summary>{title}</summary>\n\n{table(head, rows)}\n\n</details>"

    def __repr__(self) -> str:
        return "\n".join(f"{term.en}: {term.zh}" for term in terms())


def table(head: str, rows: list[str]) -> str:
    """A table in Markdown; ``|`` stands between the columns."""
    columns = head.count("|") + 1
    return "\n".join(f"| {line} |" for line in [head, " | ".join(["---"] * columns), *rows])


def _prose(text: str) -> str:
    text = re.sub(r"```.*?```", " ", text, flags=re.DOTALL)
    text = re.sub(r"`[^`]*`|<[^>]*>", " ", text)
    return re.sub(r"\]\([^)]*\)", "] ", text)
