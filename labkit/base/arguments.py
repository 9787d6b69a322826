"""argparse's own words in the language in use: commands and the notebook's magics read their arguments with it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from .language import get_language
from .patches import Patch, Patches

# What argparse says, as it asks gettext for it, and the same in Chinese.
ARGPARSE = {
    "usage: ": "用法：",
    "positional arguments": "位置参数",
    "options": "选项",
    "show this help message and exit": "显示这份帮助并退出",
    "argument %(argument_name)s: %(message)s": "参数 %(argument_name)s：%(message)s",
    "the following arguments are required: %s": "缺少必需的参数：%s",
    "one of the arguments %s is required": "参数 %s 必须给出一个",
    "not allowed with argument %s": "不能与参数 %s 同时使用",
    "unrecognized arguments: %s": "无法识别的参数：%s",
    "ambiguous option: %(option)s could match %(matches)s": "选项 %(option)s 有歧义，可能是 %(matches)s",
    "unexpected option string: %s": "此处不该有选项 %s",
    "ignored explicit argument %r": "这个选项不带值，却给了 %r",
    "expected one argument": "需要一个值",
    "expected at most one argument": "最多只能有一个值",
    "expected at least one argument": "至少需要一个值",
    "expected %s argument": "需要 %s 个值",
    "expected %s arguments": "需要 %s 个值",
    "invalid choice: %(value)r (choose from %(choices)s)": "没有 %(value)r 这个选择（可选：%(choices)s）",
    "invalid %(type)s value: %(value)r": "%(value)r 不是有效的 %(type)s",
    "unknown parser %(parser_name)r (choices: %(choices)s)": "没有命令 %(parser_name)r（可选：%(choices)s）",
}


def _argparse() -> Iterator[Patch]:
    # argparse has no other way: the catalogues that gettext reads are chosen by the system's language, as files.
    if get_language() == "zh":
        yield Patch(argparse, "_", lambda text: ARGPARSE.get(text, text))
        yield Patch(
            argparse,
            "ngettext",
            lambda one, many, count: ARGPARSE.get(one if count == 1 else many, one if count == 1 else many),
        )


def in_the_language_in_use() -> Patches:
    """A context in which argparse speaks the language in use: it looks its words up while it parses and prints help."""
    return Patches(_argparse)
