"""Read answers by kind, and refuse ambiguous or excessively large ones.

Limits apply to all answers: a hint repeats the answer, and a generator may never end.
"""

from __future__ import annotations

import ast
import re
import unicodedata
from collections.abc import Callable
from itertools import islice
from operator import index
from typing import Any

from labkit.base.texts import Text, texts_beside

from .judging import Kind, Unreadable, Unwritten

_TEXTS = texts_beside(__file__)
_MOST_NUMBERS = 200
_GREATEST = 10**12
_UNITS = r"rows?|lines?|bytes?|gpus?|batch(?:es)?|pieces?|parameters?|replicas?|行|条|字节|块|个"


def whole_number(answer: object) -> int:
    """Return the answer as a whole number; accept 3.0 and a one-element tensor, but not 3.9 and True."""
    answer = _single(answer)
    if isinstance(answer, float) and answer.is_integer():
        answer = int(answer)
    try:
        value = index(answer)  # type: ignore[arg-type]
    except TypeError:
        raise Unreadable from None
    if abs(value) > _GREATEST:
        raise Unreadable
    return value


def number(answer: object) -> float:
    """Return the answer as a float; accept a one-element tensor, but not True."""
    answer = _single(answer)
    if isinstance(answer, (str, bytes)):
        raise Unreadable
    try:
        return float(answer)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise Unreadable from None


def numbers(answer: Any) -> tuple[int, ...]:
    """Return the answer as a tuple of whole numbers; accept a single number."""
    if isinstance(answer, (str, bytes, dict, set)):
        raise Unreadable
    try:
        values = list(islice(answer, _MOST_NUMBERS + 1))
    except TypeError:
        return (whole_number(answer),)
    if len(values) > _MOST_NUMBERS:
        raise Unreadable
    return tuple(whole_number(value) for value in values)


def device(answer: object) -> str:
    """Return the answer as a device's name, ``"cpu"`` or ``"cuda:0"``; accept a torch.device."""
    text = _text(answer)
    if re.search(r"cuda(\s+:|:\s)", text):
        raise Unreadable(_TEXTS["device_space"])
    text = re.sub(r"^(on |在)(the )?|上。?$", "", text)
    text = re.sub(r"^(torch\.)?device\((type=)?|index=|[\"' )“”‘’]", "", text).replace(",", ":")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", text):
        raise Unreadable
    return "cuda:0" if text == "cuda" else text


def shape(answer: object) -> tuple[int, ...]:
    """Return the answer as a shape of three dimensions."""
    found = numbers(answer)
    if len(found) != 3:
        raise Unreadable
    return found


A_WHOLE_NUMBER = Kind(whole_number, _TEXTS["whole"])
SOME_WHOLE_NUMBERS = Kind(numbers, _TEXTS["numbers"])
A_NUMBER = Kind(number, _TEXTS["number"])
A_DEVICE = Kind(device, _TEXTS["device"])
A_SHAPE = Kind(shape, _TEXTS["shape"])


def parse_typed(text: str) -> object:
    """Return the value of typed text such as ``3``, ``3/2``, ``3, 2, 2`` or ``[3，2]``; other text unchanged."""
    text = (
        unicodedata.normalize("NFKC", text).replace("、", ",").replace("【", "[").replace("】", "]").strip()
    )
    if fraction := re.fullmatch(r"(\d{1,12})\s*/\s*([1-9]\d{0,11})", text):
        return int(fraction[1]) / int(fraction[2])
    try:
        return ast.literal_eval(text.removeprefix("torch.Size"))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def readings(answer: object) -> list[object]:
    """Return possible meanings of ``answer`` (``20,000``, ``3 3 3``, ``30x5``, ``10 rows``), the likeliest first.

    The kind of answer decides whether ``20,000`` is one number or two: its first valid reading counts.
    """
    if not isinstance(answer, str):
        return [answer]
    found = [value := parse_typed(answer)]
    text = unicodedata.normalize("NFKC", answer).strip()
    if re.fullmatch(r"[-+]?\d{1,3}([, ]\d{3})+(\.\d+)?", text):
        found.append(parse_typed(re.sub("[, ]", "", text)))
    if isinstance(value, str):
        listed = re.sub(r"(?<=\d)\s*[x×*✕]\s*(?=\d)|(?<=\d)\s+(?=\d)", ", ", text.lower())
        found.append(parse_typed(listed))
    if amount := re.fullmatch(rf"(.*\d\]?)\s*(?:{_UNITS})", text.lower()):
        found += readings(amount[1])
    return found


def read_answer(answer: object, kind: Kind) -> Any:
    """Return the first reading of ``answer`` that is of this ``kind``. Raises Unreadable."""
    refused: Unreadable | None = None
    for reading in readings(answer):
        try:
            return kind.read(reading)
        except Unreadable as error:
            refused = refused or error
    raise refused or Unreadable


def a_function(name: str) -> Callable[[object], object]:
    """Return the reader of an answer that is a function, called ``name`` in the lesson."""

    def read(answer: object) -> object:
        if callable(answer):
            return answer
        raise Unreadable(_TEXTS["call"].fill({"name": name}))

    return read


def read_returned(value: Any, kind: Kind | None = None, *, en: str = "the function", zh: str = "函数") -> Any:
    """Return the value that the learner's function returned, read as ``kind``. Raises Unreadable or Unwritten."""
    if value is ...:
        raise Unwritten(_TEXTS["unwritten"])
    if value is None:
        raise Unreadable(_TEXTS["nothing"].fill({"function": Text(en, zh)}))
    if kind is None:
        return value
    try:
        return kind.read(value)
    except Unreadable:
        raise wrong_return(value, kind.wanted, en=en, zh=zh) from None


returned = read_returned  # the former name, for assignments that use it


def wrong_return(value: object, wanted: Text, *, en: str = "the function", zh: str = "函数") -> Unreadable:
    """Return the error for a learner's function that returned another kind of value than ``wanted``."""
    parts = value if isinstance(value, (list, tuple)) else [value]
    fraction = any(isinstance(part, float) and not part.is_integer() for part in parts)
    facts = {"function": Text(en, zh), "wanted": wanted, "value": quote_value(value)}
    why = _TEXTS["fraction"] if fraction else Text("", "")
    return Unreadable(_TEXTS["other"].fill(facts | {"fraction": why}))


def quote_value(value: object) -> str:
    """Return ``value`` between backticks, shortened."""
    try:
        text = " ".join(repr(value).split())
    except (Exception, SystemExit):  # a faulty __repr__, or more digits than Python prints
        return f"`<{type(value).__name__}>`"
    return f"`{text}`" if len(text) <= 58 else f"`{text[:55]}…` ({type(value).__name__})"


def _text(answer: object) -> str:
    """Return the answer as lower-case text without surrounding spaces."""
    try:
        return str(answer).strip().lower()
    except Exception:  # a faulty __str__, or more digits than Python prints
        raise Unreadable from None


def _single(answer: Any) -> Any:
    """Return the number in a one-element tensor or array; refuse True and False; other values unchanged."""
    if hasattr(answer, "item"):
        try:
            answer = answer.item()
        except (TypeError, ValueError, RuntimeError):  # NumPy's and PyTorch's errors for more elements
            raise Unreadable from None
    if isinstance(answer, bool):
        raise Unreadable
    return answer
