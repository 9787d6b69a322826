"""Compile a cell's code once, to be run by each rank in a separate namespace."""

from __future__ import annotations

import ast
import asyncio
import inspect
import io
import linecache
import tokenize
from types import CodeType
from typing import Any


class RankCell:
    """Python source for ranks: the statements, and separately the last expression, whose value is shown.

    source   may use ``await`` outside of functions, as a notebook's cells may.
    name     the file name in tracebacks, ``"<Cell In[5]>"`` (pdb would make a path of a name without brackets).

    Raises SyntaxError.
    """

    def __init__(self, source: str, name: str) -> None:
        self.name = name
        # No such file exists: an entry without a time stays in the cache.
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        tree = ast.parse(source, name)
        last = tree.body[-1] if tree.body else None
        self._last: CodeType | None = None
        if isinstance(last, ast.Expr):
            tree.body.pop()
            if not ends_with_semicolon(source):
                self._last = _compile(ast.Expression(last.value), name, "eval")
            else:
                tree.body.append(last)
        self._body = _compile(tree, name, "exec")

    def run(self, namespace: dict[str, Any]) -> Any:
        """Run the code in ``namespace``; return the value of the last expression, or None."""
        __tracebackhide__ = True  # of debuggers
        codes = [code for code in (self._body, self._last) if code is not None]
        if any(code.co_flags & inspect.CO_COROUTINE for code in codes):
            value = asyncio.run(_run_async(codes, namespace))
        else:
            for code in codes:
                value = eval(code, namespace)
        return None if self._last is None else value


async def _run_async(codes: list[CodeType], namespace: dict[str, Any]) -> Any:
    for code in codes:
        value = eval(code, namespace)
        if code.co_flags & inspect.CO_COROUTINE:
            value = await value
    return value


def ends_with_semicolon(source: str) -> bool:
    """Whether a semicolon at the end of ``source`` hides the last value."""
    blank = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER, tokenize.DEDENT}
    kept = [one for one in tokenize.generate_tokens(io.StringIO(source).readline) if one.type not in blank]
    return bool(kept) and kept[-1].string == ";"


def _compile(tree: ast.Module | ast.Expression, name: str, mode: str) -> CodeType:
    code = compile(tree, name, mode, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    assert isinstance(code, CodeType)
    return code
