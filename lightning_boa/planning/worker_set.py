"""Which workers a step should have: the exact best set for given times and communication."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lightning_boa.errors import MeasurementError, OptionError, PlanError
from lightning_boa.planning.allocation import WorkerTimes, allocate
from lightning_boa.planning.bounds import Grid, per_rank, positive_integer
from lightning_boa.planning.communication import Communication
from lightning_boa.planning.plan import BatchPlan, predicted_plan
from lightning_boa.planning.time_models import TimeModel

_ROUNDING = 1e-12
_NEVER = np.iinfo(np.int64).min // 2
_RANKS_NAMED = 8


@dataclass(frozen=True)
class WorkerSet:
    """The workers with which a step is shortest, out of ``world_size``.

    ``ranks`` are those kept, in order, and ``plan`` their rows and predicted seconds of computation, in the order of
    ``ranks``. ``communication_seconds`` is what their exchange adds to it; ``all_seconds`` the shortest step with all
    workers, communication included, or None where not all of them can have rows.
    """

    ranks: tuple[int, ...]
    plan: BatchPlan
    communication_seconds: float
    world_size: int
    all_seconds: float | None

    @property
    def left_out(self) -> tuple[int, ...]:
        """The ranks that are not kept."""
        return tuple(sorted(set(range(self.world_size)) - set(self.ranks)))

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Rows of each of all workers, 0 for those left out."""
        rows = dict(zip(self.ranks, self.plan.batch_sizes, strict=True))
        return tuple(rows.get(rank, 0) for rank in range(self.world_size))

    @property
    def step_seconds(self) -> float:
        """Predicted seconds of a step, communication included."""
        assert self.plan.step_seconds is not None
        return self.plan.step_seconds + self.communication_seconds

    @property
    def gain(self) -> float | None:
        """Relative gain in steps per second over all workers; None where not all can have rows."""
        return None if self.all_seconds is None else self.all_seconds / self.step_seconds - 1

    @property
    def network_bound(self) -> bool:
        """Whether the exchange takes longer than the computation."""
        return self.communication_seconds > self.step_seconds / 2

    @property
    def advice(self) -> str:
        """What leaving workers out would gain, and whether the network limits, in one sentence."""
        workers = self.world_size
        named = ", ".join(map(str, self.left_out[:_RANKS_NAMED]))
        without = f"without {len(self.left_out)} of the {workers} ranks ({named}"
        without += ", …)" if len(self.left_out) > _RANKS_NAMED else ")"
        if not self.left_out:
            words = f"all {workers} ranks are worth their communication: no smaller set is faster"
        elif self.all_seconds is None:
            words = f"{without}, since not all of them can have rows, a step takes {self.step_seconds:.3g} s"
        else:
            words = (
                f"{without} a step takes {self.step_seconds:.3g} s instead of {self.all_seconds:.3g} s, "
                f"{self.gain:.1%} more steps per second"
            )
        if self.network_bound:
            words += (
                f"; the network limits: {self.communication_seconds / self.step_seconds:.0%} of a step are "
                "communication, which no split of the rows makes shorter"
            )
        return words


