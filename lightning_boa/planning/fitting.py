"""Robust fits of a time model to measured steps, with their error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_boa.errors import MeasurementError
from lightning_boa.planning.time_models import LinearTime, TableTime, TimeModel

UNKNOWN_NOISE = 0.05
MAD_TO_DEVIATION = 1.4826
MEDIAN_TO_MEAN_ERROR = 1.2533
_LIKELY_MISS = 3.0
_LEAST_MISS = 0.002


@dataclass(frozen=True)
class TimeFit:
    """A time model and how far to trust it.

    ``batch_sizes`` and ``seconds`` are the distinct sizes measured and the median of each,
    ``counts`` the measurements behind it. ``noise`` is the standard deviation of a single step and
    ``relative_error`` the standard error of the predicted seconds near the sizes measured, both as
    shares of the seconds.
    """

    model: TimeModel
    batch_sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    counts: tuple[int, ...]
    noise: float
    relative_error: float

    def median_error(self, batch_size: int) -> float:
        """Standard error of the median at a measured ``batch_size``, as a share of it."""
        count = self.counts[self.batch_sizes.index(batch_size)]
        return MEDIAN_TO_MEAN_ERROR * self.noise / float(np.sqrt(count))

    def median(self, batch_size: int) -> float:
        """The median of the seconds at a measured ``batch_size``."""
        return self.seconds[self.batch_sizes.index(batch_size)]

    def to_dict(self) -> dict[str, Any]:
        """Plain values that `from_dict` reads; the model is fitted again."""
        return {
            "batch_sizes": list(self.batch_sizes),
            "seconds": list(self.seconds),
            "counts": list(self.counts),
            "noise": self.noise,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TimeFit:
        """The fit whose `to_dict` gave ``values``."""
        return fit_medians(**values)


def fit_time(rows: ArrayLike, seconds: ArrayLike, *, through_origin: bool = False) -> TimeFit:
    """Fit seconds against rows; one pair per measured step.

    The median of each size counts, so single outliers do not. The noise is the median absolute
    deviation, pooled over the sizes. A line with ``overhead >= 0`` and slope ``>= 0`` comes first;
    where it misses the medians by more than the noise, a line with a latency floor (from three
    sizes on), then the monotone table.

    Raises:
        MeasurementError: times that are not finite and positive, or one size only without
            ``through_origin``.
    """
    sizes, seconds_all, group = _checked(rows, seconds)
    counts = np.bincount(group)
    medians = np.asarray(
        [median(seconds_all[group == index].tolist()) for index in range(sizes.size)],
        dtype=np.float64,
    )
    if sizes.size == 1 and not through_origin:
        raise MeasurementError(
            f"a fit needs at least two batch sizes, got only {int(sizes[0])}; measure another "
            "size, or take a line through the origin (through_origin=True)"
        )
    noise = _pooled_noise(seconds_all / medians[group] - 1.0, counts, group)
    return fit_medians(sizes, medians, counts, noise, through_origin=through_origin)


def fit_medians(
    batch_sizes: ArrayLike,
    seconds: ArrayLike,
    counts: ArrayLike,
    noise: float,
    *,
    through_origin: bool = False,
) -> TimeFit:
    """Fit the median ``seconds`` of ``counts`` steps at each of some rising ``batch_sizes``.

    ``noise`` is the standard deviation of a single step as a share of it. One size gives a line
    through the origin.
    """
    sizes = np.asarray(batch_sizes, dtype=np.float64)
    medians = np.asarray(seconds, dtype=np.float64)
    steps = np.asarray(counts, dtype=np.intp)
    errors = MEDIAN_TO_MEAN_ERROR * noise / np.sqrt(steps)
    model, parameters = _best_model(sizes, medians, steps / medians**2, errors, through_origin)
    misses = model.seconds(sizes) / medians - 1.0
    share = parameters / steps.sum()
    relative_error = max(
        MEDIAN_TO_MEAN_ERROR * noise * float(np.sqrt(share)),
        float(np.sqrt(np.mean(misses**2) * parameters / sizes.size)),
    )
    return TimeFit(
        model=model,
        batch_sizes=tuple(int(size) for size in sizes),
        seconds=tuple(medians.tolist()),
        counts=tuple(steps.tolist()),
        noise=noise,
        relative_error=relative_error,
    )


def _checked(
    rows: ArrayLike, seconds: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.intp]]:
    rows_all = np.asarray(rows, dtype=np.float64)
    seconds_all = np.asarray(seconds, dtype=np.float64)
    if rows_all.ndim != 1 or rows_all.shape != seconds_all.shape or rows_all.size == 0:
        raise MeasurementError(
            "expected one time for each measured batch size, at least one, "
            f"got {rows_all.size} sizes and {seconds_all.size} times"
        )
    if not np.all(np.isfinite(rows_all) & (rows_all >= 1) & (rows_all == np.floor(rows_all))):
        raise MeasurementError(
            f"measured batch sizes must be whole numbers >= 1, got {rows_all.tolist()}"
        )
    wrong = ~(np.isfinite(seconds_all) & (seconds_all > 0))
    if np.any(wrong):
        raise MeasurementError(
            "measured times must be finite and > 0 seconds, "
            f"got {seconds_all[wrong][0]} for {int(rows_all[wrong][0])} rows"
        )
    sizes, group = np.unique(rows_all, return_inverse=True)
    return sizes, seconds_all, group.astype(np.intp)


def _pooled_noise(
    deviations: NDArray[np.float64], counts: NDArray[np.intp], group: NDArray[np.intp]
) -> float:
    repeated = counts[group] > 1
    if not np.any(repeated):
        return UNKNOWN_NOISE
    used = int(repeated.sum())
    groups = int((counts > 1).sum())
    spread = float(median(np.abs(deviations[repeated]).tolist()))
    return MAD_TO_DEVIATION * spread * float(np.sqrt(used / (used - groups)))


def _best_model(
    sizes: NDArray[np.float64],
    medians: NDArray[np.float64],
    weights: NDArray[np.float64],
    errors: NDArray[np.float64],
    through_origin: bool,
) -> tuple[TimeModel, int]:
    allowed = np.maximum(_LIKELY_MISS * errors, _LEAST_MISS)

    def fits(model: TimeModel) -> bool:
        return bool(np.all(np.abs(model.seconds(sizes) / medians - 1.0) <= allowed))

    if sizes.size == 1:
        return _proportional(sizes, medians, weights), 1
    if through_origin:
        proportional = _proportional(sizes, medians, weights)
        if fits(proportional):
            return proportional, 1
    line = _line(sizes, medians, weights)
    if fits(line) or (sizes.size == 2 and line.seconds_per_sample == 0):
        return line, 2
    for flat in range(sizes.size - 1, 0, -1) if sizes.size > 2 else ():
        floor = float(np.average(medians[:flat], weights=weights[:flat]))
        rest = _line(sizes[flat:], medians[flat:], weights[flat:])
        bent = LinearTime(rest.overhead, rest.seconds_per_sample, floor)
        if fits(bent):
            return bent, 2 if flat == sizes.size - 1 else 3
    return TableTime(sizes.astype(np.int64).tolist(), medians.tolist()), sizes.size


def _proportional(
    sizes: NDArray[np.float64], medians: NDArray[np.float64], weights: NDArray[np.float64]
) -> LinearTime:
    return LinearTime(0.0, float((weights * medians * sizes).sum() / (weights * sizes**2).sum()))


def _line(
    sizes: NDArray[np.float64], medians: NDArray[np.float64], weights: NDArray[np.float64]
) -> LinearTime:
    if sizes.size == 1:
        return _proportional(sizes, medians, weights)
    size_mean = float(np.average(sizes, weights=weights))
    time_mean = float(np.average(medians, weights=weights))
    offsets = sizes - size_mean
    slope = float((weights * offsets * (medians - time_mean)).sum() / (weights * offsets**2).sum())
    overhead = time_mean - slope * size_mean
    if slope < 0:
        return LinearTime(time_mean, 0.0)
    if overhead < 0:
        return _proportional(sizes, medians, weights)
    return LinearTime(overhead, slope)
