"""Captions of the pictures of ranks. Their texts are in ``captions.txt``."""

from __future__ import annotations

from ...base.texts import wording

caption = wording(__file__)