def choose_workers(
    time_models: Sequence[TimeModel],
    global_batch_size: int,
    communication: Communication,
    *,
    granularity: int = 1,
    min_batch_size: int | Sequence[int] = 1,
    max_batch_size: int | Sequence[int] | None = None,
) -> WorkerSet:
    """The set of workers, and the rows of each, with which a step is shortest.

    ``min over S and b of max_{i in S} F_i(b_i) + C(S)``, with ``sum b_i = global_batch_size`` over S, where the
    communication C depends on the size of S and its slowest link. What of the communication runs beside the backward
    does not belong into C. A kept worker has at least one row and keeps its bounds; one whose bounds permit none is left
    out. Of sets that are equally fast (to 12 digits) the largest is taken.

    Exact: for each bandwidth only workers that have it, and for each size k of the set: within a time T the best k
    workers are those that can do most rows in T. Sizes that cannot be faster than the best set so far are left out in
    blocks, one sort for a block; so few sizes are ever solved. (The batch-orchestration algorithm of Yang, Kang and Youn
    is min-max over the rows; the choice of the set by the k largest capacities is ours.)

    Raises:
        OptionError: an option of the wrong kind or length; the message begins with its name.
        PlanError: no set of workers has a split that keeps bounds and granularity; or lower bounds that differ and
            add up to more than the batch (which workers fit then is a knapsack problem).
        MeasurementError: a time model or the communication gives seconds that are not finite, or negative ones.
    """
    workers = len(time_models)
    if workers == 0:
        raise OptionError("time_models: expected one model per worker, got none")
    rows = positive_integer("global_batch_size", global_batch_size)
    positive_integer("granularity", granularity)
    lower = np.maximum(per_rank("min_batch_size", min_batch_size, workers), 1)
    upper = np.minimum(
        rows if max_batch_size is None else per_rank("max_batch_size", max_batch_size, workers),
        np.full(workers, rows),
    )
    sets = _Sets(time_models, rows, lower, upper, granularity)
    links = communication.links(workers)
    best: _Choice | None = None
    all_seconds = None
    if sets.within(np.inf, np.full(workers, True)).can[workers]:
        best = sets.solved(np.arange(workers), communication, links)
        all_seconds = best.seconds
    for link in np.unique(links).tolist():
        members = links >= link
        all_sizes = np.arange(1, int(members.sum()) + 1)
        costs = _checked(communication.seconds(all_sizes, link))
        blocks = [all_sizes]
        while blocks:
            sizes = blocks.pop()
            limits = _limits(best, sizes) - costs[sizes - 1]
            reach = sets.within(float(limits.max()), members)
            able = sizes[reach.can[sizes]]
            if able.size == 0:
                continue
            if sizes.size > 1:
                blocks += [half for half in np.array_split(able, 2) if half.size]
                continue
            choice = sets.solved(reach.workers(int(sizes[0])), communication, links)
            if choice.seconds <= _limits(best, sizes)[0]:
                best = choice
                blocks.append(sizes)
    if best is None:
        raise PlanError(
            f"no set of the {workers} workers has a split of {rows} rows with granularity={granularity} within its "
            f"bounds: the upper bounds add up to {upper.sum()} rows; raise max_batch_size, or lower min_batch_size or "
            "granularity"
        )
    return WorkerSet(
        ranks=tuple(best.ranks.tolist()),
        plan=predicted_plan(
            [time_models[rank] for rank in best.ranks.tolist()], best.split.tolist()
        ),
        communication_seconds=best.communication,
        world_size=workers,
        all_seconds=all_seconds,
    )


@dataclass(frozen=True)
class _Choice:
    ranks: NDArray[np.int64]
    split: NDArray[np.int64]
    communication: float
    seconds: float


