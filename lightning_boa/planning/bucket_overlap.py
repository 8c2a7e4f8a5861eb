"""Steps whose gradients are exchanged in buckets beside the backward, and what such a step waits for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_boa.errors import MeasurementError, PlanError
from lightning_boa.planning.allocation import allocate
from lightning_boa.planning.time_models import TimeModel


@dataclass(frozen=True)
class Buckets:
    """The buckets of gradients that DDP exchanges one after another, in their order.

    A bucket can be exchanged once all ranks have gone through the part ``ready`` of their backward, 1 for the last one.
    Its all-reduce takes ``seconds``.

    Raises:
        MeasurementError: parts that are not nondecreasing up to 1, or seconds that are negative or not finite.
    """

    ready: tuple[float, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        ready, seconds = tuple(map(float, self.ready)), tuple(map(float, self.seconds))
        if len(ready) != len(seconds) or not ready:
            raise MeasurementError(
                "Buckets: expected as many seconds as parts of the backward, at least one, "
                f"got {len(seconds)} and {len(ready)}"
            )
        if not (np.all(np.diff([0.0, *ready]) >= 0) and ready[-1] == 1):
            raise MeasurementError(
                f"Buckets: ready must not decrease, from 0 up to 1 for the last bucket, got {list(ready)}"
            )
        if not all(np.isfinite(value) and value >= 0 for value in seconds):
            raise MeasurementError(f"Buckets: seconds must be finite and >= 0, got {list(seconds)}")
        object.__setattr__(self, "ready", ready)
        object.__setattr__(self, "seconds", seconds)

    @property
    def seconds_from(self) -> NDArray[np.float64]:
        """Seconds of each bucket and all after it, shape ``(buckets,)``."""
        return np.cumsum(self.seconds[::-1])[::-1]


@dataclass(frozen=True)
class OverlappedTime:
    """Seconds until the exchange of all gradients is over, as far as it depends on this rank's rows.

    ``before`` are the seconds until the backward begins and ``backward`` those it takes. With a and P for the two,
    bucket k of ``buckets`` ready at a part r_k and t_k seconds long:
    ``F(b) = max_k [a(b) + r_k P(b) + t_k + t_{k+1} + … ]``.

    A bucket's exchange begins when the one before is over and all ranks are ready, hence the step ends at
    ``max_i F_i(b_i)``. That is nondecreasing and separable, so that `allocate` and `plan_batches` are exact, with
    step seconds that include communication. Two buckets give the compute-bound and the communication-bound nodes of
    Cannikin (Nie, Maghakian and Liu, 2024).
    """

    before: TimeModel
    backward: TimeModel
    buckets: Buckets

    def seconds(self, rows: ArrayLike) -> NDArray[np.float64]:
        """Seconds for ``rows`` (any shape)."""
        return np.asarray(self.seconds_by_bucket(rows).max(axis=-1), dtype=np.float64)

    def seconds_by_bucket(self, rows: ArrayLike) -> NDArray[np.float64]:
        """When the exchange would be over if the network was idle before bucket k; shape ``(*rows.shape, buckets)``."""
        before = np.asarray(self.before.seconds(rows))[..., np.newaxis]
        backward = np.asarray(self.backward.seconds(rows))[..., np.newaxis]
        ready: NDArray[np.float64] = before + backward * np.asarray(self.buckets.ready)
        return ready + self.buckets.seconds_from


@dataclass(frozen=True)
class StepEnd:
    """What the end of a step waits for.

    The network waits for ``rank`` to be ready with ``bucket`` (from 0, of ``buckets``), and is busy from then on until
    the end, after ``seconds``. ``backward_seconds`` is when the slowest backward is over, and ``least_seconds`` the
    shortest step that any split of the same rows has, whatever the bounds.
    """

    seconds: float
    backward_seconds: float
    least_seconds: float
    rank: int
    bucket: int
    buckets: int

    @property
    def network_bound(self) -> bool:
        """Whether the network is never idle from an earlier bucket than the last on, or needs most of the step."""
        return self.bucket < self.buckets - 1 or self.exposed_seconds > self.seconds / 2

    @property
    def exposed_seconds(self) -> float:
        """Seconds of communication after the slowest backward."""
        return self.seconds - self.backward_seconds

    @property
    def most_gain(self) -> float:
        """Relative gain in steps per second that no other split of the same rows exceeds."""
        return self.seconds / self.least_seconds - 1

    @property
    def finding(self) -> str:
        """What limits the step, and what another split could gain at most, in one sentence."""
        exposed = f"{self.exposed_seconds:.3g} of {self.seconds:.3g} s"
        if self.network_bound:
            limit = (
                f"the network limits: it is never idle from bucket {self.bucket + 1} of {self.buckets} on, "
                f"and {exposed} come after the slowest backward"
            )
        else:
            limit = f"rank {self.rank} limits: all ranks wait for the end of its backward, and {exposed} come after it"
        return f"{limit}; another split gains at most {self.most_gain:.1%}"


def step_end(time_models: Sequence[OverlappedTime], batch_sizes: Sequence[int]) -> StepEnd:
    """What a step of ``batch_sizes`` rows per rank waits for at its end.

    Where several buckets are waited for alike, the last of them is named, and the lowest rank.

    Raises:
        PlanError: not as many shares as models, no row, or buckets that do not take the same seconds on all ranks.
    """
    rows = sum(batch_sizes)
    if len(time_models) != len(batch_sizes) or rows < 1:
        raise PlanError(
            f"step_end: expected rows for each of {len(time_models)} ranks, at least one row, got {list(batch_sizes)}"
        )
    exchange = time_models[0].buckets.seconds
    for rank, model in enumerate(time_models):
        if model.buckets.seconds != exchange:
            raise PlanError(
                f"step_end: expected buckets of the same seconds on all ranks, since all exchange them together, "
                f"got {list(exchange)} on rank 0 and {list(model.buckets.seconds)} on rank {rank}"
            )
    pairs = list(zip(time_models, batch_sizes, strict=True))
    ends = np.array([model.seconds_by_bucket(size) for model, size in pairs])
    seconds = float(ends.max())
    bucket = int(np.flatnonzero((ends == seconds).any(axis=0))[-1])
    best = allocate(time_models, rows, lower=0, upper=rows)
    return StepEnd(
        seconds=seconds,
        backward_seconds=max(
            float(model.before.seconds(size) + model.backward.seconds(size))
            for model, size in pairs
        ),
        least_seconds=max(
            float(model.seconds(size))
            for model, size in zip(time_models, best.tolist(), strict=True)
        ),
        rank=int(np.argmax(ends[:, bucket] == seconds)),
        bucket=bucket,
        buckets=len(exchange),
    )
