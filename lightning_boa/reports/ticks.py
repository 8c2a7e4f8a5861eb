"""Round numbers along an axis."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Tick:
    """``place`` is a share of the axis."""

    place: float
    words: str


def nice_ticks(least: float, most: float, *, number: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten from ``least`` to ``most``, about ``number`` of them or fewer."""
    if not most > least:
        return [least]
    rough = (most - least) / number
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.ceil(least / step - 1e-9), math.floor(most / step + 1e-9)
    return [step * count for count in range(first, last + 1)]
