"""A recording as a page of its own: one file, no network, no script; both languages, light and dark."""

from __future__ import annotations

from html import escape

from ..base.language import LANGUAGES, get_language, say, using
from ..trace.events import Trace
from .pictures.timeline import timeline_picture
from .svg import to_svg

_STYLE = """
:root { color-scheme: light dark }
body { font: 16px/1.6 system-ui, -apple-system, 'Segoe UI', 'Noto Sans', 'PingFang SC', 'Microsoft YaHei',
  'Noto Sans CJK SC', sans-serif; background: Canvas; color: CanvasText; max-width: 60rem; margin: 1.5rem auto;
  padding: 0 1rem }
svg { width: 100%; height: auto }
pre { overflow-x: auto }
h1, h2 { line-height: 1.25; text-wrap: balance }
input[name=language] { margin-left: 1rem }
"""


def timeline_page(trace: Trace, title: str, notes: list[tuple[str, str]]) -> str:
    """What happened when, as HTML: the whole of ``trace``, its first call and its last.

    notes   what else is to be said, each in English and in Chinese.
    """
    now = get_language()
    switch = "".join(
        f'<input type="radio" name="language" id="{key}"{" checked" * (key == now)}>'
        f'<label for="{key}" lang="{key}">{name}</label>'
        for key, name in LANGUAGES.items()
    )
    shown = "".join(
        f"body:not(:has(#{key}:checked)) section[lang={key}] {{ display: none }}\n" for key in LANGUAGES
    )
    parts = []
    for at, key in enumerate(LANGUAGES):
        with using(key):
            said = "".join(f"<p>{escape(note[at])}</p>" for note in notes)
            parts.append(f'<section lang="{key}">{_told(trace, title)}{said}</section>')
    return (
        f'<!DOCTYPE html>\n<html lang="{now}">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)} – labkit</title>\n<style>{_STYLE}{shown}</style>\n<body>\n{switch}\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def _told(trace: Trace, title: str) -> str:
    calls = trace.calls()
    heading = say(en=f"Timeline of {title}", zh=f"{title} 的时间线")
    chapters = [(say(en="The whole run", zh="整个运行过程"), trace)]
    if len(calls) > 1:
        chapters += [
            (say(en="The first call", zh="第一次调用"), calls[0]),
            (say(en=f"The last of {len(calls)} calls", zh=f"最后一次调用（第 {len(calls)} 次）"), calls[-1]),
        ]
    return f"<h1>{escape(heading)}</h1>" + "".join(
        f"<h2>{escape(name)}</h2>{to_svg(timeline_picture(part))}<pre>{escape(repr(part))}</pre>"
        for name, part in chapters
    )
