"""Mutation testing: make random small changes in labkit, one at a time, and run the tests on each.

``python -m tools.mutate SEED COUNT`` draws COUNT mutations: a reversed comparison, a removed statement, a constant plus
one, two swapped arguments. Long files are drawn more often. The tests near the changed file run first, and the rest of
``make test`` only if none of them fails. The table at the end names the test that killed each mutation; a survivor
shows untested behaviour.

The mutations are made in a copy of the last commit in ``--folder``, which also keeps the results: the next run
continues there, with the same commit. ``--part 1/2`` and ``--part 2/2`` share the work between two cores.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import CodeType
from typing import Any

from labkit.base.ours import PACKAGES

ROOT = Path(__file__).resolve().parent.parent
# The tests near each folder, and mutations that change no behaviour, with reasons.
TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
TESTS_OF: dict[str, list[str]] = TABLES["tests"]


# Drawing.

OPPOSITE: dict[type, tuple[type, ...]] = {
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,), ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt), ast.And: (ast.Or,), ast.Or: (ast.And,), ast.Add: (ast.Sub,), ast.Sub: (ast.Add,),
    ast.Mult: (ast.FloorDiv, ast.Add), ast.Div: (ast.Mult,), ast.FloorDiv: (ast.Mult,), ast.Mod: (ast.FloorDiv,),
    ast.Pow: (ast.Mult,), ast.BitAnd: (ast.BitOr,), ast.BitOr: (ast.BitAnd,), ast.LShift: (ast.RShift,),
    ast.RShift: (ast.LShift,),
}  # fmt: skip


@dataclass(frozen=True)
class Mutation:
    """A change of the text between two positions of a file."""

    path: str
    line: int
    inside: str  # the enclosing function or class
    start: int  # in characters of the file
    end: int
    was: str
    becomes: str

    def apply(self, source: str) -> str:
        """Return the changed file, with the same line numbers, which tests compare in tracebacks."""
        assert source[self.start : self.end] == self.was
        return source[: self.start] + self.becomes + source[self.end :]


class Sites(ast.NodeVisitor):
    """Collect all possible mutations of a file, in ``found``, by the line where they begin."""

    def __init__(self, path: str, source: str) -> None:
        self.path, self.source = path, source
        self.inside: list[str] = []
        self.found: dict[int, list[Mutation]] = {}
        self.starts = [0]  # of each line, in bytes: ast counts columns in bytes
        for line in source.encode().splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.bytes = source.encode()

    def add(self, node: ast.AST, becomes: str) -> None:
        place: Any = node
        first = self.starts[place.lineno - 1] + place.col_offset
        last = self.starts[place.end_lineno - 1] + place.end_col_offset
        start, end = len(self.bytes[:first].decode()), len(self.bytes[:last].decode())
        was = self.source[start:end]
        # Keep the number of lines.
        lost = was.count("\n") - becomes.count("\n")
        if isinstance(node, ast.expr):
            becomes = f"({becomes}{chr(10) * lost})"
        else:
            becomes += "\n" * lost
        found = Mutation(self.path, place.lineno, ".".join(self.inside), start, end, was, becomes)
        self.found.setdefault(place.lineno, []).append(found)

    def add_changed(self, node: ast.AST, **fields: Any) -> None:
        """Add ``node`` with other ``fields``."""
        old = dict(ast.iter_fields(node))
        self.add(node, ast.unparse(ast.fix_missing_locations(type(node)(**(old | fields)))))

    def visit_scope(self, node: ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef) -> None:
        self.inside.append(node.name)
        for child in ast.iter_child_nodes(node):
            if child is not getattr(node, "returns", None):
                self.visit(child)
        self.inside.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_scope

    def visit_arg(self, node: ast.arg) -> None:
        """Skip annotations."""

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg != "frozen":  # changes nothing unless a test assigns to a frozen field
            self.visit(node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value:
            self.visit(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Skip f-strings: before Python 3.12, ast has no positions inside."""

    def visit_If(self, node: ast.If) -> None:
        if not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            self.add(node.test, f"not ({ast.unparse(node.test)})")
            self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.add_changed(node, body=node.orelse, orelse=node.body)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        if not isinstance(node.test, ast.Constant):
            self.add(node.test, f"not ({ast.unparse(node.test)})")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1:
            for other in OPPOSITE[type(node.ops[0])]:
                self.add_changed(node, ops=[other()])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self.add_changed(node, op=OPPOSITE[type(node.op)][0]())
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, (ast.Not, ast.USub)):
            self.add(node, ast.unparse(node.operand))
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        text = any(
            isinstance(side, ast.JoinedStr)
            or (isinstance(side, ast.Constant) and isinstance(side.value, (str, bytes)))
            for side in (node.left, node.right)
        )
        if not text:
            for other in OPPOSITE.get(type(node.op), ()):
                self.add_changed(node, op=other())
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.add(node, "pass")
        for other in OPPOSITE.get(type(node.op), ()):
            self.add_changed(node, op=other())
        self.visit(node.value)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self.add(node, str(not node.value))
        elif isinstance(node.value, (int, float)):
            self.add(node, repr(node.value + 1))
            self.add(node, repr(node.value - 1))

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, (ast.Call, ast.Await, ast.YieldFrom)):
            self.add(node, "pass")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        # Removing a local variable raises NameError at once, so remove only assignments to attributes and items.
        if all(isinstance(target, (ast.Attribute, ast.Subscript)) for target in node.targets):
            self.add(node, "pass")
        self.generic_visit(node)

    def visit_Delete(self, node: ast.Delete) -> None:
        self.add(node, "pass")

    def visit_Raise(self, node: ast.Raise) -> None:
        self.add(node, "pass")
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
            self.add(node, "return None")
        self.generic_visit(node)

    def visit_Continue(self, node: ast.Continue) -> None:
        self.add(node, "pass")

    def visit_Break(self, node: ast.Break) -> None:
        self.add(node, "pass")

    def visit_Call(self, node: ast.Call) -> None:
        plain = not any(isinstance(given, ast.Starred) for given in node.args)
        if plain:
            for at in range(len(node.args) - 1):
                one, other = node.args[at : at + 2]
                if ast.dump(one) != ast.dump(other):
                    self.add_changed(node, args=[*node.args[:at], other, one, *node.args[at + 2 :]])
        self.generic_visit(node)


