"""The terms of the course in both languages, and a check that texts use them as written.

The terms stand in ``content/glossary.txt``. A text in two languages is checked as a pair: where the English has a term,
the Chinese has its Chinese term, and nowhere stands a word that another translation would use for it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from ..base.language import say
from ..base.texts import Text, parse
from ..content import FOLDER


@dataclass(frozen=True)
class Term:
    """A term, and in one line what it means, in both languages.

    forms    the English forms that stand for it, as a regular expression; "" where the word is too common
             in plain English to be held to it ("split" the verb).
    written  Chinese that counts as using it, besides ``zh`` itself.
    never    other translations of it, which readers meet elsewhere and these lessons do not use.
    """

    en: str
    zh: str
    means: Text
    forms: str
    written: tuple[str, ...]
    never: tuple[str, ...]


@cache
def terms() -> tuple[Term, ...]:
    """All terms, in the order of the glossary."""
    found = []
    for entry in parse((FOLDER / "glossary.txt").read_text("utf-8")):
        en, zh, *more = " ".join(entry.words).split(" | ")
        forms, written, never = (["" if part == "-" else part for part in more] + ["", "", ""])[:3]
        others = [tuple(filter(None, words.split("、"))) for words in (written, never)]
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
        found += [f"{word!r} is written; the term is {term.zh!r}" for word in term.never if word in zh]
    return found


class Glossary:
    """The table of the terms: shows itself as Markdown."""

    def _repr_markdown_(self) -> str:
        """One line a term: a Chinese reader also sees what the same thing is called elsewhere."""
        head = say(en="English | Chinese | What it is", zh="中文 | 英文 | 意思 | 别处的叫法")
        rows = (
            say(
                en=f"{term.en} | {term.zh} | {term.means}",
                zh=f"{term.zh} | {term.en} | {term.means} | {'、'.join(term.never)}",
            )
            for term in terms()
        )
        return table(head, [*rows])

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
