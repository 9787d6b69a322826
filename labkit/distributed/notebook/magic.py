"""``%%ranks 4``: a notebook cell that four ranks run, each in its own namespace, which lasts to the next such cell."""

from __future__ import annotations

import argparse
import shlex
import sys
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from ...base.arguments import in_the_language_in_use
from ...base.language import say
from ...cost.hardware import accelerator

if TYPE_CHECKING:
    from .results import Results
    from .session import Session

NAME = "ranks"


class _Wrong(Exception):
    """The magic's line cannot be read."""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise _Wrong(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog=f"%%{NAME}", add_help=False, exit_on_error=False)

    def add(*names: str, en: str, zh: str, **facts: Any) -> None:
        if names[0] in _SWITCHES:
            facts["action"] = "store_true"
        parser.add_argument(*names, help=say(en=en, zh=zh), **facts)

    en, zh = "how many ranks; default: as many as last time", "启动几个 rank；不写就沿用上一次的"
    add("size", nargs="?", metavar="N", en=en, zh=zh)
    add("--rank", metavar="0,2-3", en="only these run the cell", zh="只让这些 rank 运行本单元格")
    en, zh = "give the ranks these names of the notebook before", "先把笔记本里的这些名字交给各个 rank"
    add("--with", dest="names", metavar="NAME,…", en=en, zh=zh)
    en, zh = "draw below what each rank did, and where they met", "在下方画出每个 rank 做了什么、在哪里会合"
    add("--timeline", en=en, zh=zh)
    en, zh = "say below what is on each rank's GPU, and was at most", "在下方列出每个 rank 的显存用量与峰值"
    add("--summary", en=en, zh=zh)
    en, zh = "clocks go by this GPU's times: h100, a100, …", "时钟按这种 GPU 的用时走：h100、a100 等"
    add("--times", metavar="GPU", en=en, zh=zh)
    add("--restart", en="begin anew: empty namespaces, empty GPUs", zh="重新开始：名字和 GPU 都清空")
    add("--close", en="end the ranks", zh="结束这些 rank")
    en, zh = "spread over so many simulated computers", "分布在这么多台模拟的计算机上"
    add("--nodes", type=int, metavar="N", en=en, zh=zh)
    add("--memory", metavar='"16 GiB"', en="of each GPU", zh="每块 GPU 的显存")
    en, zh = (
        'what torch.cuda tells of the GPUs: H100, T4, "RTX 4090", …',
        'torch.cuda 报告的 GPU 型号：H100、T4、"RTX 4090" 等',
    )
    add("--gpu-model", metavar="MODEL", en=en, zh=zh)
    add("--help", en="this text", zh="显示本说明")
    return parser


_SWITCHES = ("--timeline", "--summary", "--restart", "--close", "--help")


def ranks_magic(line: str, cell: str | None = None) -> object:
    """Run the cell by several ranks of torch.distributed, each with a simulated GPU: ``%%ranks 4``.

    ``%ranks`` in a line shows them; ``%ranks --help`` lists the options.
    """
    parser = _parser()
    try:
        with in_the_language_in_use():
            asked = parser.parse_args(shlex.split(line))
        if asked.help:
            with in_the_language_in_use():
                print(parser.format_help())
            return None
        session = _session(asked, cell=cell is not None)
        chosen = None if asked.rank is None else _numbers(asked.rank, session.size)
        given = _named(asked.names)
        session.times = None if asked.times is None else accelerator(asked.times)
    except (_Wrong, argparse.ArgumentError, ValueError, TypeError, RuntimeError) as error:
        raise sys.modules["IPython.core.error"].UsageError(f"%%{NAME}: {error}") from None
    if asked.close:
        session.close()
        return None
    if cell is None:
        return session
    _give(session, given)
    _run(session, cell, chosen, asked)
    return None


def _run(session: Session, cell: str, chosen: list[int] | None, asked: argparse.Namespace) -> None:
    from . import shell as notebook

    shell = notebook.shell_here()
    cells = getattr(shell.compile, "_filename_map", {})  # the number of each cell, by the name of its file
    number = _number_of_this_cell(cells, shell.execution_count)
    name = f"<Cell In[{number}]>"
    cells[name] = number  # tracebacks then say "Cell In[5], line 3"
    try:
        # The line of the magic is line 1 of the cell, as the notebook counts.
        try:
            values = session.execute("\n" + shell.transform_cell(cell), ranks=chosen, name=name)
        except SyntaxError as error:
            raise _as_shown(shell, error) from None
        except NameError as error:
            _hint(shell, error)
            raise
        if values is not None:
            _show(shell, values)
    finally:
        if asked.timeline:
            shell.display_pub.publish(*shell.display_formatter.format(session.trace))
        if asked.summary:
            shell.display_pub.publish(*shell.display_formatter.format(session.memory))


