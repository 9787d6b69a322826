"""The terms of the course in both languages, and a check of texts for correct terms.

``labkit_content/glossary.txt`` declares the terms. The check takes a text in both languages: for each term in the
English, the Chinese must contain the Chinese term, and no rejected translation.
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
    """A term in both languages, with a definition in one line.

    forms       a regular expression of the English forms; "" for a word too common to check ("split" the verb).
    written     Chinese words accepted for it besides ``zh``.
    elsewhere   Chinese translations in other texts, shown to Chinese readers.
    wrong       rejected translations, never shown.
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
    """Return all terms, in the order of the glossary."""
    found = []
    for entry in parse((FOLDER / "glossary.txt").read_text("utf-8")):
        en, zh, *more = " ".join(entry.words).split(" | ")
        forms, *lists = (["" if part == "-" else part for part in more] + [""] * 4)[:4]
        others = [tuple(filter(None, words.split("、"))) for words in lists]
        found.append(Term(en, zh, entry.texts[""], forms, *others))
    return tuple(found)


def problems(en: str, zh: str) -> list[str]:
    """Return one line for each misused term in a text in two languages, ignoring `code` between backticks."""
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
    """The table of the terms, folded, as Markdown."""

    def _repr_markdown_(self) -> str:
        """Return one row for each term, in English by alphabet; in Chinese with the English term and other names."""
        head = say(en="Term | What it is", zh="中文 | 英文 | 意思 | 别处也叫")
        rows = [
            say(
                en=f"{term.en} | {term.means}",
                zh=f"{term.zh} | {term.en} | {term.means} | {'、'.join(term.elsewhere)}",
            )
            for term in sorted(terms(), key=lambda term: say(en=term.en.lower(), zh=""))
        ]
        title = say(en=f"{len(rows)} terms", zh=f"{len(rows)} 个术语")
        return f"<details><summary>{title}</summary>\n\n{table(head, rows)}\n\n</details>"

    def __repr__(self) -> str:
        return "\n".join(f"{term.en}: {term.zh}" for term in terms())


def table(head: str, rows: list[str]) -> str:
    """Return a Markdown table; ``|`` separates the columns."""
    columns = head.count("|") + 1
    return "\n".join(f"| {line} |" for line in [head, " | ".join(["---"] * columns), *rows])


def _prose(text: str) -> str:
    text = re.sub(r"```.*?```", " ", text, flags=re.DOTALL)
    text = re.sub(r"`[^`]*`|<[^>]*>", " ", text)
    return re.sub(r"\]\([^)]*\)", "] ", text)
