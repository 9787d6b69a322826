"""Compile a cell's code once, to be run by each rank in a separate namespace."""

from __future__ import annotations

import ast
import io
import linecache
import tokenize
from types import CodeType
from typing import Any


class RankCell:
    """Python source for ranks: the statements, and separately the last expression, whose value is shown.

    name   the file name in tracebacks, ``"<Cell In[5]>"`` (pdb would make a path of a name without brackets).

    Raises SyntaxError.
    """

    def __init__(self, source: str, name: str) -> None:
        # No such file exists: an entry without a time stays in the cache.
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        tree = ast.parse(source, name)
        last = tree.body[-1] if tree.body else None
        self._last: CodeType | None = None
        if isinstance(last, ast.Expr) and not ends_with_semicolon(source):
            tree.body.pop()
            self._last = compile(ast.Expression(last.value), name, "eval", dont_inherit=True)
        self._body = compile(tree, name, "exec", dont_inherit=True)

    def run(self, namespace: dict[str, Any]) -> Any:
        """Run the code in ``namespace``; return the value of the last expression, or None."""
        __tracebackhide__ = True  # of debuggers
        exec(self._body, namespace)
        return None if self._last is None else eval(self._last, namespace)


def ends_with_semicolon(source: str) -> bool:
    """Whether a semicolon at the end of ``source`` hides the last value."""
    blank = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER, tokenize.DEDENT}
    kept = [one for one in tokenize.generate_tokens(io.StringIO(source).readline) if one.type not in blank]
    return bool(kept) and kept[-1].string == ";"
