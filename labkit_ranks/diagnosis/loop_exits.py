"""Find the exits of the loops around a line: a rank that takes one alone leaves the others waiting."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from types import CodeType

from ..calls.call import format_place

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


def loop_exits(code: CodeType, line: int) -> list[str]:
    """Return the exits of the loops in ``code`` around ``line``: ``["`break` at train.py:31"]``."""
    try:
        tree = ast.parse("".join(linecache.getlines(code.co_filename)))
    except SyntaxError:  # a notebook's magics
        return []
    found = {}
    for loop in ast.walk(tree):
        if isinstance(loop, _LOOPS) and _surrounds(loop, line):
            for exit in _exits(loop, line):
                found[exit.lineno] = f"`{type(exit).__name__.lower()}` at {format_place(code, exit.lineno)}"
    return [found[number] for number in sorted(found)]


def _surrounds(loop: ast.AST, line: int) -> bool:
    """Whether ``line`` is in the body of ``loop``, outside of functions defined in the loop."""
    return any(
        isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno)
        for node in _statements(loop)
        if not isinstance(node, _SCOPES)
    )


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below ``node``, without those inside of functions."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, _SCOPES):
            yield from _statements(child)


def _exits(loop: ast.AST, line: int) -> Iterator[ast.stmt]:
    if isinstance(loop, ast.While) and not isinstance(loop.test, ast.Constant):
        yield loop
    for node in ast.iter_child_nodes(loop):
        if isinstance(node, (ast.Break, ast.Return)):
            yield node
        elif isinstance(node, _LOOPS) and not _surrounds(node, line):
            yield from (one for one in _statements(node) if isinstance(one, ast.Return))
        elif not isinstance(node, _SCOPES):
            yield from _exits(node, line)