def _limits(best: _Choice | None, sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Seconds of a step within which sets of ``sizes`` workers are better than ``best``."""
    if best is None:
        return np.full(sizes.shape, np.inf)
    larger = sizes > best.ranks.size
    return best.seconds * np.where(larger, 1.0 + _ROUNDING, 1.0 - _ROUNDING)


def _checked(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    if not np.all(np.isfinite(seconds) & (seconds >= 0)):
        raise MeasurementError(
            f"the communication gives {seconds.tolist()} seconds; expected finite numbers >= 0"
        )
    return seconds


@dataclass(frozen=True)
class _Reach:
    """What sets of each size can do within a time.

    ``able`` are the workers that can have their share, most grains first. ``can[k]`` says whether some k workers can do
    all rows; the first k of ``able`` can where ``first_can[k]``, else the first k - 1 beside ``holders[k - 1]``, which
    holds the rest of the division.
    """

    able: NDArray[np.int64]
    can: NDArray[np.bool_]
    first_can: NDArray[np.bool_]
    holders: NDArray[np.int64]

    def workers(self, size: int) -> NDArray[np.int64]:
        if self.first_can[size]:
            return np.sort(self.able[:size])
        return np.sort(np.append(self.able[: size - 1], self.holders[size - 1]))


class _Sets:
    """Sets of workers, and what they can do."""

    def __init__(
        self,
        time_models: Sequence[TimeModel],
        rows: int,
        lower: NDArray[np.int64],
        upper: NDArray[np.int64],
        granularity: int,
    ) -> None:
        self._models = time_models
        self._rows = rows
        self._lower = lower
        self._upper = upper
        self._grid = Grid.of(rows, lower, upper, granularity)
        self._times = WorkerTimes(time_models)
        self._times.at(np.minimum(lower, upper))
        self._times.at(upper)
        self._fits = self._fitting_sizes()

    def _fitting_sizes(self) -> NDArray[np.bool_]:
        """For k = 0, 1, … workers, whether their lower bounds leave the rows enough."""
        grid, sizes = self._grid, np.arange(self._lower.size + 1)
        if grid.lower.sum() <= grid.grains:
            return sizes > 0
        if np.any(self._lower != self._lower[0]):
            raise PlanError(
                f"min_batch_size: the lower bounds differ and add up to {self._lower.sum()} rows, more than the "
                f"{self._rows} rows to split in multiples of {grid.granularity}; give one number for all workers, or "
                "lower bounds that fit together"
            )
        least = (sizes - 1) * grid.lower[0] + grid.lower_with_rest[0]
        return (sizes > 0) & (least <= grid.grains)

    def within(self, seconds: float, members: NDArray[np.bool_]) -> _Reach:
        """What sets of ``members`` can do within ``seconds``."""
        grid = self._grid
        rows = np.where(members, self._times.most_rows(seconds, self._lower, self._upper), -1)
        grains = rows // grid.granularity
        with_rest = (rows - grid.rest) // grid.granularity
        holds = with_rest >= grid.lower_with_rest
        able = np.flatnonzero(grains >= grid.lower)
        able = able[np.argsort(-grains[able], kind="stable")]
        count = able.size

        sums = np.concatenate([[0], np.cumsum(grains[able])])
        loss = np.where(holds[able], with_rest[able] - grains[able], _NEVER)
        first = np.full(members.size + 1, _NEVER)
        first[1 : count + 1] = sums[1:] + np.maximum.accumulate(loss)

        apart = np.where(holds, with_rest, _NEVER)
        apart[able] = _NEVER
        last = int(np.argmax(apart))
        in_order = np.append(able, last)
        held = np.append(np.where(holds[able], with_rest[able], _NEVER), apart[last])
        best_from = _last_maximum(held)
        beside = np.full(members.size + 1, _NEVER)
        most = min(count + 1, members.size)
        beside[1 : most + 1] = (sums + held[best_from])[:most]

        first_can = first >= grid.grains
        return _Reach(
            able=able,
            can=self._fits & (first_can | (beside >= grid.grains)),
            first_can=first_can,
            holders=in_order[best_from],
        )

    def solved(
        self, ranks: NDArray[np.int64], communication: Communication, links: NDArray[np.float64]
    ) -> _Choice:
        """The best split among ``ranks``."""
        models = [self._models[rank] for rank in ranks.tolist()]
        split = allocate(
            models,
            self._rows,
            lower=self._lower[ranks],
            upper=self._upper[ranks],
            granularity=self._grid.granularity,
        )
        slowest_link = float(links[ranks].min())
        exchange = float(_checked(communication.seconds(ranks.size, slowest_link)))
        compute = float(WorkerTimes(models).at(split).max())
        return _Choice(ranks, split, exchange, compute + exchange)


def _last_maximum(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each place the place of the greatest value from there on."""
    backwards = values[::-1]
    new = np.concatenate([[True], backwards[1:] > np.maximum.accumulate(backwards)[:-1]])
    places = np.maximum.accumulate(np.where(new, np.arange(values.size), 0))
    return (values.size - 1 - places)[::-1]
