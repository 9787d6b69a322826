"""Parse a student's Python source, without running any of it."""

from __future__ import annotations

import ast
from dataclasses import dataclass

MOST = 200_000  # characters of one answer; a usual one has less than a thousand


@dataclass(frozen=True)
class QuestionFacts:
    """The names that a question asks for, and its untouched cell."""

    id: str
    defines: tuple[str, ...]
    stub: str


def parse_source(source: str) -> ast.Module | None:
    """Return the syntax tree, or None for a text that is too long or no Python."""
    if len(source) > MOST:
        return None
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def is_unanswered(source: str | None, stub: str) -> bool:
    """Return whether ``source`` is missing, empty, or the stub, apart from blanks and comments."""
    if source is None:
        return True
    tree, untouched = parse_source(source), parse_source(stub)
    if tree is None:
        return not source.strip()
    return not tree.body or bool(untouched and ast.dump(tree) == ast.dump(untouched))


def first_line(node: ast.stmt) -> int:
    """Return the number of a statement's first line, which may be a decorator's."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(one.lineno for one in decorators)])


def names_bound_by(node: ast.stmt) -> list[str]:
    """Return the names that a top-level statement binds, in order."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [(alias.asname or alias.name).partition(".")[0] for alias in node.names]
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [inner for target in targets for inner in ast.walk(target) if isinstance(inner, ast.Name)]
        return [name.id for name in names if isinstance(name.ctx, ast.Store)]
    return []


def names_defined_in(source: str, imports: bool = True) -> list[str]:
    """Return the names that ``source`` defines, in order, with or without imported names."""
    skipped = () if imports else (ast.Import, ast.ImportFrom)
    tree = parse_source(source)
    nodes = tree.body if tree else []
    return [name for node in nodes if not isinstance(node, skipped) for name in names_bound_by(node)]
