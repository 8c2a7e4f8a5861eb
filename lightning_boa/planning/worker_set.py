"""Which workers a step should have: the exact best set for given times and communication."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lightning_boa.errors import MeasurementError, OptionError, PlanError
from lightning_boa.planning.bounds import least_rows, most_rows, positive_integer
from lightning_boa.planning.capable_sets import CapableSets
from lightning_boa.planning.communication import Communication
from lightning_boa.planning.plan import BatchPlan, predicted_plan
from lightning_boa.planning.time_models import TimeModel

_ROUNDING = 1e-12
_FIRST_SPEEDS = 16
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
    def comparison(self) -> str:
        """What leaving workers out would gain, in a few words."""
        workers = self.world_size
        named = ", ".join(map(str, self.left_out[:_RANKS_NAMED]))
        without = f"without {len(self.left_out)} of the {workers} ranks ({named}"
        without += ", …)" if len(self.left_out) > _RANKS_NAMED else ")"
        if not self.left_out:
            return f"all {workers} ranks are worth their communication: no smaller set is faster"
        if self.all_seconds is None:
            return f"{without}, since not all of them can have rows, a step takes {self.step_seconds:.3g} s"
        return (
            f"{without} a step takes {self.step_seconds:.3g} s instead of {self.all_seconds:.3g} s, "
            f"{self.gain:.1%} more steps per second"
        )

    @property
    def advice(self) -> str:
        """What leaving workers out would gain, and whether the network limits, in one sentence."""
        if not self.network_bound:
            return self.comparison
        return (
            f"{self.comparison}; the network limits: {self.communication_seconds / self.step_seconds:.0%} of a step "
            "are communication, which no split of the rows makes shorter"
        )


def choose_workers(
    time_models: Sequence[TimeModel],
    global_batch_size: int,
    communication: Communication,
    *,
    granularity: int = 1,
    min_batch_size: int | Sequence[int] = 1,
    max_batch_size: int | Sequence[int] | None = None,
) -> WorkerSet:
    """The workers, and the rows of each, with which a step is shortest.

    ``min over S and b of max_{i in S} F_i(b_i) + C(S)`` with ``sum of b_i over S = global_batch_size``: the step of
    the batch-orchestration algorithm (Yang, Kang and Youn, 2020) over all sets S, where the communication C depends on
    the size of S and its slowest link. Communication that runs beside the backward does not belong into C. A kept
    worker has at least one row and keeps its bounds; one whose bounds permit no row is left out. Of sets that are
    equally fast, to twelve digits, the largest is taken.

    Exact, to twelve digits, for nondecreasing time models: within a time T the best k workers are those that can do
    most rows in T, so one sort tells for every k whether T is enough. Only sizes that may still beat the best set are
    asked. By link: the same for the workers whose link is at least so fast, for each speed that occurs.

    Raises:
        OptionError: an option of the wrong kind or length; the message begins with its name.
        PlanError: no set of workers has a split that keeps bounds and granularity; or lower bounds that differ and
            do not fit into the batch together (which of them fit is a knapsack problem).
        MeasurementError: a time model or the communication gives seconds that are not finite, or negative ones.
    """
    workers = len(time_models)
    if workers == 0:
        raise OptionError("time_models: expected one model per worker, got none")
    if not isinstance(communication, Communication):
        raise OptionError(
            "communication: expected a RingAllReduce, a MeasuredAllReduce or an object with their methods links and "
            f"seconds, got {communication!r}"
        )
    rows = positive_integer("global_batch_size", global_batch_size)
    positive_integer("granularity", granularity)
    lower = np.maximum(least_rows("min_batch_size", min_batch_size, workers), 1)
    upper = np.full(workers, rows)
    if max_batch_size is not None:
        upper = np.asarray(most_rows("max_batch_size", max_batch_size, workers, rows))
    search = _Search(
        CapableSets(time_models, rows, lower=lower, upper=upper, granularity=granularity),
        communication,
        workers,
    )
    with_all = search.all_workers()
    best = search.best(with_all)
    if best is None:
        raise PlanError(
            f"no set of the {workers} workers has a split of {rows} rows within the bounds (the upper ones add up to "
            f"{upper.sum()} rows) and granularity={granularity}; raise max_batch_size, or lower min_batch_size or "
            "granularity"
        )
    return WorkerSet(
        ranks=tuple(best.ranks.tolist()),
        plan=predicted_plan([time_models[rank] for rank in best.ranks], best.split.tolist()),
        communication_seconds=best.communication,
        world_size=workers,
        all_seconds=None if with_all is None else with_all.seconds,
    )


@dataclass(frozen=True)
class _Choice:
    ranks: NDArray[np.int64]
    split: NDArray[np.int64]
    compute: float
    communication: float

    @property
    def seconds(self) -> float:
        return self.compute + self.communication


class _Search:
    def __init__(self, sets: CapableSets, communication: Communication, workers: int) -> None:
        self._sets = sets
        self._communication = communication
        self._workers = workers
        self._links = communication.links(workers)

    def all_workers(self) -> _Choice | None:
        """The best split among all workers; None where not all of them can have rows."""
        everyone = np.full(self._workers, True)
        if not self._sets.within(np.inf, everyone).can[self._workers]:
            return None
        return self._choice(np.arange(self._workers))

    def best(self, known: _Choice | None) -> _Choice | None:
        """The best set of all; a few speeds of links first, so that a good set is soon known."""
        speeds = np.unique(self._links).tolist()
        for some in (speeds[:: max(1, len(speeds) // _FIRST_SPEEDS)], speeds):
            too_short = np.zeros(self._workers)
            for link in some:
                members = self._links >= link
                too_short = too_short[: np.count_nonzero(members)]
                known = self._best_with(link, members, too_short, known)
        return known

    def _best_with(
        self,
        link: float,
        members: NDArray[np.bool_],
        too_short: NDArray[np.float64],
        best: _Choice | None,
    ) -> _Choice | None:
        """The best set of ``members``, or ``best`` if none is better.

        ``too_short[k - 1]`` are seconds of computation in which no k members do all rows; they are raised in place, and
        stay true where there are fewer members.
        """
        sizes = np.arange(1, too_short.size + 1)
        costs = self._exchange(sizes, link)
        halfway = False
        while True:
            enough = _seconds_to_beat(best, sizes) - costs
            unknown = too_short < enough
            if not unknown.any():
                return best
            promising = int(np.argmin(np.where(unknown, too_short + costs, np.inf)))
            seconds = float(enough[promising])
            if halfway:
                seconds = float(too_short[promising] + (seconds - too_short[promising]) / 2)
            halfway = not halfway
            capable = self._sets.within(seconds, members)
            can = capable.can[sizes]
            too_short[~can] = np.maximum(too_short[~can], seconds)
            better = unknown & can & (seconds <= enough)
            if not better.any():
                continue
            quickest = int(np.argmin(np.where(better, costs, np.inf)))
            choice = self._choice(capable.workers(quickest + 1))
            if choice.seconds < _seconds_to_beat(best, sizes)[quickest]:
                best = choice
            else:
                too_short[quickest] = enough[quickest]

    def _choice(self, ranks: NDArray[np.int64]) -> _Choice:
        split, compute = self._sets.best_split(ranks)
        exchange = self._exchange(np.array([ranks.size]), float(self._links[ranks].min()))
        return _Choice(ranks, split, compute, float(exchange[0]))

    def _exchange(self, sizes: NDArray[np.int64], slowest_link: float) -> NDArray[np.float64]:
        seconds = self._communication.seconds(sizes, slowest_link)
        wrong = ~(np.isfinite(seconds) & (seconds >= 0))
        if wrong.any():
            raise MeasurementError(
                f"communication: expected finite seconds >= 0, got {seconds[wrong][0]} for {sizes[wrong][0]} workers"
            )
        return seconds


def _seconds_to_beat(best: _Choice | None, sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Seconds of a step under which a set of ``sizes`` workers is better than ``best``."""
    if best is None:
        return np.full(sizes.shape, np.inf)
    larger = sizes > best.ranks.size
    return best.seconds * np.where(larger, 1.0 + _ROUNDING, 1.0 - _ROUNDING)
