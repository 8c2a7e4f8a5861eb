"""Why a training could not be made faster, or not by much."""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot

import numpy as np

from lightning_boa.planning.fitting import MEDIAN_TO_MEAN_ERROR
from lightning_boa.planning.network import NetworkFindings
from lightning_boa.planning.orchestration import Orchestration
from lightning_boa.planning.records import SplitMeasurement

WORTH_A_WORD = 1.05
SLOW_LOADER = 0.2
ABOUT_EQUAL = 0.05
DOMINANT = 0.5
FEW_ROWS = 4
SURE_ENOUGH = 0.1
LIKELY_ERRORS = 2.0


def hindrance(
    orchestration: Orchestration | None,
    *,
    fixed_reason: str = "",
    gain: float | None = None,
    gain_error: float = 0.0,
    loader_share: float = 0.0,
    network: NetworkFindings | None = None,
) -> str:
    """One sentence, without a full stop, that says why little could be gained; empty where much was.

    Args:
        orchestration: the state at the end of the training; None where nothing was measured.
        fixed_reason: why nothing was, in a few words.
        gain: how many times as fast as under the equal split a step was, None where that is not known.
        gain_error: standard error of ``gain``.
        loader_share: the part of a step, 0 to 1, in which the rank that waits longest waits for its batch.
        network: what communication costs.
    """
    if orchestration is None:
        return f"{fixed_reason or 'the shares were given'}: nothing was measured"
    if orchestration.phase == "warmup":
        return "the training ended within the warm-up, before a plan was made"
    if gain is not None and gain >= WORTH_A_WORD and gain - 1 > LIKELY_ERRORS * gain_error:
        return ""
    equal = orchestration.equal_measurement
    equal_rows = orchestration.settings.equal_batch_sizes
    if equal is None and orchestration.planned_measurement is None:
        return orchestration.reason
    if loader_share > SLOW_LOADER:
        return (
            f"a step waits for its loader during {loader_share:.0%} of its time, which no split of the rows makes"
            " shorter; more workers (DataLoader(num_workers=…)) or a faster data set would"
        )
    if network is not None and network.network_bound:
        return network.summary
    if gain is not None and gain < 1 and orchestration.plan.batch_sizes != equal_rows:
        return (
            "steps were longer than what the devices compute explains: pauses or other work on the machine, which no"
            " split of the rows makes shorter"
        )
    return (_of_the_devices(orchestration, equal) if equal else "") or _of_the_gain(
        orchestration, gain, gain_error
    )


def _of_the_devices(orchestration: Orchestration, equal: SplitMeasurement) -> str:
    """What hinders where the split could not be better."""
    compute = np.asarray(equal.rank_compute)
    if not compute.all():
        return ""
    spread = float(compute.max() / compute.min() - 1)
    noise = max((fit.noise for fit in orchestration.fits if fit is not None), default=0.0)
    chance = 2 * LIKELY_ERRORS * MEDIAN_TO_MEAN_ERROR * noise / equal.steps**0.5
    if spread <= max(ABOUT_EQUAL, chance) and orchestration.plan.batch_sizes == equal.batch_sizes:
        return f"the devices are equally fast (within {max(spread, 0.001):.1%}), so the equal split is the best one"
    slowest = int(compute.argmax())
    rows = equal.batch_sizes[slowest] // orchestration.settings.granularity
    if rows < FEW_ROWS:
        return (
            f"the batch is too small to be shared by speed: the equal split gives a rank {equal.batch_sizes[slowest]}"
            f" row{'s' if equal.batch_sizes[slowest] > 1 else ''}"
            f"{_in_multiples(orchestration.settings.granularity)}"
        )
    fixed = _fixed_share(orchestration, slowest, equal.batch_sizes)
    if fixed > DOMINANT:
        return (
            f"the batch is too small: at least {fixed:.0%} of what the slowest device (rank {slowest}) computes in a"
            " step does not depend on its rows; a larger global batch would gain more"
        )
    return ""


def _in_multiples(granularity: int) -> str:
    return f", in multiples of {granularity}" if granularity > 1 else ""


def _fixed_share(orchestration: Orchestration, rank: int, batch_sizes: Sequence[int]) -> float:
    """The part of a rank's seconds under the equal split that it surely takes for a single row too; 0 where noise hides
    it, which grows with the way from the measured sizes to a single row."""
    fit = orchestration.fits[rank]
    if fit is None or len(fit.batch_sizes) < 2 or fit.relative_error > SURE_ENOUGH:
        return 0.0
    sizes = fit.batch_sizes
    one, all_rows = fit.model.seconds([1, batch_sizes[rank]]).tolist()
    way = (max(sizes) - 1) / (max(sizes) - min(sizes))
    errors = hypot(*(way * fit.median_error(size) for size in (min(sizes), max(sizes))))
    return max(0.0, float(one / all_rows) - LIKELY_ERRORS * errors) if all_rows else 0.0


def _of_the_gain(orchestration: Orchestration, gain: float | None, gain_error: float) -> str:
    equal = orchestration.settings.equal_batch_sizes
    if gain is None or orchestration.plan.batch_sizes == equal:
        return orchestration.reason
    if abs(gain - 1) <= LIKELY_ERRORS * gain_error:
        return "what was gained is within the noise of the measurement"
    return f"the devices differ too little: the best split gains {gain - 1:.1%}"
