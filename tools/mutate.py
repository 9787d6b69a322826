"""Mutation testing: make random small changes in labkit, one at a time, and run the tests on each.

``python -m tools.mutate SEED COUNT`` draws COUNT mutations: a reversed comparison, a removed statement, a constant plus
one, two swapped arguments. Long files are drawn more often. The nearest test files run
first, and all of ``make test`` only if none of them fails. Each line names the test that killed the mutation; a
survivor shows untested behaviour, or a change without effect.

The mutations are made in a copy of the last commit, which is removed at the end.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from labkit.base.ours import PACKAGES

ROOT = Path(__file__).resolve().parent.parent
OPPOSITE: dict[type, type] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
# Package -> the folder of its tests; those of labkit's rooms are called like the rooms.
_FOLDERS = {
    "simgpu": "machine", "labkit_diagnose": "diagnosis", "labkit_ranks": "ranks", "labkit_course": "course",
    "labkit_classroom": "classroom", "labkit_content": "course", "labkit_cli": "cli",
}  # fmt: skip
_NEAREST = 8  # test files that run first
_TIMEOUT = 120  # seconds for a test


class Mutation(NamedTuple):
    """A change of a file at ``line``, from one text to another; ``inside``: the enclosing function or class."""

    path: str
    line: int
    inside: str
    was: str
    becomes: str
    source: str  # the changed file


def changes_of(node: ast.AST) -> Iterator[str]:
    """Yield the texts that may replace an expression or a statement."""
    match node:
        case ast.Compare(ops=[op]):
            yield ast.unparse(ast.Compare(node.left, [OPPOSITE[type(op)]()], node.comparators))
        case ast.BoolOp():
            yield ast.unparse(ast.BoolOp(OPPOSITE[type(node.op)](), node.values))
        case ast.BinOp() if (
            type(node.op) in OPPOSITE and not _is_text(node.left) and not _is_text(node.right)
        ):
            yield ast.unparse(ast.BinOp(node.left, OPPOSITE[type(node.op)](), node.right))
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield ast.unparse(node.operand)
        case ast.IfExp():
            yield ast.unparse(ast.IfExp(node.test, node.orelse, node.body))
        case ast.Constant(value=bool()):
            yield str(not node.value)
        case ast.Constant(value=int() | float() as number):
            yield from (repr(number + 1), repr(number - 1))
        case ast.Call() if not any(isinstance(one, ast.Starred) for one in node.args):
            for at in range(len(node.args) - 1):
                one, other = node.args[at : at + 2]
                yield ast.unparse(
                    ast.Call(node.func, [*node.args[:at], other, one, *node.args[at + 2 :]], node.keywords)
                )
        case (
            ast.Expr(value=ast.Call())
            | ast.AugAssign()
            | ast.Raise()
            | ast.Delete()
            | ast.Continue()
            | ast.Break()
        ):
            yield "pass"
        case ast.Assign() if all(isinstance(one, (ast.Attribute, ast.Subscript)) for one in node.targets):
            yield "pass"  # without a local variable, every test fails
        case ast.Return(value=ast.expr()):
            yield "return None"


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))
    )


def mutations_of(path: str, source: str) -> list[Mutation]:
    """Return all possible mutations of a file. Each keeps the line numbers, which tests compare in tracebacks."""
    found: list[Mutation] = []
    data = source.encode()
    starts = [0]  # of each line, in bytes, as ast counts columns
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def add(place: Any, inside: str, text: str) -> None:
        start = starts[place.lineno - 1] + place.col_offset
        end = starts[place.end_lineno - 1] + place.end_col_offset
        was = data[start:end].decode()
        lost = "\n" * (was.count("\n") - text.count("\n"))
        becomes = f"({text}{lost})" if isinstance(place, ast.expr) else text + lost
        changed = (data[:start] + becomes.encode() + data[end:]).decode()
        found.append(Mutation(path, place.lineno, inside, was, text, changed))

    def visit(node: ast.AST, inside: str) -> None:
        if isinstance(node, ast.JoinedStr):  # before Python 3.12, ast has no positions inside
            return
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            inside = f"{inside}.{node.name}".lstrip(".")
        annotations = (getattr(node, "annotation", None), getattr(node, "returns", None))
        for child in ast.iter_child_nodes(node):
            if child not in annotations:
                visit(child, inside)
        if isinstance(node, ast.If):
            add(node.test, inside, f"not ({ast.unparse(node.test)})")
        for text in changes_of(node):
            add(node, inside, text)

    visit(ast.parse(source), "")
    return found


def draw_mutations(root: Path, seed: int, within: Sequence[str]) -> Iterator[Mutation]:
    """Draw mutations without repetition: first a file, weighted by lines, then a line, then a mutation."""
    chance = random.Random(seed)
    places = map(root.joinpath, within)
    files = [
        file for place in places for file in (sorted(place.rglob("*.py")) if place.is_dir() else [place])
    ]
    sources = {file.relative_to(root).as_posix(): file.read_text("utf-8") for file in files}
    lengths = [source.count("\n") for source in sources.values()]
    drawn_before: set[Mutation] = set()
    while True:
        (path,) = chance.choices(list(sources), lengths)
        if not (found := mutations_of(path, sources[path])):
            continue
        line = chance.choice(sorted({one.line for one in found}))
        mutation = chance.choice([one for one in found if one.line == line])
        if mutation not in drawn_before and _compiles(mutation.source):
            drawn_before.add(mutation)
            yield mutation


def _compiles(source: str) -> bool:
    try:
        compile(source, "", "exec")
    except SyntaxError:
        return False
    return True


def nearest_tests(root: Path, mutation: Mutation) -> list[str]:
    """Return the test files that most often name the changed module, file and function, the package's own first."""
    module = mutation.path.removesuffix(".py").replace("/", ".")
    package, room, *_ = module.split(".")
    own = root / "tests" / (room if package == "labkit" else _FOLDERS[package])
    names = {Path(mutation.path).stem, *mutation.inside.split(".")} - {"", "__init__"}
    words = re.compile("|".join(rf"\b{name.strip('_')}\b" for name in names))

    def nearness(path: Path) -> tuple[bool, int]:
        text = path.read_text("utf-8")
        return own in path.parents, 10 * text.count(module) + len(words.findall(text))

    ordered = sorted(root.glob("tests/**/test_*.py"), key=nearness, reverse=True)
    return [path.relative_to(root).as_posix() for path in ordered[:_NEAREST]]


