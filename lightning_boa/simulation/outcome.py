"""What comes out of a simulated training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median


@dataclass(frozen=True)
class Simulated:
    """A simulated training: ``step_seconds`` from one update to the next, and who did what.

    A step is what a synchronous policy calls so: an update with the gradients of one global batch. An asynchronous one
    makes as many updates a step as it began with workers.

    Args:
        policy: its name.
        step_seconds: seconds of each step.
        rows_used: rows of each step whose gradients entered an update.
        rows_dropped: rows of each step whose gradients did not.
        computing_seconds: what each worker has spent computing, for nothing too.
        present_seconds: how long each worker took part.
        gradients_used: how many gradients of each worker have entered an update.
        staleness: how many gradients were so many updates older than the weights they changed.
        plans: the rows of each worker, and the step from which on they hold; for an asynchronous policy those of one
            gradient.
    """

    policy: str
    step_seconds: tuple[float, ...] = field(repr=False)
    rows_used: tuple[int, ...] = field(repr=False)
    rows_dropped: tuple[int, ...] = field(repr=False)
    computing_seconds: tuple[float, ...] = field(repr=False)
    present_seconds: tuple[float, ...] = field(repr=False)
    gradients_used: tuple[int, ...] = field(repr=False)
    staleness: Mapping[int, int] = field(repr=False)
    plans: tuple[tuple[int, tuple[int, ...]], ...] = field(repr=False)

    @property
    def seconds(self) -> float:
        """Seconds of the whole training."""
        return sum(self.step_seconds)

    @property
    def median_step_seconds(self) -> float:
        return median(self.step_seconds)

    @property
    def rows_per_second(self) -> float:
        """Rows used, over all seconds."""
        return sum(self.rows_used) / self.seconds

    @property
    def dropped_share(self) -> float:
        """Share of all rows whose gradients did not enter an update."""
        dropped = sum(self.rows_dropped)
        return dropped / (dropped + sum(self.rows_used))

    @property
    def idle_share(self) -> tuple[float, ...]:
        """Share of each worker's time in which it does not compute: waiting, communicating."""
        return tuple(
            max(0.0, 1.0 - computing / present) if present else 0.0
            for computing, present in zip(self.computing_seconds, self.present_seconds, strict=True)
        )

    @property
    def mean_staleness(self) -> float:
        """By how many updates gradients were older than the weights that they changed, on average."""
        gradients = sum(self.staleness.values())
        return sum(age * count for age, count in self.staleness.items()) / max(1, gradients)

    def plan_at(self, step: int) -> tuple[int, ...]:
        """Rows of each worker in ``step``."""
        return next(rows for first, rows in reversed(self.plans) if first <= step)
