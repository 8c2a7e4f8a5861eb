"""Steps in which all workers wait for each other: the loop around every policy that only decides on rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lightning_boa.simulation.outcome import Simulated
from lightning_boa.simulation.trial import Trial


class Shares(Protocol):
    """Decides on the rows of each worker, step by step; workers are counted among those that take part."""

    def rows(self, step: int) -> Sequence[int]:
        """The rows of each worker in ``step``."""

    def after(
        self, step: int, rows: Sequence[int], computing: NDArray[np.float64], period: float
    ) -> None:
        """A step of ``rows`` is over: each worker has computed for so many seconds, all together took ``period``."""


class SharesRows(Protocol):
    """A policy that decides on rows, and leaves gradients to a ring all-reduce."""

    @property
    def name(self) -> str: ...

    def begin(self, workers: Sequence[int], rows: int, first_step: int) -> Shares:
        """The start of a training of ``rows`` a step on these workers of the cluster."""


class ConstantShares:
    """The same rows in every step."""

    def __init__(self, rows: Sequence[int]) -> None:
        self._rows = rows

    def rows(self, step: int) -> Sequence[int]:
        return self._rows

    def after(
        self, step: int, rows: Sequence[int], computing: NDArray[np.float64], period: float
    ) -> None:
        """Nothing follows from it."""


def train_synchronously(policy: SharesRows, trial: Trial) -> Simulated:
    """Every step lasts until the slowest worker has computed and all gradients are reduced.

    Where a worker fails, the policy begins anew with the others, who share all rows.
    """
    cluster = trial.cluster
    workers: tuple[int, ...] = ()
    plans: list[tuple[int, tuple[int, ...]]] = []
    periods: list[float] = []
    computing = np.zeros(cluster.workers)
    present = np.zeros(cluster.workers)
    gradients = np.zeros(cluster.workers, dtype=np.int64)
    ends = set(cluster.failures.values())
    for step in range(trial.steps):
        trial.progress(step / trial.steps)
        restarted = False
        if step == 0 or step in ends:
            restarted = step > 0
            workers = cluster.alive(step)
            at = np.asarray(workers)
            reduced = cluster.links.reduced_by(workers)
            shares = policy.begin(workers, trial.global_batch_size, step)
            known: Sequence[int] | None = None
        split = shares.rows(step)
        if known is None or split is not known:
            known = split
            rows = np.zeros(cluster.workers, dtype=np.int64)
            rows[at] = split
            undisturbed = trial.undisturbed_seconds(rows)
            plan = tuple(rows.tolist())
            if not plans or plan != plans[-1][1]:
                plans.append((step, plan))
        seconds = undisturbed * trial.disturbances.of_all(step)
        own = seconds[at]
        slowest = own.max()
        period = float(max(slowest, reduced.seconds(slowest)))
        shares.after(step, split, own, period)
        lasted = period + restarted * cluster.restart_seconds
        periods.append(lasted)
        computing += seconds
        present[at] += lasted
        gradients += rows > 0
    return Simulated(
        policy=policy.name,
        step_seconds=tuple(periods),
        rows_used=(trial.global_batch_size,) * trial.steps,
        rows_dropped=(0,) * trial.steps,
        computing_seconds=tuple(computing.tolist()),
        present_seconds=tuple(present.tolist()),
        gradients_used=tuple(gradients.tolist()),
        staleness={0: int(gradients.sum())},
        plans=tuple(plans),
    )
