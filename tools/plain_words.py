"""Measure how plainly the packages name and describe things: ``python -m tools.plain_words [--list] [PACKAGE ...]``.

Counts functions whose name is no verb and no noun (a lone participle, preposition or adverb, as in ``told`` or
``behind``), docstrings whose first sentence leans on pronouns, comments that do, and public class names used twice.
``make lint`` fails where a share is above its limit. The limits lie near what torch, matplotlib and papermill have.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from labkit.base.ours import PACKAGES

ROOT = Path(__file__).parents[1]
LIMITS = {"names": 1.5, "docstrings": 5.0, "comments": 8.0}  # per cent

_PARTICIPLES = set(
    """told drawn made kept seen sent held met found given taken lost said laid shown known begun gone left meant stood
    written built bound brought chosen done felt grown heard hidden led lit paid risen spoken spent stuck struck taught
    thought thrown understood woken parted lent borne become come""".split()
)
_FUNCTION_WORDS = set(
    """of at in on under behind beside around away aside here there now twice once again apart over within without
    between below above beneath before after from to by with for against across along among as than together instead
    back off out up down whole such each every either both more most least only very still yet anew ahead like unlike
    alike far near next then thus what who whose whom why how where which while whoever if it me mine""".split()
)
# The recording's event and CUDA's: users know both by this name.
_NAMED_TWICE = {"Event"}
# A preposition before a noun makes a usual name: from_pretrained, to_device, before_step.
_USUAL = re.compile(r"(is|has|to|from|on|as|with|can|get|set|in|at|by|for|next|before|after|without)_[a-z]")
_NOUNS_IN_ED = {"need", "speed", "embed", "seed", "feed", "shred"}
_FIRST = re.compile(
    r"(It|Its|They|Their|Those|These|That|This|What|Whoever|Whatever|Who|Whose|Whom|All that|Of|How|Where|One|Some|None"
    r"|Such|Nobody)\b"
)
_RIDDLES = re.compile(
    r"\b(that which|(is|are) to (be|have|come|go|stand)|none is|it is none|of its own|of those|stands? for|nobody"
    r"|somebody|whoever|whom|anew|is no more|so far as|as far as it|of which|in which it|as it is|as they are"
    r"|what (it|is|they|are|stands|comes))\b",
    re.IGNORECASE,
)
_PRONOUNS = re.compile(r"\b(it|its|they|them|their|that|those|this|these|what|one|ones)\b", re.IGNORECASE)


def is_odd_name(name: str) -> bool:
    """Return whether a function's name begins with a participle or function word that takes no noun."""
    bare = name.strip("_")
    first, *others = bare.split("_")
    if not bare or _USUAL.match(bare):
        return False
    lone = not others and first.endswith("ed") and first not in _NOUNS_IN_ED
    return lone or first in _PARTICIPLES or first in _FUNCTION_WORDS


def leans_on_pronouns(sentence: str) -> bool:
    """Return whether a sentence begins with a pronoun, holds more than one in eight words, or is worded as a riddle."""
    pronouns = len(_PRONOUNS.findall(sentence))
    return bool(
        _FIRST.match(sentence) or _RIDDLES.search(sentence) or pronouns > max(1, len(sentence.split()) / 8)
    )


def read_names(tree: ast.Module) -> Iterator[tuple[int, str, bool]]:
    """Yield the line, the name and whether it is odd, for each function but the special methods."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not node.name.startswith("__"):
            yield node.lineno, node.name, is_odd_name(node.name)


def read_docstrings(tree: ast.Module) -> Iterator[tuple[int, str, bool]]:
    """Yield the line, the first sentence and whether it leans on pronouns, for each docstring."""
    for node in ast.walk(tree):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)):
            continue
        if text := ast.get_docstring(node):
            sentence = re.split(r"(?<=[.!?])\s|\n\n", text)[0].replace("\n", " ")
            yield getattr(node, "lineno", 1), sentence, leans_on_pronouns(sentence)


def read_comments(source: str) -> Iterator[tuple[int, str, bool]]:
    """Yield the line, the text and whether it leans on pronouns, for each comment of four words or more."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and len(token.string.split()) > 3 and "type:" not in token.string:
            text = token.string.lstrip("# ")
            yield token.start[0], text, leans_on_pronouns(text)


def main(arguments: list[str]) -> int:
    """Print the shares of each package, with ``--list`` the places; 1 if a share is above its limit."""
    failed = False
    classes: dict[str, list[str]] = defaultdict(list)
    for package in [one for one in arguments if one != "--list"] or [*PACKAGES, "tools"]:
        found: dict[str, list[tuple[str, int, str, bool]]] = {kind: [] for kind in LIMITS}
        for path in sorted((ROOT / package).rglob("*.py")):
            source, name = path.read_text("utf-8"), str(path.relative_to(ROOT))
            tree = ast.parse(source)
            kinds = read_names(tree), read_docstrings(tree), read_comments(source)
            for rows, kind in zip(kinds, LIMITS, strict=True):
                found[kind] += [(name, *row) for row in rows]
            if "/broken/" not in name and "/hung/" not in name:  # pairs of a fault and its repair, by design
                for node in ast.walk(tree):
                    if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                        classes[node.name].append(f"{name}:{node.lineno}")
        shares = {
            kind: 100 * sum(row[-1] for row in rows) / max(1, len(rows)) for kind, rows in found.items()
        }
        above = {kind for kind, share in shares.items() if share > LIMITS[kind]}
        failed |= bool(above)
        words = ", ".join(f"{kind} {share:.1f} % (limit {LIMITS[kind]:g})" for kind, share in shares.items())
        print(f"{package}: {words}")
        for kind in above if "--list" not in arguments else LIMITS:
            print("\n".join(f"  {name}:{line} {text}" for name, line, text, odd in found[kind] if odd))
    for name, places in classes.items():
        if len(places) > 1 and name not in _NAMED_TWICE:
            failed = True
            print(f"class {name} is defined twice: {', '.join(places)}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
