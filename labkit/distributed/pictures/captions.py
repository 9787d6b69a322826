"""Captions of the pictures of ranks. Their texts are in ``captions.txt``."""

from __future__ import annotations

from ...view.captions import captions

caption = captions(__file__)
