"""Captions of the pictures of ranks, from ``captions.txt``."""

from __future__ import annotations

from labkit.base.texts import text_function

caption = text_function(__file__)
