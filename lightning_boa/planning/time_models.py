"""How long a step of one worker takes as a function of its rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_boa.errors import MeasurementError


class TimeModel(Protocol):
    """Seconds of a step for a number of rows: vectorised and nondecreasing."""

    def seconds(self, rows: ArrayLike) -> NDArray[np.float64]: ...


@dataclass(frozen=True)
class LinearTime:
    """Latency floor and line: ``max(floor, overhead + seconds_per_sample * rows)``, in seconds."""

    overhead: float
    seconds_per_sample: float
    floor: float = 0.0

    def __post_init__(self) -> None:
        for name in ("overhead", "seconds_per_sample", "floor"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise MeasurementError(
                    f"LinearTime: {name} must be a finite number of seconds >= 0, got {value!r}"
                )
            object.__setattr__(self, name, float(value))
        if self.overhead == self.seconds_per_sample == self.floor == 0:
            raise MeasurementError(
                "LinearTime: overhead, seconds_per_sample and floor are all 0: "
                "a step that takes no time cannot be planned, give the measured seconds"
            )

    def seconds(self, rows: ArrayLike) -> NDArray[np.float64]:
        """Seconds for ``rows`` (any shape)."""
        line = self.overhead + self.seconds_per_sample * np.asarray(rows, dtype=np.float64)
        return np.maximum(self.floor, line)

    def to_dict(self) -> dict[str, Any]:
        """Plain values that `time_model_from_dict` reads."""
        return {
            "kind": "linear",
            "overhead": self.overhead,
            "seconds_per_sample": self.seconds_per_sample,
            "floor": self.floor,
        }


@dataclass(frozen=True, init=False)
class TableTime:
    """Measured seconds at some batch sizes, made monotone and joined by straight lines.

    The seconds are replaced by their isotonic regression (pool adjacent violators). Beyond the last
    size the last positive slope goes on, or the line from the origin where there is none. Below the
    first size the first slope goes on, but no steeper than the line to the origin.
    """

    batch_sizes: tuple[int, ...]
    seconds_at: tuple[float, ...]

    def __init__(self, batch_sizes: Sequence[int], seconds: Sequence[float]) -> None:
        sizes = np.asarray(batch_sizes, dtype=np.float64)
        times = np.asarray(seconds, dtype=np.float64)
        if sizes.ndim != 1 or sizes.shape != times.shape or sizes.size == 0:
            raise MeasurementError(
                "TableTime: expected as many seconds as batch sizes, at least one, "
                f"got {sizes.size} sizes and {times.size} times"
            )
        if not np.all(sizes >= 1) or np.any(sizes != np.floor(sizes)) or np.any(np.isinf(sizes)):
            raise MeasurementError(
                f"TableTime: batch sizes must be whole numbers >= 1, got {list(batch_sizes)}"
            )
        if not np.all(np.isfinite(times) & (times > 0)):
            raise MeasurementError(
                f"TableTime: seconds must be finite and > 0, got {list(seconds)}"
            )
        order = np.argsort(sizes, kind="stable")
        sizes, times = sizes[order], times[order]
        if np.any(np.diff(sizes) == 0):
            raise MeasurementError(
                f"TableTime: every batch size may stand once, got {list(batch_sizes)}; "
                "give the median of repeated measurements"
            )
        object.__setattr__(self, "batch_sizes", tuple(int(size) for size in sizes))
        object.__setattr__(self, "seconds_at", tuple(isotonic(times).tolist()))

    @cached_property
    def _points(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        sizes = np.asarray(self.batch_sizes, dtype=np.float64)
        times = np.asarray(self.seconds_at, dtype=np.float64)
        between = np.diff(times) / np.diff(sizes)
        rising = between[between > 0]
        to_origin = times[0] / sizes[0]
        before = min(between[0], to_origin) if between.size else to_origin
        after = rising[-1] if rising.size else times[-1] / sizes[-1]
        return sizes, times, np.concatenate([[before], between, [after]])

    def seconds(self, rows: ArrayLike) -> NDArray[np.float64]:
        """Seconds for ``rows`` (any shape)."""
        sizes, times, slopes = self._points
        at = np.asarray(rows, dtype=np.float64)
        segment = np.searchsorted(sizes, at, side="right")
        anchor = np.maximum(segment - 1, 0)
        line = times[anchor] + slopes[segment] * (at - sizes[anchor])
        ceiling = np.append(times, np.inf)[segment]
        return np.asarray(np.clip(line, 0.0, ceiling), dtype=np.float64)

    def to_dict(self) -> dict[str, Any]:
        """Plain values that `time_model_from_dict` reads."""
        return {
            "kind": "table",
            "batch_sizes": list(self.batch_sizes),
            "seconds": list(self.seconds_at),
        }


@dataclass(frozen=True)
class ScaledTime:
    """A time model whose seconds are multiplied by ``factor``."""

    model: TimeModel
    factor: float

    def seconds(self, rows: ArrayLike) -> NDArray[np.float64]:
        """Seconds for ``rows`` (any shape)."""
        return self.model.seconds(rows) * self.factor


def scaled(model: TimeModel, factor: float) -> TimeModel:
    """The model of a device that has become slower by ``factor``."""
    if type(model) is LinearTime:
        return LinearTime(
            model.overhead * factor, model.seconds_per_sample * factor, model.floor * factor
        )
    return ScaledTime(model, factor)


def time_model_from_dict(values: Mapping[str, Any]) -> LinearTime | TableTime:
    """The time model whose ``to_dict`` gave ``values``."""
    kind = values.get("kind")
    if kind == "linear":
        return LinearTime(values["overhead"], values["seconds_per_sample"], values["floor"])
    if kind == "table":
        return TableTime(values["batch_sizes"], values["seconds"])
    raise MeasurementError(f"time model: expected kind 'linear' or 'table', got {kind!r}")


def isotonic(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The nearest nondecreasing sequence in least squares (pool adjacent violators)."""
    means: list[float] = []
    counts: list[int] = []
    for value in values.tolist():
        mean, count = value, 1
        while means and means[-1] > mean:
            before, weight = means.pop(), counts.pop()
            mean = (before * weight + mean * count) / (weight + count)
            count += weight
        means.append(mean)
        counts.append(count)
    return np.repeat(np.asarray(means, dtype=np.float64), counts)