def killing_test(root: Path, tests: Sequence[str]) -> str:
    """Run tests in ``root`` (none named: all); return the first one that fails or does not end, or ""."""
    command = [
        sys.executable, "-m", "pytest", "-x", "-q", "-n0", f"--timeout={_TIMEOUT}", "--tb=no", "-m", "not more",
        "-p", "no:cacheprovider", *tests,
    ]  # fmt: skip
    environment = os.environ | {
        "PYTHONPATH": str(root),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    failed = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", done.stdout, re.MULTILINE)
    return (
        failed[1] if failed else "" if done.returncode in (0, 5) else f"(pytest ended with {done.returncode})"
    )


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.mutate", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("seed", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--within", nargs="+", default=list(PACKAGES), help="folders or files to draw from")
    parser.add_argument(
        "--near", action="store_true", help="run only the test files that name what was changed"
    )
    parser.add_argument("--list", action="store_true", help="only print the mutations")
    options = parser.parse_args(words)
    survivors = []
    with tempfile.TemporaryDirectory(prefix="labkit-mutate-") as folder:
        subprocess.run(["git", "clone", "-q", str(ROOT), folder], check=True)
        root = Path(folder)
        for one in islice(draw_mutations(root, options.seed, options.within), options.count):
            what = f"{one.path}:{one.line} `{one.inside}` `{one.was[:70]}` → `{one.becomes[:70]}`".replace(
                "\n", " "
            )
            if options.list:
                print(what)
                continue
            file = root / one.path
            before = file.read_text("utf-8")
            file.write_text(one.source, "utf-8")
            killed = killing_test(root, nearest_tests(root, one)) or (
                "" if options.near else killing_test(root, [])
            )
            file.write_text(before, "utf-8")
            print(f"{what}: {killed or '**survived**'}", flush=True)
            survivors += [what] * (not killed)
    if not options.list:
        print(f"{options.count - len(survivors)} of {options.count} were killed.")


if __name__ == "__main__":
    main()
