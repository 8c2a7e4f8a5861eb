"""Whether the devices still are as fast as the plan supposes: the watch over a planned training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property
from math import exp, sqrt
from statistics import NormalDist, median
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_boa.planning.allocation import WorkerTimes, can_be_done
from lightning_boa.planning.fitting import MAD_TO_DEVIATION, MEDIAN_TO_MEAN_ERROR
from lightning_boa.planning.parking import allocate_or_park
from lightning_boa.planning.passes import pass_sizes, seconds_in_passes, share_models
from lightning_boa.planning.rounds import LEAST_GAIN
from lightning_boa.planning.time_models import TimeModel

BLOCK_STEPS = 5
LEAST_STEPS = 3
MOST_BLOCKS = 512
LEAST_GAINS = {64: 0.02, 128: 0.01, 256: 0.005, MOST_BLOCKS + 1: 0.0025}
WANTED_ERROR = 0.004
GAIN_OF_REFINEMENT = 0.0075
LONG_WINDOW = 64
PATIENCE = 256
LEAST_NOISE = 0.001
BLOCKS_TO_DECIDE = 3
FALSE_ALARM = 1e-6
SEPARATION = 2.0
LIKELY_ERRORS = 2.0
HEARSAY = 0.22
MOST_MOVES = 16


@dataclass(frozen=True)
class Block:
    """How long the ranks took in a few steps, relative to what their time models say.

    ``scales`` has one factor per rank, the median over the steps; what all ranks have in common in a step (longer
    sequences, say) is left out, so that their geometric mean is 1; NaN for a rank without rows. ``level`` is the median
    of what was left out. ``noise`` is the standard deviation of a single step as a share of its seconds. ``period`` are
    the seconds from one step to the next, ``loader_wait`` those spent waiting for a batch, each the greatest of all
    ranks.
    """

    scales: tuple[float, ...]
    noise: float
    period: float
    loader_wait: float
    first_step: int = 0
    level: float = 1.0

    @cached_property
    def scale_of_each(self) -> NDArray[np.float64]:
        """``scales`` as an array."""
        return np.asarray(self.scales)

    def with_scales(self, logs: NDArray[np.float64]) -> Block:
        """The block with other scales, given by their logarithms, for which the level makes up."""
        mean = float(logs.mean())
        scales = tuple(np.exp(logs - mean).tolist())
        return replace(self, scales=scales, level=self.level * exp(mean))


def block_of(
    ratios: ArrayLike, *, period: float, loader_wait: float, first_step: int = 0
) -> Block | None:
    """The block of measured over modelled seconds, ranks x steps; NaN where a rank had no rows.

    None where fewer than 3 steps were measured on all ranks that have rows in the block.
    """
    all_steps = np.asarray(ratios, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        measured = np.isfinite(all_steps) & (all_steps > 0)
    has_rows = measured.any(axis=1)
    whole = has_rows.any() & measured[has_rows].all(axis=0)
    steps = int(whole.sum())
    if steps < LEAST_STEPS:
        return None
    logs = np.log(all_steps[np.ix_(has_rows, whole)])
    own = logs - logs.mean(axis=0)
    medians = np.median(own, axis=1, keepdims=True)
    ranks = len(own)
    freedom = (steps - 1) / steps * max(ranks - 1, 1) / ranks
    spread = float(np.median(np.abs(own - medians)))
    scales = np.full(len(all_steps), np.nan)
    scales[has_rows] = np.exp(medians[:, 0] - medians.mean())
    return Block(
        scales=tuple(scales.tolist()),
        noise=MAD_TO_DEVIATION * spread / sqrt(freedom),
        period=period,
        loader_wait=loader_wait,
        first_step=first_step,
        level=float(np.exp(np.median(logs.mean(axis=0)) + medians.mean())),
    )


@dataclass(frozen=True)
class Bounds:
    """Rows that each rank may have; shares are multiples of ``granularity``.

    ``row_caps`` are the most rows of a pass of each rank (None: any number). Where ``seats`` are given, a rank whose
    ``lower`` is 0 may be left without rows, and has at least as many as its seat else.
    """

    lower: tuple[int, ...]
    upper: tuple[int, ...]
    granularity: int
    row_caps: tuple[int | None, ...] | None = None
    seats: tuple[int, ...] | None = None

    def has_seat(self, rank: int, rows: int) -> bool:
        """Whether the rank has no rows or enough of them."""
        return self.seats is None or rows == 0 or rows >= self.seats[rank]

    def passes(self, rank: int, rows: int) -> int:
        """In how many passes the rank runs ``rows`` rows."""
        return len(pass_sizes(rows, None if self.row_caps is None else self.row_caps[rank]))

    def to_list(self) -> list[Any]:
        """Plain values in the order of the fields; ``Bounds.of(*values)`` reads them."""
        caps, seats = (each and list(each) for each in (self.row_caps, self.seats))
        return [list(self.lower), list(self.upper), self.granularity, caps, seats]

    @classmethod
    def of(
        cls,
        lower: Sequence[int],
        upper: Sequence[int],
        granularity: int,
        row_caps: Sequence[int | None] | None = None,
        seats: Sequence[int] | None = None,
    ) -> Bounds:
        """The bounds whose `to_list` gave these values."""
        return cls(
            tuple(lower),
            tuple(upper),
            granularity,
            None if row_caps is None else tuple(row_caps),
            None if seats is None else tuple(seats),
        )


@dataclass(frozen=True)
class Finding:
    """Another split that the last ``blocks`` blocks speak for, and the relative gain expected of it.

    ``sure_gain`` is what remains of it if more rows take in proportion longer, whatever the models say. ``scales`` says
    how the ranks' times relate to their models in these blocks, the (lower) median rank being 1.
    """

    batch_sizes: tuple[int, ...]
    gain: float
    sure_gain: float
    blocks: int
    scales: tuple[float, ...]


@dataclass(frozen=True)
class Watch:
    """The blocks since the present regime of speeds began, and how much it takes to change the plan.

    A window of blocks speaks for another split if the mean step would be shorter by more than the noise of the window
    explains (with a chance of a false alarm of 1e-6), by more than two per cent, in long windows down to a quarter, and
    by more than the models may be wrong about the rows that move. Each change doubles the least length of a window: a
    device that keeps toggling soon is judged by its mean. A long calm halves it again.

    Args:
        models: time model of a pass of each rank.
        bounds: of the rows of each rank.
        blocks: newest last.
        least: blocks that a window must have.
        calm: blocks since the last change.
        is_refined: the one small correction of the warm-up's plan, due when much more has been measured, is over.
        doubt: standard error of the models' seconds, as a share of them.
        spans: rows between the smallest and the largest size that each rank's model rests on.
        hearsay: logarithm of each rank's ratio in the last step that said something of ranks without rows, beside the
            (lower) median of those with rows.
    """

    models: tuple[TimeModel, ...]
    bounds: Bounds
    blocks: tuple[Block, ...] = field(default=(), repr=False)
    least: int = 1
    calm: int = 0
    is_refined: bool = False
    doubt: float = 0.0
    spans: tuple[int, ...] = (1,)
    hearsay: tuple[float, ...] = ()

    @cached_property
    def share_models(self) -> tuple[TimeModel, ...]:
        """Time model of a whole share of each rank."""
        return share_models(self.models, self.bounds.row_caps, parks=self.bounds.seats is not None)

    @cached_property
    def share_times(self) -> WorkerTimes:
        """Seconds of a whole share of all ranks."""
        return WorkerTimes.of(self.share_models)

    @cached_property
    def _pass_times(self) -> WorkerTimes:
        return WorkerTimes.of(self.models)

    def with_block(self, block: Block) -> Watch:
        """One more block has been measured."""
        rests = self.calm + 1 >= PATIENCE * self.least and self.least > 1
        return replace(
            self,
            blocks=(*self.blocks[1 - MOST_BLOCKS :], self._completed(block)),
            least=self.least // 2 if rests else self.least,
            calm=0 if rests else self.calm + 1,
        )

    def _completed(self, block: Block) -> Block:
        """A rank without rows is taken to be as fast as it was when it had some, beside the (lower) median of the
        others: one of them that becomes slow says nothing of it.
        """
        logs = np.log(block.scales)
        absent = np.isnan(logs)
        if not absent.any():
            return block
        last = np.log(self.blocks[-1].scales) if self.blocks else np.zeros(len(logs))
        beside = last[absent] - _lower_median(last[~absent])
        logs[absent] = _lower_median(logs[~absent]) + beside
        return block.with_scales(logs)

    def heard(self, ratios: Sequence[float | None], batch_sizes: Sequence[int]) -> Watch:
        """What a single step on all ranks says of those that have no rows under the plan: ``batch_sizes``.

        A rank without rows is believed where two such steps agree that it has become faster or slower, by a quarter at
        least, beside the (lower) median of the others; and then the one that says less.

        Args:
            ratios: measured over modelled seconds of each rank, None where nothing was measured.
        """
        absent = [rank for rank, rows in enumerate(batch_sizes) if not rows]
        known = [ratio for ratio in ratios if ratio is not None]
        if not self.blocks or len(known) < len(ratios) or not absent:
            return replace(self, hearsay=())
        logs = np.log(known)
        running = np.array([rank not in absent for rank in range(len(known))])
        hearsay = tuple((logs - _lower_median(logs[running])).tolist())
        if len(self.hearsay) != len(hearsay):
            return replace(self, hearsay=hearsay)
        blocks = tuple(
            self._believed(block, running, [self.hearsay, hearsay]) for block in self.blocks
        )
        return replace(self, blocks=blocks, hearsay=hearsay)

    def _believed(
        self, block: Block, running: NDArray[np.bool_], said: Sequence[Sequence[float]]
    ) -> Block:
        logs = np.log(block.scales)
        level = _lower_median(logs[running])
        for rank in np.flatnonzero(~running).tolist():
            changes = [each[rank] - (logs[rank] - level) for each in said]
            least = min(changes, key=abs)
            if min(changes) * max(changes) > 0 and abs(least) > HEARSAY:
                logs[rank] += least
        return block.with_scales(logs)

    def anew(self) -> Watch:
        """The training went on after a stop: how fast the devices were before says nothing of now."""
        return replace(self, blocks=(), hearsay=())

    def after(self, finding: Finding) -> Watch:
        """The plan was changed: what came before the blocks that spoke for it is over."""
        return replace(
            self,
            blocks=self.blocks[-finding.blocks :],
            least=2 * self.least,
            calm=0,
            is_refined=True,
        )

    @property
    def is_due(self) -> bool:
        """Whether enough has been measured, since a few blocks, for the one refinement of the warm-up's plan."""
        blocks = len(self.blocks)
        before = blocks - BLOCKS_TO_DECIDE
        return (
            not self.is_refined
            and blocks > 0
            and self.error(blocks) <= WANTED_ERROR
            and (before < 1 or self.error(before) > WANTED_ERROR)
        )

    @cached_property
    def noise(self) -> float:
        """Standard deviation of a single step, as a share of its seconds."""
        return max(LEAST_NOISE, median(block.noise for block in self.blocks[-LONG_WINDOW:]))

    def ratios(
        self,
        rank: int,
        rows: Sequence[int],
        seconds: Sequence[float],
        passes: Sequence[int],
    ) -> NDArray[np.float64]:
        """Measured over modelled seconds of a rank's steps; NaN where it had no rows."""
        return _ratios(rows, seconds, seconds_in_passes(self.models[rank], rows, passes))

    def ratios_of_all(
        self, splits: Sequence[Sequence[int]], seconds: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Those of all ranks, shape ``(ranks, steps)``, in the passes that the bounds ask for.

        Args:
            splits: the rows of all ranks in each step.
            seconds: measured, shape ``(steps, ranks)``.
        """
        modelled = {rows: self._modelled(rows) for rows in set(map(tuple, splits))}
        ratios = _ratios(splits, seconds, [modelled[tuple(rows)] for rows in splits])
        return np.ascontiguousarray(ratios.T)

    def _modelled(self, split: Sequence[int]) -> NDArray[np.float64]:
        passes = [self.bounds.passes(rank, rows) for rank, rows in enumerate(split)]
        return seconds_in_passes(self._pass_times, split, passes)

    def error(self, blocks: int) -> float:
        """Standard error of the ratio of two ranks' times in a window."""
        return sqrt(2) * MEDIAN_TO_MEAN_ERROR * self.noise / sqrt(BLOCK_STEPS * blocks)

    def search(self, current: Sequence[int], *, every_window: bool = True) -> Finding | None:
        """The split that the most convincing window speaks for, or None: the plan stays.

        Without ``every_window`` the longer a window is, the more rarely it is looked at.
        """
        if len(self.blocks) < self.least:
            return None
        return _Search(self, tuple(current), every_window).best()

    def to_dict(self) -> dict[str, Any]:
        """Plain values that `from_dict` reads; the models are kept elsewhere."""
        return {
            "bounds": self.bounds.to_list(),
            "doubt": self.doubt,
            "spans": list(self.spans),
            "blocks": [list(astuple(block)) for block in self.blocks],
            "least": self.least,
            "calm": self.calm,
            "is_refined": int(self.is_refined),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], models: tuple[TimeModel, ...]) -> Watch:
        """The watch whose `to_dict` gave ``values``."""
        return cls(
            models=models,
            bounds=Bounds.of(*values["bounds"]),
            doubt=values["doubt"],
            spans=tuple(values["spans"]),
            blocks=tuple(Block(tuple(scales), *rest) for scales, *rest in values["blocks"]),
            least=values["least"],
            calm=values["calm"],
            is_refined=bool(values["is_refined"]),
        )


