"""One colour per device, in every picture.

Eight colours that are distinct under the common colour-vision deficiencies (Okabe and Ito, "Color Universal Design",
2008), then lighter and darker ones. Past eight, position and label tell GPUs apart.
"""

from __future__ import annotations

from functools import cache

_BASE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#7F7F7F")
_SHIFTS = (0.0, 0.35, -0.25, 0.55, -0.4, 0.2, -0.12, 0.45)


# The CPU's number among GPUs.
CPU = -1
_CPU = "#4B5563"


def number(device: str) -> int:
    """Return the number of a device: ``"cuda:3"`` is 3, ``"cuda"`` 0, the CPU :data:`CPU`."""
    kind, _, ordinal = device.partition(":")
    return CPU if kind == "cpu" else int(ordinal or 0)


@cache
def colour(gpu: int, tint: float = 0.0) -> str:
    """Return the fill of ``cuda:<gpu>`` (or of :data:`CPU`) as #rrggbb, with a share ``tint`` of white."""
    shift = _SHIFTS[gpu // len(_BASE) % len(_SHIFTS)]
    full = _CPU if gpu == CPU else _mix_with_white(_BASE[gpu % len(_BASE)], shift)
    return _mix_with_white(full, tint) if tint else full


@cache
def ink(gpu: int, tint: float = 0.0) -> str:
    """Return black or white, whichever is readable on the device's colour (relative luminance, WCAG 2)."""
    channels = [int(colour(gpu, tint)[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    # The contrasts with white and black are (1.05)/(L + .05) and (L + .05)/.05.
    return "#ffffff" if 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05 else "#000000"


def _mix_with_white(colour: str, shift: float) -> str:
    """Lighten for a shift above 0 (1 is white), darken below (-1 is black)."""
    target = 255 if shift > 0 else 0
    channels = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    mixed = [round(c + (target - c) * abs(shift)) for c in channels]
    return "#" + "".join(f"{c:02x}" for c in mixed)