def meaning(code: CodeType) -> tuple[Any, ...]:
    """Return the parts of ``code`` that decide behaviour, without columns and text."""
    constants = tuple(meaning(c) if isinstance(c, CodeType) else (type(c), repr(c)) for c in code.co_consts)
    return (
        code.co_code,
        constants,
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_exceptiontable,
    )


def compile_meaning(source: str) -> tuple[Any, ...] | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        try:
            return meaning(compile(source, "", "exec"))
        except SyntaxError:
            return None


def equivalent(mutation: Mutation) -> str:
    """Return the reason in the table why a mutation changes no behaviour; "" if not listed."""
    for row in TABLES.get("equivalent", []):
        same = (mutation.path, mutation.inside, mutation.was, mutation.becomes)
        if same == (row["path"], row["inside"], row["was"], row["becomes"]):
            return str(row["because"])
    return ""


def sites(root: Path, path: str) -> dict[int, list[Mutation]]:
    source = (root / path).read_text("utf-8")
    visitor = Sites(path, source)
    visitor.visit(ast.parse(source))
    return visitor.found


def draw_mutations(root: Path, seed: int, within: Sequence[str]) -> Iterator[Mutation]:
    """Draw mutations without repetition: first a file, weighted by lines, then a line, then a mutation."""
    chance = random.Random(seed)
    files = [
        file
        for place in map(root.joinpath, within)
        for file in (sorted(place.rglob("*.py")) if place.is_dir() else [place])
    ]
    lines = [len(file.read_text("utf-8").splitlines()) for file in files]
    drawn_before: set[Mutation] = set()
    for _ in range(1_000_000):
        (file,) = chance.choices(files, lines)
        found = sites(root, file.relative_to(root).as_posix())
        if not found:
            continue
        mutation = chance.choice(found[chance.choice(sorted(found))])
        source = file.read_text("utf-8")
        after = compile_meaning(mutation.apply(source))
        if mutation not in drawn_before and after is not None and after != compile_meaning(source):
            drawn_before.add(mutation)
            yield mutation


# Running.

TEST = 120  # seconds per test; a run without output for twice as long is ended


