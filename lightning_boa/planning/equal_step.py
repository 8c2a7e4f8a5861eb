"""What a step would take under the equal split, while another one is trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt
from statistics import median

import numpy as np
from numpy.typing import NDArray

from lightning_boa.planning.fitting import MAD_TO_DEVIATION, MEDIAN_TO_MEAN_ERROR
from lightning_boa.planning.orchestration import Orchestration
from lightning_boa.planning.records import SplitMeasurement, step_costs
from lightning_boa.planning.watching import Block, Watch

LEAST_DOUBT = 0.02


@dataclass(frozen=True)
class MeasuredSplits:
    """What the warm-up has measured: a step of the equal split, and how long each rank computed in it.

    Args:
        period: seconds from one step of the equal split to the next.
        compute: each rank's seconds of computation in it.
        confirmed: each rank's seconds of computation under the warm-up's plan, as a share of what its model says; 1
            where it was not measured.
        error: standard error of the seconds that the equal split is told to take later on.
    """

    period: float
    compute: NDArray[np.float64]
    confirmed: NDArray[np.float64]
    error: float


@dataclass(frozen=True)
class EqualStep:
    """Tells the seconds of a step of the equal split at any time after the warm-up.

    They are those that the warm-up has measured, changed by as much as the slowest rank of the equal split has become
    slower or faster since: a rank's computation in a block over that under the warm-up's plan, both beside its model.
    Of a training that has never run the equal split only the models tell what it would take beside the present plan. In
    any case it is at most what the computations under the present plan would take if they grew in proportion to rows.

    Args:
        batch_sizes: rows of each rank under the equal split.
        measured: None where the equal split, or the plan, was never measured.
        error: standard error of `seconds`, in seconds, which all blocks have in common.
    """

    batch_sizes: tuple[int, ...]
    measured: MeasuredSplits | None
    error: float

    @classmethod
    def of(cls, orchestration: Orchestration) -> EqualStep:
        """What is known once the warm-up is over."""
        assert orchestration.watch is not None
        batch_sizes = orchestration.settings.equal_batch_sizes
        equal, planned = orchestration.equal_measurement, orchestration.planned_measurement
        if equal is None or planned is None:
            slowest = float(orchestration.watch.share_times.seconds(batch_sizes).max())
            doubt = max(orchestration.watch.doubt, LEAST_DOUBT)
            return cls(batch_sizes, None, slowest * doubt)
        measured = _measured(orchestration, orchestration.watch, equal, planned)
        return cls(batch_sizes, measured, measured.error)

    def seconds(self, block: Block, batch_sizes: Sequence[int], watch: Watch) -> float:
        """Seconds from one step to the next, had the equal split held in a block in which ``batch_sizes`` did."""
        if tuple(batch_sizes) == self.batch_sizes:
            return block.period
        factors = block.scale_of_each * block.level
        computed = computing(block, batch_sizes, watch)
        known = self.measured
        if known is not None:
            now = float((known.compute * factors / known.confirmed).max())
            told = max(now, known.period + now - float(known.compute.max()))
        else:
            now = float((watch.share_times.seconds(self.batch_sizes) * factors).max())
            told = max(now, block.period + now - float(computed.max()))
        return min(told, self._most(block.period, computed, batch_sizes))

    def _most(
        self, period: float, computed: NDArray[np.float64], batch_sizes: Sequence[int]
    ) -> float:
        """No device takes longer for more rows than in proportion; what the few steps of the warm-up say beyond that is
        noise. Nothing is known of a rank without rows."""
        if not all(batch_sizes):
            return inf
        growth = np.maximum(1.0, np.divide(self.batch_sizes, batch_sizes))
        return period + float((computed * growth).max() - computed.max())


def computing(block: Block, batch_sizes: Sequence[int], watch: Watch) -> NDArray[np.float64]:
    """Each rank's seconds of computation in a step of the block, shape ``(ranks,)``; 0 without rows."""
    seconds = watch.share_times.seconds(batch_sizes) * block.scale_of_each * block.level
    return np.where(np.asarray(batch_sizes) > 0, seconds, 0.0)


def _measured(
    orchestration: Orchestration, watch: Watch, equal: SplitMeasurement, planned: SplitMeasurement
) -> MeasuredSplits:
    modelled = watch.share_times.seconds(planned.batch_sizes)
    compute = np.asarray(planned.rank_compute)
    confirmed = np.ones(len(compute))
    has_rows = (compute > 0) & (modelled > 0)
    confirmed[has_rows] = compute[has_rows] / modelled[has_rows]
    noise = median(fit.noise for fit in orchestration.fits if fit is not None)
    of_computation = noise * equal.step_compute
    of_steps = max(of_computation, _deviation_of_periods(orchestration, equal.batch_sizes))
    error = MEDIAN_TO_MEAN_ERROR * sqrt(
        of_steps**2 / equal.steps + of_computation**2 * (1 / equal.steps + 1 / planned.steps)
    )
    return MeasuredSplits(equal.step_period, np.asarray(equal.rank_compute), confirmed, error)


def _deviation_of_periods(orchestration: Orchestration, batch_sizes: Sequence[int]) -> float:
    """Standard deviation of the whole steps of a split, in seconds, robustly."""
    costs = step_costs(orchestration.counted_records, batch_sizes)
    periods = [cost.period for cost in costs]
    if len(periods) < 2:
        return 0.0
    middle = median(periods)
    spread = median(abs(period - middle) for period in periods)
    return MAD_TO_DEVIATION * spread / sqrt(1 - 1 / len(periods))
