"""Exact min-max allocation of a batch among workers, and proportional apportionment."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import count

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_boa.errors import MeasurementError, PlanError
from lightning_boa.planning.bounds import MOST_ROWS, Grid, check_feasible, positive_integer
from lightning_boa.planning.time_models import LinearTime, TimeModel, scaled

_PROBES = 64
_REST_HOLDERS_TRIED = 64
_OVERFLOWS = 2**63


def allocate(
    time_models: Sequence[TimeModel] | WorkerTimes,
    rows: int,
    *,
    lower: int | Sequence[int] | NDArray[np.int64],
    upper: int | Sequence[int] | NDArray[np.int64],
    granularity: int = 1,
    prefer: ArrayLike | None = None,
) -> NDArray[np.int64]:
    """Rows per worker that make the slowest worker as fast as possible.

    ``min max_i F_i(b_i)`` with ``sum b_i = rows``,
    exact for nondecreasing time models: bisection on the time T with ``cap_i(T) = max {b : F_i(b)
    <= T}``, then a search among the few times ``F_i(b)`` that are left. Shares are multiples of
    ``granularity``; the rest of the division goes to one worker. Among the optima the one nearest
    to ``prefer`` (default: the equal split) in ``sum |b - prefer|`` is taken; where only the holder
    of a rest is open, the 64 nearest holders are compared.

    Raises:
        PlanError: no split keeps the bounds and the granularity, or more than 10**12 rows.
        MeasurementError: a time model gives a time that is not finite.
    """
    workers = len(time_models)
    if workers == 0:
        raise PlanError("expected at least one time model, got none")
    rows = _checked_rows(rows)
    granularity = positive_integer("granularity", granularity)
    low = _bound("lower", lower, workers)
    high = np.minimum(_bound("upper", upper, workers), rows)
    check_feasible(rows, low, high, granularity)
    grid = Grid.of(rows, low, high, granularity)
    times = WorkerTimes.of(time_models)
    seconds = _least_seconds(times, rows, grid, low, high)
    most = times.most_rows(seconds, low, high)
    wished = _equal(rows, workers) if prefer is None else _bound("prefer", prefer, workers)
    split = _nearest(wished, grid, most)
    assert split.sum() == rows
    assert np.all((low <= split) & (split <= high))
    return split


def can_be_done(
    times: WorkerTimes,
    rows: int,
    seconds: float,
    *,
    lower: Sequence[int],
    upper: Sequence[int],
) -> bool:
    """Whether the workers can do ``rows`` rows within ``seconds``, each at most ``upper`` of them."""
    low, high = np.asarray(lower, dtype=np.int64), np.asarray(upper, dtype=np.int64)
    most = times.most_rows(seconds, low, high)
    return bool(np.all(most >= low) and most.sum() >= rows)


def apportion(
    shares: Sequence[float],
    rows: int,
    *,
    lower: int | Sequence[int] = 0,
    upper: int | Sequence[int] | None = None,
) -> tuple[int, ...]:
    """``rows`` split in proportion to ``shares`` by the largest remainder, within bounds.

    The sum is exact and the result the same on every machine; equal remainders favour the lower
    rank. Workers without a share get rows beyond their lower bound only when all others are full.

    Raises:
        PlanError: shares that are negative or not finite, or bounds that cannot hold ``rows``.
    """
    workers = len(shares)
    if workers == 0 or not all(np.isfinite(share) and share >= 0 for share in shares):
        raise PlanError(f"shares must be finite numbers >= 0, at least one, got {list(shares)}")
    rows = _checked_rows(rows)
    low = _bound("lower", lower, workers)
    high = np.minimum(_bound("upper", rows if upper is None else upper, workers), rows)
    check_feasible(rows, low, high)
    quotas = _quotas([Fraction(share) for share in shares], rows, low.tolist(), high.tolist())
    split = [int(quota) for quota in quotas]
    left = rows - sum(split)
    by_remainder = sorted(range(workers), key=lambda i: (split[i] - quotas[i], i))
    for worker in by_remainder[:left]:
        split[worker] += 1
    assert sum(split) == rows
    return tuple(split)


def _quotas(shares: list[Fraction], rows: int, low: list[int], high: list[int]) -> list[Fraction]:
    weights = list(shares)
    if (
        sum(top for top, share in zip(high, shares, strict=True) if share > 0)
        + sum(least for least, share in zip(low, shares, strict=True) if share == 0)
        < rows
    ):
        filled = [(top if share > 0 else None) for top, share in zip(high, shares, strict=True)]
        weights = [Fraction(int(value is None)) for value in filled]
        low = [least if full is None else full for least, full in zip(low, filled, strict=True)]
    quotas = [Fraction(0)] * len(shares)
    free = set(range(len(shares)))
    left = Fraction(rows)
    while free:
        total = sum((weights[i] for i in free), Fraction(0))
        rate = left / total if total else Fraction(0)
        lifted = {i: low[i] - rate * weights[i] for i in free if rate * weights[i] < low[i]}
        cut = {i: rate * weights[i] - high[i] for i in free if rate * weights[i] > high[i]}
        if not lifted and not cut:
            for i in free:
                quotas[i] = rate * weights[i]
            break
        settle = lifted if sum(lifted.values()) >= sum(cut.values()) else cut
        for i in settle:
            quotas[i] = Fraction(low[i] if settle is lifted else high[i])
            left -= quotas[i]
        free -= set(settle)
    return quotas


def _least_seconds(
    times: WorkerTimes,
    rows: int,
    grid: Grid,
    low: NDArray[np.int64],
    high: NDArray[np.int64],
) -> float:
    short, enough = float(times.seconds(low).max()), float(times.seconds(high).max())
    most_short, most_enough = times.most_rows(short, low, high), high
    if grid.reaches(most_short):
        return short
    guesses = times.guesses(rows)
    few = max(_PROBES, 2 * low.size)
    for round_ in count():
        held, room = int(most_short.sum()), int(most_enough.sum())
        if room - held <= few:
            break
        seconds = guesses.pop() if guesses else 0.0
        if not short < seconds < enough:
            share = 0.5 if round_ % 2 else (rows - held) / (room - held)
            seconds = short + (enough - short) * share
        if not short < seconds < enough:
            seconds = short + (enough - short) / 2
        if not short < seconds < enough:
            return enough
        most = times.most_rows(seconds, most_short, most_enough)
        if grid.reaches(most):
            enough, most_enough = seconds, most
        else:
            short, most_short = seconds, most
    candidates = times.between(most_short, most_enough)
    first, last = 0, candidates.size - 1
    while first < last:
        middle = (first + last) // 2
        if grid.reaches(times.most_rows(float(candidates[middle]), most_short, most_enough)):
            last = middle
        else:
            first = middle + 1
    return float(candidates[first])


class WorkerTimes:
    """The seconds of all workers at once: lines as arrays, other models one by one."""

    def __init__(
        self,
        overhead: NDArray[np.float64],
        slope: NDArray[np.float64],
        floor: NDArray[np.float64],
        others: Sequence[tuple[int, TimeModel]],
    ) -> None:
        self._overhead, self._slope, self._floor = overhead, slope, floor
        self._others = others

    @classmethod
    def of(cls, time_models: Sequence[TimeModel] | WorkerTimes) -> WorkerTimes:
        if isinstance(time_models, WorkerTimes):
            return time_models
        lines = [
            (model.overhead, model.seconds_per_sample, model.floor)
            if type(model) is LinearTime
            else (0.0, 0.0, 0.0)
            for model in time_models
        ]
        others = [
            (worker, model)
            for worker, model in enumerate(time_models)
            if type(model) is not LinearTime
        ]
        overhead, slope, floor = np.array(lines, dtype=np.float64).T
        return cls(overhead, slope, floor, others)

    def __len__(self) -> int:
        return self._slope.size

    def scaled(self, factors: NDArray[np.float64]) -> WorkerTimes:
        """The times of workers that have become slower by ``factors``."""
        return WorkerTimes(
            self._overhead * factors,
            self._slope * factors,
            self._floor * factors,
            [(worker, scaled(model, float(factors[worker]))) for worker, model in self._others],
        )

    def seconds(self, rows: ArrayLike) -> NDArray[np.float64]:
        """Seconds of each worker for its ``rows``, shape ``(workers,)``."""
        rows = np.asarray(rows)
        seconds: NDArray[np.float64] = np.maximum(self._floor, self._overhead + self._slope * rows)
        for worker, model in self._others:
            seconds[worker] = model.seconds(rows[worker])
        if not np.isfinite(seconds).all():
            worker = int(np.flatnonzero(~np.isfinite(seconds))[0])
            raise MeasurementError(
                f"the time model of worker {worker} gives {seconds[worker]} seconds "
                f"for {rows[worker]} rows; expected a finite time"
            )
        return seconds

    def guesses(self, rows: int) -> list[float]:
        """Times just above and just below the optimum without floors and bounds, or none."""
        if self._others or not self._slope.all():
            return []
        with np.errstate(over="ignore", invalid="ignore"):
            speed = 1.0 / self._slope
            total = speed.sum()
            middle = (rows + (self._overhead * speed).sum()) / total
        return [float(middle + speed.size / total), float(middle)]

    def most_rows(
        self, seconds: float, least: NDArray[np.int64], most: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The most rows in ``[least, most]`` within ``seconds``; ``least - 1`` if none are."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            exact = (seconds - self._overhead) / self._slope
        exact[np.isnan(exact)] = np.inf
        exact[self._floor > seconds] = -np.inf
        rows: NDArray[np.int64] = np.clip(np.floor(exact), least - 1, most).astype(np.int64)
        off = self._misplaced(rows, seconds, least, most)
        for worker, _ in self._others:
            off[worker] = False
        for worker in np.flatnonzero(off).tolist():
            line = LinearTime(self._overhead[worker], self._slope[worker], self._floor[worker])
            rows[worker] = _most_rows(line, seconds, int(least[worker]), int(most[worker]))
        for worker, model in self._others:
            rows[worker] = _most_rows(model, seconds, int(least[worker]), int(most[worker]))
        return rows

    def _misplaced(
        self,
        rows: NDArray[np.int64],
        seconds: float,
        least: NDArray[np.int64],
        most: NDArray[np.int64],
    ) -> NDArray[np.bool_]:
        here = np.maximum(self._floor, self._overhead + self._slope * rows)
        next_ = np.maximum(self._floor, self._overhead + self._slope * (rows + 1))
        too_many: NDArray[np.bool_] = (here > seconds) & (rows >= least)
        too_few: NDArray[np.bool_] = (next_ <= seconds) & (rows < most)
        return too_many | too_few

    def between(self, above: NDArray[np.int64], up_to: NDArray[np.int64]) -> NDArray[np.float64]:
        """The distinct seconds, in order, of all rows in ``(above, up_to]``."""
        spans = up_to - above
        owner = np.repeat(np.arange(spans.size), spans)
        ends = np.cumsum(spans)
        rows = above[owner] + 1 + np.arange(owner.size) - (ends - spans)[owner]
        seconds = np.maximum(self._floor[owner], self._overhead[owner] + self._slope[owner] * rows)
        for worker, model in self._others:
            mine = slice(ends[worker] - spans[worker], ends[worker])
            seconds[mine] = model.seconds(rows[mine])
        return np.unique(seconds)


def _most_rows(model: TimeModel, seconds: float, least: int, most: int) -> int:
    below, above = least - 1, most + 1
    while above - below > 1:
        step = max(1, (above - below) // _PROBES)
        probes = np.arange(below + step, above, step)
        fitting = int(np.searchsorted(model.seconds(probes), seconds, side="right"))
        if fitting < probes.size:
            above = int(probes[fitting])
        if fitting > 0:
            below = int(probes[fitting - 1])
    return below


def _nearest(
    wished: NDArray[np.int64], grid: Grid, most_rows: NDArray[np.int64]
) -> NDArray[np.int64]:
    step = grid.granularity
    if grid.rest == 0:
        grains = _nearest_grains(wished, step, grid.grains, grid.lower, most_rows // step)
        return grains * step
    holders = np.flatnonzero(grid.holders(most_rows))
    if holders.size > _REST_HOLDERS_TRIED:
        unmet = wished[holders] % step - grid.rest
        holders = np.sort(holders[np.argsort(np.abs(unmet), kind="stable")[:_REST_HOLDERS_TRIED]])
    best: NDArray[np.int64] | None = None
    for holder in holders.tolist():
        least, most, target = grid.lower.copy(), most_rows // step, wished.copy()
        least[holder] = grid.lower_with_rest[holder]
        most[holder] = (most_rows[holder] - grid.rest) // step
        target[holder] -= grid.rest
        split = _nearest_grains(target, step, grid.grains, least, most) * step
        split[holder] += grid.rest
        if best is None or np.abs(split - wished).sum() < np.abs(best - wished).sum():
            best = split
    assert best is not None
    return best


def _nearest_grains(
    wished: NDArray[np.int64],
    step: int,
    grains: int,
    least: NDArray[np.int64],
    most: NDArray[np.int64],
) -> NDArray[np.int64]:
    split = np.clip(wished // step, least, most)
    missing = grains - int(split.sum())
    if missing > 0 and step > 1:
        part = np.where((split == wished // step) & (split < most), wished % step, 0)
        raised = np.argsort(-part, kind="stable")[: min(missing, np.count_nonzero(part))]
        split[raised] += 1
        missing -= raised.size
    if missing > 0:
        split += _by_largest_remainder(most - split, missing)
    elif missing < 0:
        spare = split - least
        split = least + _by_largest_remainder(spare, int(spare.sum()) + missing)
    return split


def _by_largest_remainder(shares: NDArray[np.int64], total: int) -> NDArray[np.int64]:
    whole = int(shares.sum())
    if whole == 0:
        return np.zeros_like(shares)
    exact = shares if int(shares.max()) * total < _OVERFLOWS else shares.astype(object)
    split = (exact * total // whole).astype(np.int64)
    remainder = (exact * total % whole).astype(np.int64)
    left = total - int(split.sum())
    split[np.argsort(-remainder, kind="stable")[:left]] += 1
    return split


def _equal(rows: int, workers: int) -> NDArray[np.int64]:
    return rows // workers + (np.arange(workers) < rows % workers).astype(np.int64)


def _checked_rows(rows: int) -> int:
    if rows > MOST_ROWS:
        raise PlanError(f"expected at most {MOST_ROWS:,} rows to split, got {rows:,}")
    return int(rows)


def _bound(name: str, value: ArrayLike, workers: int) -> NDArray[np.int64]:
    values = np.asarray(value)
    if values.shape not in ((), (workers,)):
        raise PlanError(
            f"{name}: expected one number or one for each of {workers} workers, "
            f"got the shape {values.shape}"
        )
    if not np.issubdtype(values.dtype, np.integer):
        raise PlanError(f"{name}: expected whole numbers, got {values.tolist()!r}")
    return np.array(np.broadcast_to(values, (workers,)), dtype=np.int64)
