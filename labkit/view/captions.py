"""The words of pictures: titles, legends, lanes and descriptions, from ``captions.txt``."""

from __future__ import annotations

from ..base.texts import text_function

caption = text_function(__file__)
