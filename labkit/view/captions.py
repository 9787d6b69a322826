"""Captions: what pictures say, in titles, legends, lanes and descriptions. Their texts are in ``captions.txt``."""

from __future__ import annotations

from ..base.texts import text_function

caption = text_function(__file__)