def _number_of_this_cell(cells: dict[str, int], default: int) -> int:
    """The number of the cell that runs now: IPython's own count is sometimes that, sometimes the next one's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename in cells:
            return cells[frame.f_code.co_filename]
        frame = frame.f_back
    return default


def _named(names: str | None) -> dict[str, Any]:
    """The notebook's own values of these names."""
    from . import shell as notebook

    own = notebook.shell_here().user_ns
    wanted = [name.strip() for name in (names or "").split(",") if name.strip()]
    for name in wanted:
        if name not in own:
            raise ValueError(
                say(en=f"--with: the notebook has no name {name!r}", zh=f"--with：笔记本里没有名字 {name!r}")
            )
    return {name: own[name] for name in wanted}


def _give(session: Session, values: dict[str, Any]) -> None:
    for rank in range(session.size):
        session[rank].update(values)


def _as_shown(shell: Any, error: SyntaxError) -> Exception:
    """A mistake in the cell's own text, to be shown without how it came to be read."""
    if error.__traceback__ is None or not (error.filename or "").startswith("<Cell In"):
        return error
    lines = shell.SyntaxTB.structured_traceback(SyntaxError, error, [])
    kind = type("SyntaxError", (Exception,), {"_render_traceback_": lambda self: lines})
    shown: Exception = kind(str(error))
    return shown


def _hint(shell: Any, error: NameError) -> None:
    """A name that only the notebook has: say how the ranks get it."""
    name = error.name
    if name and name in shell.user_ns:
        error.add_note(
            say(
                en=f"(The notebook has {name!r}, the ranks have names of their own: make it in a %%ranks cell, or "
                f"give it to them with %%ranks --with {name}.)",
                zh=f"（{name!r} 是笔记本里的名字，各个 rank 有自己的名字：请在 %%ranks 单元格里定义或 import 它，"
                f"或者用 %%ranks --with {name} 交给它们。）",
            )
        )


def _show(shell: Any, values: Results) -> None:
    """Show them below the cell: side by side, and each that is alive in the page alone."""
    from . import shell as notebook
    from .results import bundle_of

    if values.table():
        shell.display_pub.publish(values._repr_mimebundle_(), {})
        return
    shown = values.shown(notebook.forms)
    if not any(notebook.is_live(one.bundle) for one in shown):
        shell.display_pub.publish(bundle_of(shown), {})
        return
    for one in shown:
        print(one.head)
        shell.display_pub.publish(one.bundle, {})


def _session(asked: argparse.Namespace, *, cell: bool) -> Session:
    """The session that is open if it is what is asked for, else a new one."""
    from . import session as sessions

    now = sessions.current()
    if not cell and asked.size is None and not asked.restart:
        return sessions.ranks()
    size: Any = sessions.last_size() if asked.size is None else asked.size
    if size is None:
        raise ValueError(say(en="how many ranks? For example: %%ranks 4", zh="要几个 rank？例如：%%ranks 4"))
    if isinstance(size, str) and size.isdecimal():
        size = int(size)
    other: dict[str, Any] = {
        k: v for k in ("nodes", "memory", "gpu_model") if (v := getattr(asked, k)) is not None
    }
    same = now is not None and now.size == size and now.nodes == other.get("nodes", now.nodes)
    same = same and now is not None and now.gpu_model == other.get("gpu_model", now.gpu_model)
    if now is not None and same and now.limits == other.get("memory", now.limits):
        if asked.restart:
            now.restart()
            print(
                say(
                    en=f"({size} ranks begin anew: what was in their variables is gone)",
                    zh=f"（{size} 个 rank 重新开始：原来的变量都没有了）",
                )
            )
        return now
    made = sessions.ranks(size, **other)
    if now is not None:
        print(
            say(
                en=f"(the {now.size} ranks of before have ended, and their variables are gone; {size} new ones begin)",
                zh=f"（原来的 {now.size} 个 rank 已结束，它们的变量也没有了；新启动 {size} 个）",
            )
        )
    return made


def _numbers(text: str, size: int) -> list[int]:
    """``"0,2-3"`` as [0, 2, 3]."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or dash and not last.isdecimal():
            raise ValueError(
                say(
                    en=f"--rank must be numbers like 0,2-3, got {text!r}",
                    zh=f"--rank 要写成 0,2-3 这样的编号，现在是 {text!r}",
                )
            )
        found.update(range(int(first), int(last or first) + 1))
    if not found or max(found) >= size:
        raise ValueError(
            say(
                en=f"--rank must be from 0 to {size - 1}, got {text!r}",
                zh=f"--rank 必须在 0 到 {size - 1} 之间，现在是 {text!r}",
            )
        )
    return sorted(found)


def load(shell: Any) -> None:
    """Give ``shell`` the magic."""
    shell.register_magic_function(ranks_magic, "line_cell", NAME)