@dataclass(frozen=True)
class _Regime:
    """Blocks in which the ranks were about as fast: their share of a window, and their mean scales."""

    share: float
    scales: NDArray[np.float64]


class _Search:
    def __init__(self, watch: Watch, current: tuple[int, ...], every_window: bool) -> None:
        self._watch = watch
        self._current = current
        self._newest_first = np.asarray([block.scale_of_each for block in watch.blocks])[::-1]
        self._times = watch.share_times
        self._seconds = self._times.seconds(current)
        self._every_window = every_window
        self._alarm = NormalDist().inv_cdf(1 - FALSE_ALARM / len(current))

    def best(self) -> Finding | None:
        found = [finding for blocks in self._windows() if (finding := self._in_window(blocks))]
        if not found and self._watch.is_due:
            refinement = self._best_split(len(self._newest_first))
            return refinement if refinement.sure_gain > GAIN_OF_REFINEMENT else None
        return max(found, key=lambda each: each.gain / self._watch.error(each.blocks), default=None)

    def _windows(self) -> Iterator[int]:
        """The last blocks, half as many more each time, and all."""
        blocks, most = self._watch.least, len(self._newest_first)
        while blocks < most:
            if self._every_window or self._watch.calm % max(1, blocks // 4) == 0:
                yield blocks
            blocks += max(1, blocks // 2)
        if self._every_window or self._watch.calm % max(1, most // 4) == 0:
            yield most

    def _in_window(self, blocks: int) -> Finding | None:
        least = next(gain for most, gain in LEAST_GAINS.items() if blocks < most)
        noise = self._alarm * self._watch.error(blocks)
        if not self._may_gain(blocks, max(least, noise)):
            return None
        finding = self._best_split(blocks)
        return finding if finding.gain > max(least, noise, self._doubt(finding)) else None

    def _doubt(self, finding: Finding) -> float:
        """How wrong the models may be about the rows by which passes change, by the slopes between the sizes they rest
        on."""
        watch = self._watch
        before, after = (
            np.asarray([rows / watch.bounds.passes(rank, rows) for rank, rows in enumerate(split)])
            for split in (self._current, finding.batch_sizes)
        )
        moved = np.abs(after - before)
        return (
            LIKELY_ERRORS * sqrt(2) * watch.doubt * float((moved / np.asarray(watch.spans)).max())
        )

    def _may_gain(self, blocks: int, least: float) -> bool:
        """Whether some split could be faster by more than ``least``; a quick look before the search."""
        window = self._newest_first[:blocks]
        scales = window.mean(axis=0)
        allowed = float((window * self._seconds).max(axis=1).mean()) / (1 + least)
        bounds = self._watch.bounds
        return can_be_done(
            self._times.scaled(scales),
            sum(self._current),
            allowed,
            lower=bounds.lower,
            upper=bounds.upper,
        )

    def _best_split(self, blocks: int) -> Finding:
        window = self._newest_first[:blocks]
        scales = window.mean(axis=0)
        regimes = self._regimes(window)
        typical = [scales, *(regime.scales for regime in regimes if regime.share < 1)]
        splits = {self._optimum(each) for each in typical}
        costs = {split: self._mean_step(split, regimes) for split in splits}
        split = min(costs, key=lambda each: (costs[each], each))
        if len(regimes) > 1:
            split = self._between(split, regimes)
        now = _mean_step(self._seconds, regimes)
        return Finding(
            batch_sizes=split,
            gain=now / self._mean_step(split, regimes) - 1,
            sure_gain=now / _mean_step(self._at_worst(split), regimes) - 1,
            blocks=blocks,
            scales=tuple((scales / _lower_median(scales)).tolist()),
        )

    def _regimes(self, window: NDArray[np.float64]) -> list[_Regime]:
        """One, or two where a rank's speed changes more between blocks than noise explains."""
        logs = np.log(window)
        changeable = logs[:, logs.var(axis=0).argmax()]
        explained = (SEPARATION * self._watch.error(1)) ** 2
        is_slow = changeable > changeable.mean()
        if changeable.var() <= explained or is_slow.all():
            return [_Regime(1.0, window.mean(axis=0))]
        return [
            _Regime(float(chosen.mean()), window[chosen].mean(axis=0))
            for chosen in (is_slow, ~is_slow)
        ]

    def _between(self, split: tuple[int, ...], regimes: Sequence[_Regime]) -> tuple[int, ...]:
        """A better split near one that is best in one regime: rows move from the slowest rank of either one."""
        seconds = self._mean_step(split, regimes)
        for _ in range(MOST_MOVES):
            times = [regime.scales * self._times.seconds(split) for regime in regimes]
            shares = [regime.share for regime in regimes]
            idlest = int(np.average(times, axis=0, weights=shares).argmin())
            moves = [self._moved(split, int(each.argmax()), idlest) for each in times]
            costs = {each: self._mean_step(each, regimes) for each in moves}
            better = min(costs, key=lambda each: (costs[each], each))
            if costs[better] >= seconds:
                break
            split, seconds = better, costs[better]
        return split

    def _moved(self, split: tuple[int, ...], giver: int, taker: int) -> tuple[int, ...]:
        """One grain of rows from a rank to another, where the bounds permit it."""
        bounds = self._watch.bounds
        rows = list(split)
        rows[giver] -= bounds.granularity
        rows[taker] += bounds.granularity
        is_allowed = (
            rows[giver] >= bounds.lower[giver]
            and rows[taker] <= bounds.upper[taker]
            and all(bounds.has_seat(rank, rows[rank]) for rank in (giver, taker))
        )
        return tuple(rows) if is_allowed else split

    def _at_worst(self, split: Sequence[int]) -> NDArray[np.float64]:
        rows, before = np.asarray(split), np.maximum(self._current, 1)
        in_proportion = np.where(rows > before, self._seconds * rows / before, 0.0)
        return np.maximum(self._times.seconds(split), in_proportion)

    def _optimum(self, scales: NDArray[np.float64]) -> tuple[int, ...]:
        bounds = self._watch.bounds
        split = allocate_or_park(
            self._times.scaled(scales),
            sum(self._current),
            lower=bounds.lower,
            upper=bounds.upper,
            seats=bounds.seats,
            least_gain=LEAST_GAIN,
            granularity=bounds.granularity,
            prefer=self._current,
        )
        return tuple(split.tolist())

    def _mean_step(self, split: Sequence[int], regimes: Sequence[_Regime]) -> float:
        return _mean_step(self._times.seconds(split), regimes)


def _ratios(rows: ArrayLike, seconds: ArrayLike, modelled: ArrayLike) -> NDArray[np.float64]:
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios: NDArray[np.float64] = np.asarray(seconds) / np.asarray(modelled)
    ratios[np.asarray(rows) == 0] = np.nan
    return ratios


def _lower_median(scales: NDArray[np.float64]) -> float:
    return float(np.quantile(scales, 0.5, method="lower"))


def _mean_step(seconds: NDArray[np.float64], regimes: Sequence[_Regime]) -> float:
    return sum(regime.share * float((regime.scales * seconds).max()) for regime in regimes)
