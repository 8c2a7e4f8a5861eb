"""Which sets of workers can do a batch within a time, for every size of the set at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lightning_boa.errors import PlanError
from lightning_boa.planning.allocation import WorkerTimes, allocate
from lightning_boa.planning.bounds import Grid
from lightning_boa.planning.time_models import TimeModel

_NEVER = np.iinfo(np.int64).min // 2


@dataclass(frozen=True)
class Capable:
    """What sets of k = 0, 1, … workers can do within a time.

    ``can[k]`` says whether some k workers can do all rows. ``able`` are the workers that can have a share without the
    rest of the division, most rows first: the first k of them do where ``first_can[k]``, else the first k - 1 beside
    ``holders[k - 1]``, which then has the rest.
    """

    can: NDArray[np.bool_]
    first_can: NDArray[np.bool_]
    able: NDArray[np.int64]
    holders: NDArray[np.int64]

    def workers(self, size: int) -> NDArray[np.int64]:
        """``size`` workers that can, where ``can[size]``; in order."""
        if self.first_can[size]:
            return np.sort(self.able[:size])
        return np.sort(np.append(self.able[: size - 1], self.holders[size - 1]))


class CapableSets:
    """Sets of workers that each have at least ``lower`` rows, and what these sets can do.

    Raises:
        PlanError: lower bounds that differ and add up to more than ``rows``.
        MeasurementError: a time model gives a time that is not finite.
    """

    def __init__(
        self,
        time_models: Sequence[TimeModel],
        rows: int,
        *,
        lower: NDArray[np.int64],
        upper: NDArray[np.int64],
        granularity: int,
    ) -> None:
        self._models = time_models
        self._rows = rows
        self._lower = lower
        self._upper = upper
        self._grid = Grid.of(rows, lower, upper, granularity)
        self._times = WorkerTimes.of(time_models)
        self._times.seconds(np.minimum(lower, upper))
        self._times.seconds(upper)
        self._fits = self._fitting_sizes()

    def _fitting_sizes(self) -> NDArray[np.bool_]:
        """For k = 0, 1, … workers, whether the rows are enough for their lower bounds."""
        grid, sizes = self._grid, np.arange(self._lower.size + 1)
        if grid.lower.sum() <= grid.grains:
            return sizes > 0
        if np.any(self._lower != self._lower[0]):
            raise PlanError(
                f"min_batch_size: the lower bounds differ and add up to {self._lower.sum()} rows, which do not fit "
                f"into {self._rows} rows in multiples of {grid.granularity}; give one number for all workers, or lower "
                "bounds that fit together"
            )
        least = (sizes - 1) * grid.lower[0] + grid.lower_with_rest[0]
        fits: NDArray[np.bool_] = (sizes > 0) & (least <= grid.grains)
        return fits

    def within(self, seconds: float, members: NDArray[np.bool_]) -> Capable:
        """What sets of ``members`` (a mask of all workers) can do within ``seconds``."""
        grid, workers = self._grid, members.size
        rows = np.where(members, self._times.most_rows(seconds, self._lower, self._upper), -1)
        grains = rows // grid.granularity
        grains_with_rest = (rows - grid.rest) // grid.granularity
        with_rest = np.where(grains_with_rest >= grid.lower_with_rest, grains_with_rest, _NEVER)
        able = np.flatnonzero(grains >= grid.lower)
        able = able[np.argsort(-grains[able], kind="stable")]
        first_sums = np.append(0, np.cumsum(grains[able]))

        inside = np.full(workers + 1, _NEVER)
        held_inside = np.maximum.accumulate(with_rest[able] - grains[able])
        inside[1 : able.size + 1] = first_sums[1:] + held_inside

        unable = with_rest.copy()
        unable[able] = _NEVER
        candidates = np.append(able, np.argmax(unable))
        held = np.append(with_rest[able], unable.max())
        best_from = _greatest_from(held)
        beside = np.full(workers + 1, _NEVER)
        sizes = min(candidates.size, workers)
        beside[1 : sizes + 1] = (first_sums + held[best_from])[:sizes]

        first_can = inside >= grid.grains
        return Capable(
            can=self._fits & (first_can | (beside >= grid.grains)),
            first_can=first_can,
            able=able,
            holders=candidates[best_from],
        )

    def best_split(self, workers: NDArray[np.int64]) -> tuple[NDArray[np.int64], float]:
        """The rows of each of these workers that make the slowest fastest, and its seconds."""
        models = [self._models[worker] for worker in workers.tolist()]
        split = allocate(
            models,
            self._rows,
            lower=self._lower[workers],
            upper=self._upper[workers],
            granularity=self._grid.granularity,
        )
        return split, float(WorkerTimes.of(models).seconds(split).max())


def _greatest_from(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each place, the place of the greatest value from there on."""
    backwards = values[::-1]
    leads = np.append(True, backwards[1:] > np.maximum.accumulate(backwards)[:-1])
    places = np.maximum.accumulate(np.where(leads, np.arange(values.size), 0))
    return values.size - 1 - places[::-1]
