"""Devices that are equally fast: the split that shows their fixed cost, and the fit that they have in common."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from math import ceil

import numpy as np

from lightning_boa.errors import PlanError
from lightning_boa.planning.allocation import allocate
from lightning_boa.planning.fitting import TimeFit, fit_medians
from lightning_boa.planning.rounds import Evidence, compared
from lightning_boa.planning.time_models import LinearTime, scaled

CHANGE = 0.25
ABOUT_EQUAL = 0.05


def second_split(
    equal: Sequence[int], *, lower: Sequence[int], upper: Sequence[int], granularity: int = 1
) -> tuple[int, ...] | None:
    """A split in which every rank whose bounds permit it has a quarter more or fewer rows than in the ``equal`` one.

    Equal devices do not need it for their plan, but one that becomes slower does. None where the bounds forbid it.
    """
    changes = [granularity * ceil(CHANGE * size / granularity) for size in equal]
    limits = list(zip(equal, changes, lower, upper, strict=True))
    may_lose = [size - change >= max(1, low) for size, change, low, _ in limits]
    may_gain = [size + change <= high for size, change, _, high in limits]
    either = [rank for rank in range(len(equal)) if may_gain[rank] and may_lose[rank]]
    must_gain = sum(may_gain) - len(either)
    wanted = ceil((must_gain + sum(may_lose)) / 2) - must_gain
    for number in sorted(range(len(either) + 1), key=lambda each: abs(each - wanted)):
        low, high = list(equal), list(equal)
        for rank, (size, change, least, most) in enumerate(limits):
            if may_gain[rank] and (not may_lose[rank] or rank in either[:number]):
                low[rank], high[rank] = size + change, most
            elif may_lose[rank]:
                low[rank], high[rank] = max(1, least), size - change
        try:
            split = allocate(
                [LinearTime(0.0, 1.0)] * len(equal),
                sum(equal),
                lower=low,
                upper=high,
                granularity=granularity,
            )
        except PlanError:
            continue
        return None if tuple(split.tolist()) == tuple(equal) else tuple(split.tolist())
    return None


def common_fits(evidence: Evidence) -> tuple[TimeFit, ...] | None:
    """The ranks' fits, with the shape that they show together; None where they are not about equally fast."""
    comparison = compared(evidence, evidence.equal)
    if not evidence.has_two_sizes or comparison.spread > max(comparison.limit, ABOUT_EQUAL):
        return None
    fits = [fit for fit in evidence.fits if fit is not None]
    together = _together(fits, [1.0] * len(fits))
    modelled = evidence.of_shares([together.model] * len(fits))
    seconds = evidence.rank_seconds(evidence.equal)
    if seconds is None or len(seconds) < len(fits):
        return None
    levels = [
        measured / float(model.seconds(size))
        for measured, model, size in zip(seconds, modelled, evidence.equal, strict=True)
    ]
    together = _together(fits, levels)
    return tuple(
        replace(
            together,
            model=scaled(together.model, level),
            seconds=tuple(level * each for each in together.seconds),
        )
        for level in levels
    )


def _together(fits: Sequence[TimeFit], levels: Sequence[float]) -> TimeFit:
    """One fit of all ranks' medians, each rank's divided by its level."""
    at_size = defaultdict(list)
    for fit, level in zip(fits, levels, strict=True):
        for size, seconds, count in zip(fit.batch_sizes, fit.seconds, fit.counts, strict=True):
            at_size[size].append((seconds / level, count))
    sizes = sorted(at_size)
    counts = [sum(count for _, count in at_size[size]) for size in sizes]
    means = [
        sum(seconds * count for seconds, count in at_size[size]) / total
        for size, total in zip(sizes, counts, strict=True)
    ]
    noise = float(np.sqrt(np.mean([fit.noise**2 for fit in fits])))
    return fit_medians(sizes, means, counts, noise)