class Copy:
    """A clone of the last commit, in which to change one file at a time and run tests."""

    def __init__(self, folder: Path, part: str) -> None:
        self.root = folder / f"tree-{part.replace('/', '-of-')}"
        if not self.root.exists():
            commit = folder / "commit"
            if not commit.exists():
                commit.write_text(_git(ROOT, "rev-parse", "HEAD"), "utf-8")
            _git(folder, "clone", "-q", str(ROOT), str(self.root))
            _git(self.root, "checkout", "-q", commit.read_text("utf-8"))
        _git(self.root, "checkout", "-q", "-f", "HEAD")
        self.passing: set[str] = set()  # tests known to pass without a mutation
        self.failing: set[str] = set()  # tests that fail without a mutation, to skip
        # Python reuses compiled code if the source has the same second and size, so give each version its own second.
        self.second = int(time.time())

    def write(self, path: str, source: str) -> None:
        self.second += 2
        file = self.root / path
        file.write_text(source, "utf-8")
        os.utime(file, (self.second, self.second))

    def pytest(self, targets: list[str], seconds: float, *options: str) -> tuple[str, str]:
        """Run the tests in ``targets``; return the first failed test, or "", and how the run ended."""
        temporary = tempfile.mkdtemp(prefix="labkit-mutate-")
        # Leave out tests that fail without a mutation; a whole file if it cannot be imported.
        left_out = [f"--{'deselect' if '::' in test else 'ignore'}={test}" for test in sorted(self.failing)]
        command = [
            sys.executable, "-m", "pytest", "-x", "-v", "-n0", f"--timeout={TEST}", "-p", "no:cacheprovider", "-m",
            "not more", "--tb=no", *left_out, *options, *targets,
        ]  # fmt: skip
        environment = os.environ | {
            "PYTHONPATH": str(self.root), "TMPDIR": temporary, "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "",  # keeping compiled code saves seconds in each run
        }  # fmt: skip
        log = self.root.parent / f"{self.root.name}.log"
        with open(log, "w") as out:
            child = subprocess.Popen(
                command,
                cwd=self.root,
                env=environment,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = _wait_for_exit(child, log, seconds)
            finally:
                _end(child, temporary)
        shutil.rmtree(temporary, ignore_errors=True)
        output = log.read_text("utf-8", "replace")
        failed = re.search(
            r"^(?:FAILED|ERROR) (\S+?\.(?:py|ipynb)(?:::.*?)?)(?: - .*)?$", output, re.MULTILINE
        )
        if failed:
            return failed[1], "failed"
        if code is None:
            return running(output), "no end"
        return ("", "passed") if code in (0, 5) else ("", f"pytest ended with {code}")


def _git(folder: Path, *words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def _wait_for_exit(child: subprocess.Popen[bytes], log: Path, seconds: float) -> int | None:
    """Return the exit status of ``child``; None after ``seconds``, or too long without output."""
    until = time.time() + seconds
    while child.poll() is None:
        if time.time() > min(until, log.stat().st_mtime + 2 * TEST):
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(0.2)
    return child.returncode


def running(output: str) -> str:
    """Return the test at which pytest's ``output`` ends; "" if all tests had ended."""
    if re.search(r"^=+ .*\bin [\d.]+s", output, re.MULTILINE):
        return ""
    tests = re.findall(r"^(\S+\.(?:py|ipynb)::.+?) *(?:(?:PASSED|SKIPPED|XFAIL)\b.*)?$", output, re.MULTILINE)
    return tests[-1] if tests else ""


def _end(child: subprocess.Popen[bytes], temporary: str) -> None:
    """Kill ``child`` and all descendants; in other process groups, find them by ``temporary`` in the environment."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"TMPDIR={temporary}\0".encode() in environment.read_bytes():
                os.kill(int(environment.parent.name), signal.SIGKILL)


def nearby_tests(root: Path, mutation: Mutation) -> list[str]:
    """Return the test files near a mutation, most relevant first: files that name the changed function, fast files."""
    folder = max((folder for folder in TESTS_OF if mutation.path.startswith(folder + "/")), key=len)
    files: list[Path] = []
    for place in TESTS_OF[folder]:
        path = root / place
        files += sorted(path.rglob("test_*.py")) if path.is_dir() else [path] * path.exists()
    words = {word.strip("_") for word in [Path(mutation.path).stem, *mutation.inside.split(".")]} - {
        "",
        "init",
    }

    def relevance(path: Path) -> int:
        text = path.read_text("utf-8")
        found = sum(min(len(re.findall(rf"\b_*{re.escape(word)}_*\b", text)), 5) for word in words)
        slow = re.search(r"subprocess|Template\(|kernel|playwright", text) is not None  # starts processes
        return found + 5 * any(word in path.stem for word in words) - 4 * slow

    ordered = sorted(dict.fromkeys(files), key=relevance, reverse=True)
    return [path.relative_to(root).as_posix() for path in ordered]


def judge_mutation(copy: Copy, mutation: Mutation, near_only: bool) -> tuple[str, str]:
    """Return the test that killed the mutation, or "", and how."""
    source = (copy.root / mutation.path).read_text("utf-8")
    first = nearby_tests(copy.root, mutation)
    others = [word for path in first for word in ("--ignore", path)]
    rounds: list[tuple[list[str], float, list[str]]] = [(first, 1800, [])]
    rounds += [] if near_only else [([], 3600, others)]
    try:
        for targets, seconds, options in rounds:
            while True:
                copy.write(mutation.path, mutation.apply(source))
                test, how = copy.pytest(targets, seconds, *options)
                if how == "passed":
                    break
                if not test or test in copy.passing:
                    return test or "(the whole run)", how
                copy.write(mutation.path, source)
                if copy.pytest([test], 300)[1] == "passed":
                    copy.passing.add(test)
                    return test, how
                copy.failing.add(test)
    finally:
        copy.write(mutation.path, source)
    return "", "survived"


def table(rows: list[dict[str, Any]]) -> str:
    """Return the results as Markdown, with the number of killed mutations."""
    lines = ["| # | where | was → becomes | killed by | s |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        was, becomes = (" ".join(row[key].split()).replace("|", "\\|") for key in ("was", "becomes"))
        killed = row["test"] or f"**{row['how']}**"
        where = f"{row['path']}:{row['line']} `{row['inside']}`"
        lines.append(
            f"| {row['number']} | {where} | `{was[:70]}` → `{becomes[:70]}` | {killed} | {row['seconds']:.0f} |"
        )
    counted = [row for row in rows if not row["how"].startswith("equivalent")]
    killed = sum(bool(row["test"]) for row in counted)
    return "\n".join([*lines, "", f"{killed} of {len(counted)} were killed."])


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("seed", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--within", nargs="+", default=list(PACKAGES), help="folders or files to draw from")
    parser.add_argument("--folder", type=Path, help="folder for the copy and the results")
    parser.add_argument("--part", default="1/1", help="1/2 and 2/2 share the work")
    parser.add_argument("--list", action="store_true", help="only print the mutations")
    parser.add_argument("--near", action="store_true", help="run only the tests near the changed file")
    options = parser.parse_args(words)
    if options.list:
        for number, mutation in enumerate(
            islice(draw_mutations(ROOT, options.seed, options.within), options.count), 1
        ):
            print(f"{number}. {mutation.path}:{mutation.line} {mutation.was!r} -> {mutation.becomes!r}")
        return
    folder = options.folder or Path(tempfile.gettempdir()) / f"labkit-mutations-{options.seed}"
    folder.mkdir(parents=True, exist_ok=True)
    copy = Copy(folder, options.part)
    share, parts = map(int, options.part.split("/"))
    results = folder / "results.jsonl"

    def read_results() -> dict[int, dict[str, Any]]:
        rows = (
            [json.loads(line) for line in results.read_text("utf-8").splitlines()] if results.exists() else []
        )
        return {row["number"]: row for row in rows}

    for number, mutation in enumerate(
        islice(draw_mutations(copy.root, options.seed, options.within), options.count), 1
    ):
        if number in read_results() or number % parts != share % parts:
            continue
        began = time.time()
        why = equivalent(mutation)
        test, how = ("", f"equivalent: {why}") if why else judge_mutation(copy, mutation, options.near)
        row = {"number": number, "test": test, "how": how, "seconds": time.time() - began, **vars(mutation)}
        with open(results, "a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
        print(f"{number}. {mutation.path}:{mutation.line} {mutation.inside}: {test or how}", flush=True)
    print(table([row for _, row in sorted(read_results().items())]))


if __name__ == "__main__":
    main()
