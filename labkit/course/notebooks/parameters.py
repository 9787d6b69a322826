"""A notebook's parameters: what its ``parameters`` cell declares, and whether a given value fits.

papermill writes any name and any value into the notebook as code, unchecked. Here a name that the notebook
does not declare is refused, and so is a value of another type than the declared one.
"""

from __future__ import annotations

import ast
from contextlib import suppress

from nbformat import NotebookNode

from ...base.language import say, wrong
from ...base.numbers import must

# What values of a declared type are called: "must be …", "必须…".
_KINDS: dict[type, tuple[str, str]] = {
    int: ("a whole number", "是整数"),
    float: ("a number", "是数"),
    bool: ("True or False", "是 True 或 False"),
    str: ("a text", "是文字"),
}


def declared(notebook: NotebookNode) -> dict[str, object]:
    """Name -> default of each parameter, from the cell tagged ``parameters``; {} if there is none."""
    cell = next((c for c in notebook.cells if "parameters" in c.metadata.get("tags", [])), None)
    found = {}
    for statement in ast.parse(cell.source).body if cell is not None else ():
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target = statement.targets[0]
        elif isinstance(statement, ast.AnnAssign):
            target = statement.target
        else:
            continue
        if isinstance(target, ast.Name) and statement.value is not None:
            found[target.id] = ast.literal_eval(statement.value)
    return found


def fit(known: dict[str, object], name: str, value: object) -> object:
    """``value`` (a text is read as the declared type) for the parameter ``name``.

    Raises ValueError with one line that names the parameter.
    """
    if name not in known:
        there = ", ".join(known)
        raise wrong(
            en=f"the notebook has no parameter {name!r}; it has {there or 'none'}",
            zh=f"笔记本没有参数 {name!r}；" + (f"它的参数有 {there}" if there else "它没有参数"),
        )
    default = known[name]
    kind = type(default)
    if kind is str and isinstance(value, str):
        return value
    if isinstance(value, str):
        with suppress(ValueError, SyntaxError):  # still a text then, refused below
            value = ast.literal_eval(value)
    if kind is float and type(value) is int:
        return float(value)
    if default is not None and type(value) is not kind:
        en, zh = _KINDS.get(kind, (kind.__name__, f"是 {kind.__name__}"))
        raise ValueError(must(say(en=f"parameter {name}", zh=f"参数 {name}"), value, en=en, zh=zh))
    return value
