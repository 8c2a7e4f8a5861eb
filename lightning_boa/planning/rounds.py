"""What the warm-up does after each round: another split to measure, or the plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import comb, inf, sqrt
from statistics import NormalDist, median

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_boa.errors import PlanError
from lightning_boa.planning.bounds import check_feasible
from lightning_boa.planning.exploration import exploratory_split
from lightning_boa.planning.fitting import TimeFit
from lightning_boa.planning.parking import allocate_or_park
from lightning_boa.planning.passes import pass_sizes, share_models
from lightning_boa.planning.plan import BatchPlan, equal_split, predicted_plan
from lightning_boa.planning.rank_fits import rank_fits, share_fits
from lightning_boa.planning.records import StepRecord
from lightning_boa.planning.time_models import LinearTime, TimeModel
from lightning_boa.planning.words import rank_names

GROWTH = 3
LEAST_GAIN = 0.01
AGREEMENT = 0.02
TRUSTED_REACH = 1.1
CAUTION = 0.5
_DOUBT = 0.025


@dataclass(frozen=True)
class CautiousTime:
    """A fit that beyond the ``largest`` measured rows rises at least half as steeply as they do.

    A fit that is flat by noise, or by a latency floor that ends somewhere, would else draw all rows
    to one rank.
    """

    model: TimeModel
    largest: int

    def seconds(self, rows: ArrayLike) -> NDArray[np.float64]:
        """Seconds for ``rows`` (any shape)."""
        beyond = np.maximum(np.asarray(rows, dtype=np.float64) / self.largest - 1.0, 0.0)
        return np.maximum(
            self.model.seconds(rows), self._at_largest * (CAUTION * beyond + 1.0) * (beyond > 0)
        )

    @cached_property
    def _at_largest(self) -> NDArray[np.float64]:
        return self.model.seconds(self.largest)


def cautious(model: TimeModel, largest: int) -> TimeModel:
    """``model`` with caution beyond ``largest`` rows, itself where that makes no difference."""
    if isinstance(model, LinearTime):
        rise = model.seconds_per_sample * largest
        if rise >= CAUTION * float(model.seconds(largest)):
            return model
    return CautiousTime(model, largest)


@dataclass(frozen=True)
class HopefulTime:
    """A fit that below the ``smallest`` measured rows goes on to fall as it does between them and the ``largest``.

    A latency floor that noise has put there would else forbid to take rows from a device that has become slower. A
    floor that was measured at both ends stays flat.
    """

    model: TimeModel
    smallest: int
    largest: int

    def seconds(self, rows: ArrayLike) -> NDArray[np.float64]:
        """Seconds for ``rows`` (any shape)."""
        at = np.asarray(rows, dtype=np.float64)
        low, slope = self._smallest_and_slope
        chord = low - slope * (self.smallest - at)
        return np.minimum(self.model.seconds(at), np.where(at < self.smallest, chord, np.inf))

    @cached_property
    def _smallest_and_slope(self) -> tuple[float, float]:
        low, high = self.model.seconds([self.smallest, self.largest]).tolist()
        return low, min((high - low) / (self.largest - self.smallest), low / self.smallest)


def hopeful(model: TimeModel, sizes: Sequence[int]) -> TimeModel:
    """``model`` with hope below the measured ``sizes``, itself where that makes no difference."""
    if len(sizes) == 1 or (isinstance(model, LinearTime) and model.floor <= model.overhead):
        return model
    return HopefulTime(model, min(sizes), max(sizes))


@dataclass(frozen=True)
class Decision:
    """The next plan, whether the warm-up ends with it, and why in one sentence.

    ``resolution`` is the relative gain below which the measurement cannot tell splits apart, where
    the decision rests on that; else 0.
    """

    plan: BatchPlan
    done: bool
    reason: str
    resolution: float = 0.0


@dataclass(frozen=True)
class Evidence:
    """What is known at the end of a round.

    ``current`` is the plan of the round with the seconds predicted for it, ``records`` the counted
    records of all rounds, ``known_fits`` (if any) the fits of an earlier training that hold in
    their place, ``lower`` and ``upper`` the rows each rank may have (``upper`` with the memory's
    limit). ``row_caps`` are the most rows of a pass of each rank (None: any number), ``parks`` tells
    that measured ranks may be left without rows, else they have at least ``least_rows``.

    ``fits`` are of single passes; ``models``, ``predicted_step``, ``shares`` and all that is
    compared are of whole shares.
    """

    current: BatchPlan
    equal: tuple[int, ...]
    lower: tuple[int, ...]
    upper: tuple[int, ...]
    granularity: int
    records: tuple[StepRecord, ...]
    known_fits: tuple[TimeFit | None, ...] = ()
    row_caps: tuple[int | None, ...] | None = None
    parks: bool = False
    least_rows: int = 1

    @cached_property
    def fits(self) -> tuple[TimeFit | None, ...]:
        return self.known_fits or rank_fits(self.records, len(self.equal))

    @cached_property
    def shares(self) -> tuple[TimeFit | None, ...]:
        """Each rank's fit of the whole shares that it ran in as many passes as they would need now."""
        if self.known_fits or all(record.passes == 1 for record in self.records):
            return self.fits
        comparable = [
            record
            for record in self.records
            if record.passes == self.passes(record.rank, record.rows)
        ]
        return share_fits(comparable, len(self.equal))

    def share_fit(self, rank: int, rows: int) -> TimeFit | None:
        """The fit of the rank's whole shares if it was measured at one of ``rows`` rows."""
        fit = self.shares[rank]
        if fit is None or rows not in fit.batch_sizes:
            return None
        is_of_passes = self.shares is self.fits and self.passes(rank, rows) > 1
        return None if is_of_passes else fit

    def passes(self, rank: int, rows: int) -> int:
        """In how many passes the rank would run ``rows`` rows."""
        return len(pass_sizes(rows, None if self.row_caps is None else self.row_caps[rank]))

    @cached_property
    def pass_models(self) -> tuple[TimeModel, ...]:
        """Each rank's model of a pass; the median speed of the others for a rank that has not had rows."""
        per_row = [fit.seconds[0] / fit.batch_sizes[0] for fit in self.fits if fit is not None]
        unknown = LinearTime(0.0, median(per_row)) if per_row else LinearTime(0.0, 1.0)
        return tuple(unknown if fit is None else fit.model for fit in self.fits)

    @cached_property
    def cautious_models(self) -> tuple[TimeModel, ...]:
        """Each rank's model of a pass, with caution beyond the largest one measured."""
        return tuple(
            model if fit is None else cautious(model, max(fit.batch_sizes))
            for model, fit in zip(self.pass_models, self.fits, strict=True)
        )

    @cached_property
    def models(self) -> tuple[TimeModel, ...]:
        """Each rank's model of a whole share."""
        return self.of_shares(self.pass_models)

    def of_shares(self, pass_models: Sequence[TimeModel]) -> tuple[TimeModel, ...]:
        """The models of whole shares, from those of single passes."""
        return share_models(pass_models, self.row_caps, parks=self.parks)

    @property
    def is_complete(self) -> bool:
        """Whether every rank with rows in the current split has been measured at them."""
        return self.measured_step(self.current.batch_sizes) is not None

    @property
    def has_two_sizes(self) -> bool:
        return any(fit is not None and len(fit.batch_sizes) > 1 for fit in self.fits)

    @property
    def smallest_sizes(self) -> tuple[int, ...]:
        """The fewest rows that each rank was measured at, 0 where at none."""
        return tuple(min(fit.batch_sizes) if fit is not None else 0 for fit in self.shares)

    @cached_property
    def error(self) -> float:
        """Standard error of a prediction, as a share of it: root mean square over the ranks."""
        return _root_mean_square([fit.relative_error for fit in self.fits if fit is not None])

    @cached_property
    def spans(self) -> tuple[int, ...]:
        """Rows between the smallest and the largest size that each rank's model rests on, the origin being one of them
        where only one size was measured."""
        sizes = [fit.batch_sizes if fit is not None else (1,) for fit in self.fits]
        return tuple(max(each) - min(each) if len(each) > 1 else max(each) for each in sizes)

    @cached_property
    def growth_limits(self) -> tuple[int, ...]:
        """The most rows each rank may try next: three times the most it has run, if allowed."""
        share = -(-sum(self.equal) // len(self.equal))
        limits = tuple(
            min(top, GROWTH * max(share, most))
            for top, most in zip(self.upper, self.largest_shares, strict=True)
        )
        return limits if _feasible(self, limits) else self.upper

    @cached_property
    def largest_shares(self) -> tuple[int, ...]:
        """The most rows that each rank has run in a step, 0 where none."""
        known = self.known_fits or (None,) * len(self.equal)
        largest = [max(fit.batch_sizes) if fit is not None else 0 for fit in known]
        for record in self.records:
            largest[record.rank] = max(largest[record.rank], record.rows)
        return tuple(largest)

    @cached_property
    def least(self) -> tuple[int, ...]:
        """The fewest rows of each rank: some, where it may be parked but was never measured."""
        fits = self.fits if self.parks else ()
        return self._with_seats([fit is None for fit in fits] or [False] * len(self.equal))

    @cached_property
    def seats(self) -> tuple[int, ...]:
        """The fewest rows of each rank in a split that leaves none out."""
        return self._with_seats([self.parks] * len(self.equal))

    def _with_seats(self, is_seated: Sequence[bool]) -> tuple[int, ...]:
        lower = tuple(
            max(low, min(top, self.least_rows)) if seated else low
            for low, top, seated in zip(self.lower, self.upper, is_seated, strict=True)
        )
        is_possible = _holds(sum(self.equal), lower, self.growth_limits, self.granularity)
        return lower if is_possible else self.lower

    @cached_property
    def refit(self) -> tuple[int, ...]:
        """The split that the fits predict to be fastest within the limits of growth."""
        split = allocate_or_park(
            self.of_shares(self.cautious_models),
            sum(self.equal),
            lower=self.least,
            upper=self.growth_limits,
            seats=self.seats if self.parks else None,
            least_gain=max(LEAST_GAIN, self.error),
            granularity=self.granularity,
            prefer=self.current.batch_sizes,
        )
        return tuple(split.tolist())

    @property
    def reaches_far(self) -> bool:
        """Whether the refitted split gives a rank clearly more rows than were measured on it."""
        return any(
            size > max(TRUSTED_REACH * most, most + self.granularity)
            for size, most in zip(self.refit, self.largest_shares, strict=True)
            if most
        )

    def rank_seconds(self, batch_sizes: Sequence[int]) -> list[float] | None:
        """Measured medians of the ranks with rows; None where one was not measured at its size."""
        seconds = []
        for rank, size in enumerate(batch_sizes):
            if size == 0:
                continue
            fit = self.share_fit(rank, size)
            if fit is None:
                return None
            seconds.append(fit.median(size))
        return seconds

    def measured_step(self, batch_sizes: Sequence[int]) -> float | None:
        seconds = self.rank_seconds(batch_sizes)
        return max(seconds) if seconds else None

    def predicted_step(self, batch_sizes: Sequence[int]) -> float:
        return max(
            float(model.seconds(size)) for model, size in zip(self.models, batch_sizes, strict=True)
        )

    def with_figures(self, batch_sizes: Sequence[int]) -> BatchPlan:
        """The plan of a split with predicted seconds, the equal split's measured where known."""
        plan = predicted_plan(self.models, batch_sizes)
        measured = self.measured_step(self.equal)
        return plan if measured is None else replace(plan, equal_step_seconds=measured)


def after_first_round(evidence: Evidence) -> Decision:
    """After the equal split: keep it where the devices are equally fast, else a second split."""
    comparison = compared(evidence, evidence.current.batch_sizes)
    if comparison.is_equal:
        return _equal_devices(evidence, comparison.limit)
    split = exploratory_split(
        evidence.models,
        evidence.current.batch_sizes,
        lower=evidence.seats,
        upper=evidence.growth_limits,
        granularity=evidence.granularity,
    )
    if split == evidence.current.batch_sizes:
        return Decision(
            evidence.with_figures(split),
            done=True,
            reason=f"the bounds leave no other split of {sum(split)} rows among {len(split)} ranks",
        )
    return Decision(
        evidence.with_figures(split),
        done=False,
        reason="the devices differ in speed, so the warm-up measures a second size on each",
    )


def after_later_round(evidence: Evidence, *, agreement_counts: bool) -> Decision:
    """After a later split: the plan where prediction and measurement agree, else a new split.

    ``agreement_counts`` is False for the exploratory round, whose times were predicted from one
    size only.
    """
    final = best_known(evidence)
    if evidence.refit == evidence.current.batch_sizes:
        return final
    if not evidence.reaches_far and (
        final.plan.batch_sizes in (evidence.equal, evidence.current.batch_sizes)
        or _is_balanced(evidence)
        or (agreement_counts and _agrees(evidence))
    ):
        return final
    return Decision(
        evidence.with_figures(evidence.refit),
        done=False,
        reason="the measured times differ from the predicted ones, "
        "so the warm-up measures a refitted split",
    )


def best_known(evidence: Evidence) -> Decision:
    """The end of the warm-up: the refitted split, a measured one as good, or the equal split."""
    if not any(fit is not None for fit in evidence.fits):
        return Decision(
            BatchPlan(evidence.equal),
            done=True,
            reason="no step of the warm-up could be measured, so the equal split stays",
        )
    if not evidence.has_two_sizes:
        comparison = compared(evidence, evidence.smallest_sizes)
        if comparison.is_equal:
            return _equal_devices(evidence, comparison.limit)
    split, seconds = evidence.refit, evidence.predicted_step(evidence.refit)
    tried = _best_measured(evidence)
    if tried is not None and seconds > tried[1] * (1 - max(LEAST_GAIN, evidence.error)):
        split, seconds = tried
    gain = evidence.predicted_step(evidence.equal) / seconds - 1
    needed = max(LEAST_GAIN, _quantile(len(evidence.equal)) * evidence.error)
    if gain < needed:
        return Decision(
            evidence.with_figures(evidence.equal),
            done=True,
            reason=(
                f"no split is predicted to gain more than {max(gain, 0.0):.1%} over the equal "
                f"split, less than the {needed:.1%} that the measurement can tell, "
                "so the equal split stays"
            ),
            resolution=needed if gain > LEAST_GAIN else 0.0,
        )
    return Decision(
        evidence.with_figures(split),
        done=True,
        reason=f"a step is predicted to take {1 / (1 + gain):.0%} of its time "
        f"under the equal split{_parked_in_words(evidence, split)}",
    )


def _parked_in_words(evidence: Evidence, split: Sequence[int]) -> str:
    parked = [rank for rank, rows in enumerate(split) if rows == 0 and evidence.upper[rank]]
    if not (evidence.parks and parked):
        return ""
    return f", without rows for {rank_names(parked)}, whose fixed time costs more than it brings"


def refined(evidence: Evidence) -> Decision | None:
    """A better plan near the final one, once that has been measured; None where none is known."""
    current = evidence.current.batch_sizes
    if current == evidence.equal or not evidence.is_complete or evidence.reaches_far:
        return None
    decision = best_known(evidence)
    return decision if decision.plan.batch_sizes not in (current, evidence.equal) else None


def usable_upper(
    upper: Sequence[int],
    caps: Sequence[int] | None,
    *,
    lower: Sequence[int],
    equal: Sequence[int],
    granularity: int,
) -> tuple[int, ...]:
    """Upper bounds within the memory's limits; if too tight for the batch, the equal split fits."""
    if caps is None:
        return tuple(upper)
    limited = [
        max(least, min(most, cap)) for least, most, cap in zip(lower, upper, caps, strict=True)
    ]
    if _holds(sum(equal), lower, limited, granularity):
        return tuple(limited)
    return tuple(max(most, size) for most, size in zip(limited, equal, strict=True))


def equal_within(
    rows: int, lower: Sequence[int], upper: Sequence[int], granularity: int
) -> tuple[int, ...]:
    """The equal split as the bounds permit it."""
    return equal_split(
        len(lower), rows, granularity=granularity, lower=lower, upper=upper
    ).batch_sizes


def _equal_devices(evidence: Evidence, limit: float) -> Decision:
    why = (
        "there is one device and nothing to balance"
        if len(evidence.equal) == 1
        else "the devices are equally fast within the noise of the measurement "
        f"({limit:.1%}), so the equal split stays"
    )
    several = len(evidence.equal) > 1
    plan = evidence.with_figures(evidence.equal)
    return Decision(plan, done=True, reason=why, resolution=limit if several else 0.0)


@dataclass(frozen=True)
class Comparison:
    """By how much the slowest rank exceeds the fastest, and by how much it may by chance, both as shares."""

    spread: float
    limit: float

    @property
    def is_equal(self) -> bool:
        return self.spread <= self.limit


def compared(evidence: Evidence, sizes: Sequence[int]) -> Comparison:
    """The ranks beside each other at ``sizes``, by their seconds or seconds per row, whichever is closer."""
    pairs = max(1, comb(len(sizes), 2))
    fits = [
        (fit, size)
        for rank, size in enumerate(sizes)
        if (fit := evidence.share_fit(rank, size)) is not None
    ]
    error = _root_mean_square([fit.median_error(size) for fit, size in fits])
    limit = max(LEAST_GAIN, _quantile(pairs) * sqrt(2) * error)
    if len(fits) < len(sizes):
        return Comparison(inf, limit)
    seconds = [fit.median(size) for fit, size in fits]
    per_row = [time / size for time, size in zip(seconds, sizes, strict=True)]
    spread = min(max(seconds) / min(seconds), max(per_row) / min(per_row)) - 1
    return Comparison(spread, limit)


def _is_balanced(evidence: Evidence) -> bool:
    """Whether the measured times are equal: then any other split gives some rank more."""
    seconds = evidence.rank_seconds(evidence.current.batch_sizes)
    if not seconds or len(seconds) < len(evidence.equal):
        return False
    return max(seconds) / min(seconds) - 1 <= LEAST_GAIN


def _agrees(evidence: Evidence) -> bool:
    predicted = evidence.current.rank_seconds
    if predicted is None:
        return False
    for rank, (size, expected) in enumerate(
        zip(evidence.current.batch_sizes, predicted, strict=True)
    ):
        if size == 0:
            continue
        fit = evidence.share_fit(rank, size)
        if fit is None:
            return False
        allowed = max(AGREEMENT, 2 * sqrt(2) * fit.median_error(size))
        if abs(fit.median(size) / expected - 1) > allowed:
            return False
    return True


def _best_measured(evidence: Evidence) -> tuple[tuple[int, ...], float] | None:
    by_step: dict[int, dict[int, int]] = {}
    for record in evidence.records:
        by_step.setdefault(record.step, {})[record.rank] = record.rows
    ranks = range(len(evidence.equal))
    splits = {
        split
        for step in by_step.values()
        if sum(split := tuple(step.get(rank, 0) for rank in ranks)) == sum(evidence.equal)
    }
    best: tuple[tuple[int, ...], float] | None = None
    for split in sorted(splits, key=lambda split: split != evidence.current.batch_sizes):
        seconds = evidence.measured_step(split)
        allowed = all(size <= top for size, top in zip(split, evidence.upper, strict=True))
        if seconds is not None and allowed and (best is None or seconds < best[1]):
            best = split, seconds
    return best


def _feasible(evidence: Evidence, upper: Sequence[int]) -> bool:
    return _holds(sum(evidence.equal), evidence.lower, upper, evidence.granularity)


def _holds(rows: int, lower: Sequence[int], upper: Sequence[int], granularity: int) -> bool:
    try:
        check_feasible(rows, np.asarray(lower), np.asarray(upper), granularity)
    except PlanError:
        return False
    return True


def _quantile(comparisons: int) -> float:
    """Standard errors within which all of several comparisons lie by chance (Bonferroni)."""
    return NormalDist().inv_cdf(1 - _DOUBT / comparisons)


def _root_mean_square(values: Sequence[float]) -> float:
    return sqrt(sum(value**2 for value in values) / len(values)) if values else 0.0
