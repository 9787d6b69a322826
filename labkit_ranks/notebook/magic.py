"""``%%ranks 4``: a notebook cell that four ranks run, in namespaces that last from cell to cell."""

from __future__ import annotations

import argparse
import shlex
import sys
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from labkit.base.arguments import localize_argparse
from labkit.base.language import say, wrong
from labkit.base.texts import texts_beside
from labkit.cost.hardware import accelerator

if TYPE_CHECKING:
    from .session import Session

NAME = "ranks"


class _MagicParser(argparse.ArgumentParser):
    """A parser that raises ValueError instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def _make_parser() -> argparse.ArgumentParser:
    parser = _MagicParser(prog=f"%%{NAME}", add_help=False, exit_on_error=False)
    for (flag, *metavar), text in texts_beside(__file__).items():
        facts: dict[str, Any] = {"metavar": " ".join(metavar)} if metavar else {"action": "store_true"}
        parser.add_argument(flag, help=str(text), **facts, **_MORE.get(flag, {}))
    return parser


_MORE: dict[str, dict[str, Any]] = {
    "size": {"nargs": "?"},
    "--with": {"dest": "names"},
    "--nodes": {"type": int},
}


def ranks_magic(line: str, cell: str | None = None) -> object:
    """Run the cell on several ranks of torch.distributed, each with a simulated GPU: ``%%ranks 4``.

    ``%ranks`` on a line shows the ranks; ``%ranks --help`` lists the options.
    """
    parser = _make_parser()
    try:
        words = shlex.split(line)
        if any(word.partition("=")[0] in ("--rank", "--ranks") for word in words):
            en = "every rank runs the cell: for some ranks only, begin it with `if rank in (0, 2):`"
            raise wrong(
                en=en, zh="单元格由所有 rank 运行；只让部分 rank 运行，就用 `if rank in (0, 2):` 开头"
            )
        with localize_argparse():
            asked = parser.parse_args(words)
        if asked.help:
            with localize_argparse():
                print(parser.format_help())
            return None
        session = _requested_session(asked, cell=cell is not None)
        given = _notebook_values(asked.names)
        session.times = None if asked.times is None else accelerator(asked.times)
    except (argparse.ArgumentError, ValueError, TypeError, RuntimeError) as error:
        raise sys.modules["IPython.core.error"].UsageError(f"%%{NAME}: {error}") from None
    if asked.close:
        session.close()
        return None
    if cell is None:
        return session
    for rank in range(session.size):
        session[rank].update(given)
    _run_cell(session, cell, asked)
    return None


def _run_cell(session: Session, cell: str, asked: argparse.Namespace) -> None:
    from . import shell as notebook

    shell = notebook.current_shell()
    cells = getattr(shell.compile, "_filename_map", {})  # file name of each cell -> number
    number = _number_of_this_cell(cells, shell.execution_count)
    name = f"<Cell In[{number}]>"
    cells[name] = number  # tracebacks then say "Cell In[5], line 3"
    try:
        # A notebook counts the line of the magic as line 1.
        try:
            values = session.execute("\n" + shell.transform_cell(cell), name=name)
        except SyntaxError as error:
            raise _as_syntax_error(shell, error) from None
        except NameError as error:
            _add_name_hint(shell, error)
            raise
        if values is not None:
            shell.display_pub.publish(values._repr_mimebundle_(), {})
    finally:
        if asked.timeline:
            shell.display_pub.publish(*shell.display_formatter.format(session.trace))
        if asked.summary:
            shell.display_pub.publish(*shell.display_formatter.format(session.memory))


def _number_of_this_cell(cells: dict[str, int], default: int) -> int:
    """Return the number of the running cell. IPython's count is sometimes the next cell's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename in cells:
            return cells[frame.f_code.co_filename]
        frame = frame.f_back
    return default


def _notebook_values(names: str | None) -> dict[str, Any]:
    """Return the notebook's values of comma-separated ``names``."""
    from . import shell as notebook

    own = notebook.current_shell().user_ns
    wanted = list(filter(None, map(str.strip, (names or "").split(","))))
    for name in wanted:
        if name not in own:
            en, zh = f"--with: the notebook has no name {name!r}", f"--with：笔记本里没有名字 {name!r}"
            raise wrong(en=en, zh=zh)
    return {name: own[name] for name in wanted}


def _as_syntax_error(shell: Any, error: SyntaxError) -> Exception:
    """Return a syntax error of the cell that shows without labkit's traceback."""
    if error.__traceback__ is None or not (error.filename or "").startswith("<Cell In"):
        return error
    lines = shell.SyntaxTB.structured_traceback(SyntaxError, error, [])
    kind = type("SyntaxError", (Exception,), {"_render_traceback_": lambda self: lines})
    shown: Exception = kind(str(error))
    return shown


def _add_name_hint(shell: Any, error: NameError) -> None:
    """Add a note to a NameError if the notebook has the name: how to give it to the ranks."""
    name = error.name
    if name and name in shell.user_ns:
        en = f"(The notebook has {name!r}, the ranks have names of their own: make it in a %%ranks cell, or "
        en += f"give it to them with %%ranks --with {name}.)"
        zh = f"（{name!r} 是笔记本里的名字，各个 rank 有自己的名字：请在 %%ranks 单元格里定义或 import 它，"
        zh += f"或者用 %%ranks --with {name} 交给它们。）"
        error.add_note(say(en=en, zh=zh))


def _requested_session(asked: argparse.Namespace, *, cell: bool) -> Session:
    """Return the open session if it has the requested size and options, else a new one."""
    from . import session as sessions

    now = sessions.current()
    if not cell and asked.size is None and not asked.restart:
        return sessions.ranks()
    size: Any = sessions.last_size() if asked.size is None else asked.size
    if size is None:
        raise wrong(en="how many ranks? For example: %%ranks 4", zh="要几个 rank？例如：%%ranks 4")
    if isinstance(size, str) and size.isdecimal():
        size = int(size)
    given = {name: getattr(asked, name) for name in ("nodes", "memory", "gpu_model")}
    other: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    known = {} if now is None else {"nodes": now.nodes, "memory": now.limits, "gpu_model": now.gpu_model}
    if now is not None and now.size == size and known == {**known, **other}:
        if asked.restart:
            now.restart()
            en = f"({size} ranks begin anew: what was in their variables is gone)"
            print(say(en=en, zh=f"（{size} 个 rank 重新开始：原来的变量都没有了）"))
        return now
    made = sessions.ranks(size, **other)
    if now is not None:
        en = (
            f"(the previous {now.size} ranks have ended, and their variables are gone; {size} new ones begin)"
        )
        print(say(en=en, zh=f"（原来的 {now.size} 个 rank 已结束，它们的变量也没有了；新启动 {size} 个）"))
    return made


def register_magic(shell: Any) -> None:
    """Register the magic in ``shell``."""
    shell.register_magic_function(ranks_magic, "line_cell", NAME)
