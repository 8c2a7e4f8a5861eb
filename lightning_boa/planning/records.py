"""Measured steps of all ranks, and the figures of one split drawn from them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from statistics import median
from typing import NamedTuple

from lightning_boa.errors import MeasurementError
from lightning_boa.planning.bounds import is_count


@dataclass(frozen=True)
class StepRecord:
    """One step of one rank. Times are seconds.

    ``compute``: entry of the training step to the end of the local backward. ``loader_wait``,
    ``communication`` (waiting for other ranks included), ``optimizer``: other parts of the step.
    ``period``: from the start of this step to the start of the next. ``rows`` is this rank's part
    of ``step_rows``, in ``passes`` passes; ``compute`` are the seconds of all of them together.
    """

    step: int
    rank: int
    rows: int
    step_rows: int
    compute: float
    loader_wait: float
    communication: float
    optimizer: float
    period: float
    passes: int = 1

    def __post_init__(self) -> None:
        for name in ("compute", "period"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise MeasurementError(
                    f"{name} of rank {self.rank} at step {self.step}: "
                    f"expected finite seconds > 0, got {value!r}"
                )
        for name in ("loader_wait", "communication", "optimizer"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise MeasurementError(
                    f"{name} of rank {self.rank} at step {self.step}: "
                    f"expected finite seconds >= 0, got {value!r}"
                )
        if not 0 <= self.rows <= self.step_rows:
            raise MeasurementError(
                f"rank {self.rank} at step {self.step}: "
                f"{self.rows} of {self.step_rows} rows is impossible"
            )
        if not (is_count(self.passes) and self.passes >= 1):
            raise MeasurementError(
                f"passes of rank {self.rank} at step {self.step}: expected a whole number >= 1, got {self.passes!r}"
            )

    def to_list(self) -> list[int | float]:
        """The values in the order of the fields; ``StepRecord(*values)`` reads them."""
        return list(astuple(self))


@dataclass(frozen=True)
class SplitMeasurement:
    """What was measured under one split: medians per rank over ``steps`` steps, in seconds.

    ``step_compute`` is the slowest rank's median computation, ``step_period`` the greatest median
    of the whole step with loading, communication and optimizer.
    """

    batch_sizes: tuple[int, ...]
    steps: int
    rank_compute: tuple[float, ...]
    rank_loader_wait: tuple[float, ...]
    rank_communication: tuple[float, ...]
    rank_optimizer: tuple[float, ...]
    rank_period: tuple[float, ...]

    @property
    def step_compute(self) -> float:
        return max(self.rank_compute)

    @property
    def step_period(self) -> float:
        return max(self.rank_period)

    @property
    def idle_share(self) -> tuple[float, ...]:
        """Per rank the share of the slowest computation in which it has none itself."""
        return tuple(1.0 - compute / self.step_compute for compute in self.rank_compute)


def counted(
    records: Sequence[StepRecord], *, first_settling: int, settling: int
) -> tuple[StepRecord, ...]:
    """The records without each rank's settling steps, in order of step and rank.

    A rank settles during its first ``first_settling`` steps, and during the first ``settling``
    steps of every size that is new to it; a size that it has run before, in as many passes, needs no
    settling.
    """
    seen: defaultdict[tuple[int, int, int], int] = defaultdict(int)
    first_size: dict[int, tuple[int, int, int]] = {}
    kept = []
    for record in sorted(records, key=lambda record: (record.step, record.rank)):
        size = (record.rank, record.rows, record.passes)
        first_size.setdefault(record.rank, size)
        skipped = first_settling if first_size[record.rank] == size else settling
        seen[size] += 1
        if seen[size] > skipped:
            kept.append(record)
    return tuple(kept)


def measure_split(
    records: Sequence[StepRecord], batch_sizes: Sequence[int]
) -> SplitMeasurement | None:
    """The figures of the steps that ran ``batch_sizes`` on all ranks; None without any.

    A rank without rows need not be measured; its figures are 0 then.
    """
    whole = _whole_steps(records, batch_sizes)
    if not whole:
        return None

    def medians(name: str) -> tuple[float, ...]:
        columns = (
            [getattr(step[rank], name) for step in whole if rank in step]
            for rank in range(len(batch_sizes))
        )
        return tuple(median(column) if column else 0.0 for column in columns)

    return SplitMeasurement(
        batch_sizes=tuple(batch_sizes),
        steps=len(whole),
        rank_compute=medians("compute"),
        rank_loader_wait=medians("loader_wait"),
        rank_communication=medians("communication"),
        rank_optimizer=medians("optimizer"),
        rank_period=medians("period"),
    )


class StepCost(NamedTuple):
    """Seconds of a whole step: ``exposed`` is what all ranks spend communicating after the slowest backward, ``period``
    the greatest time from one step to the next."""

    exposed: float
    period: float

    @property
    def own(self) -> float:
        """Seconds without what all ranks spend communicating, which not every step of an accumulation window does."""
        return self.period - self.exposed


def step_costs(records: Sequence[StepRecord], batch_sizes: Sequence[int]) -> list[StepCost]:
    """Of the whole steps that ran ``batch_sizes``, in order."""
    return [
        StepCost(
            exposed=min(record.communication for record in step.values() if record.rows),
            period=max(record.period for record in step.values()),
        )
        for step in _whole_steps(records, batch_sizes)
    ]


def _whole_steps(
    records: Sequence[StepRecord], batch_sizes: Sequence[int]
) -> list[dict[int, StepRecord]]:
    """The steps in which all ranks ran ``batch_sizes``, by rank; of those with rows every record is there."""
    by_step: defaultdict[int, dict[int, StepRecord]] = defaultdict(dict)
    for record in records:
        if record.rows == batch_sizes[record.rank]:
            by_step[record.step][record.rank] = record
    needed = {rank for rank, rows in enumerate(batch_sizes) if rows}
    return [step for _, step in sorted(by_step.items()) if needed <= step.keys()]
