"""Show a recording as a web page: one file without network and scripts, in both languages, light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path

from ..base.language import LANGUAGES, get_language, say, using
from ..trace.trace import Trace
from . import picture_registry
from .captions import caption
from .picture_registry import Chapter, Timeline
from .pictures.memory_time import memory_time_picture
from .pictures.timeline import timeline_picture
from .svg import to_svg

_STYLE = Path(__file__).with_suffix(".css").read_text("utf-8")


def timeline_page(trace: Trace, title: str, left_out: int = 0, times: str = "") -> str:
    """Return a trace in time as HTML: the whole, its first call and its last.

    Of ranks the whole, its beginning and its end, who waited for whom, and how much memory each had in use.

    left_out   how many later events of the run are not in ``trace``: the page says so.
    times      the GPU whose times these are by the model; "" for this computer's own.
    """
    now = get_language()
    switch = "".join(
        f'<input type="radio" name="language" id="{key}"{" checked" * (key == now)}>'
        f'<label for="{key}" lang="{key}">{name}</label>'
        for key, name in LANGUAGES.items()
    )
    switch += "<br>" + "".join(
        f'<input type="radio" name="zoom" id="zoom{times}"{" checked" * (times == 1)}>'
        f'<label for="zoom{times}">{times} ×</label>'
        for times in (1, 2, 4, 8)
    )
    shown = "".join(
        f"body:not(:has(#{key}:checked)) section[lang={key}] {{ display: none }}\n" for key in LANGUAGES
    )
    parts = []
    for key in LANGUAGES:
        with using(key):
            parts.append(f'<section lang="{key}">{_section(trace, title, times)}{_note(left_out)}</section>')
    return (
        f'<!DOCTYPE html>\n<html lang="{now}">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)} – labkit</title>\n<style>\n{_STYLE}{shown}</style>\n<body>\n{switch}\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def _section(trace: Trace, title: str, times: str) -> str:
    heading = say(en=f"Timeline of {title}", zh=f"{title} 的时间线")
    chapters = timeline_of(trace).chapters(trace)
    whose = caption("page", "times", *["ranks"] * bool(trace.ranks))
    if times:
        whose = caption("page", "times", "model", gpu=times)
    return f"<h1>{escape(heading)}</h1><p>{escape(whose)}</p>" + "".join(
        f'<h2>{escape(name)}</h2><div class="picture">{to_svg(picture)}</div>'
        + (f"<pre>{escape(words)}</pre>" if words else "")
        for name, picture, words in chapters
    )


def _note(left_out: int) -> str:
    if not left_out:
        return ""
    text = say(en=f"{left_out:,} later events are not drawn.", zh=f"之后还有 {left_out:,} 个事件没有画出。")
    return f"<p>{text}</p>"


def _call_chapters(trace: Trace) -> Iterator[Chapter]:
    """Yield the chapters for a recording of one process."""
    calls = trace.calls()
    chapters = [(say(en="The whole run", zh="整个运行过程"), trace)]
    if len(calls) > 1:
        chapters.append((say(en="The first call", zh="第一次调用"), calls[0]))
        chapters.append((caption("page", "last-call", count=len(calls)), calls[-1]))
    yield from ((name, timeline_picture(part), repr(part)) for name, part in chapters)
    if trace.samples:
        yield say(en="Memory", zh="显存"), memory_time_picture(trace.memory), repr(trace.memory)


DEVICE_TIMELINE = Timeline(timeline_picture, _call_chapters)


def timeline_of(trace: Trace) -> Timeline:
    """Return the timeline for ``trace``: with ranks, a lane for each rank, else for each device."""
    return (
        picture_registry.rank_timeline if trace.ranks and picture_registry.rank_timeline else DEVICE_TIMELINE
    )
