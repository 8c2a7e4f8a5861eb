"""Policies that decide on the rows of each worker and reduce gradients in a ring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lightning_boa.errors import OptionError
from lightning_boa.planning import apportion, equal_split, moved_shares, proportional_shares
from lightning_boa.planning.bounds import is_count, positive_integer
from lightning_boa.simulation.outcome import Simulated
from lightning_boa.simulation.synchronous import ConstantShares, Shares, train_synchronously
from lightning_boa.simulation.trial import Trial


@dataclass(frozen=True)
class EqualSplit:
    """The same rows for every worker, as under DDP."""

    name: str = "equal split"

    def begin(self, workers: Sequence[int], rows: int, first_step: int) -> Shares:
        return ConstantShares(equal_split(len(workers), rows).batch_sizes)

    def simulate(self, trial: Trial) -> Simulated:
        return train_synchronously(self, trial)


@dataclass(frozen=True)
class FixedShares:
    """The rows that are given for each worker; without one of them, the same proportions.

    Raises:
        OptionError: negative rows, or none at all; in `simulate` rows for another number of workers or another sum.
    """

    batch_sizes: tuple[int, ...]
    name: str = "fixed shares"

    def __post_init__(self) -> None:
        sizes = tuple(self.batch_sizes)
        if not all(is_count(rows) for rows in sizes) or not any(sizes):
            raise OptionError(
                f"batch_sizes: expected whole numbers of at least 0, not all 0, got {list(sizes)}"
            )
        object.__setattr__(self, "batch_sizes", tuple(map(int, sizes)))

    def begin(self, workers: Sequence[int], rows: int, first_step: int) -> Shares:
        return ConstantShares(apportion([self.batch_sizes[worker] for worker in workers], rows))

    def simulate(self, trial: Trial) -> Simulated:
        workers, rows = trial.cluster.workers, trial.global_batch_size
        if len(self.batch_sizes) != workers or sum(self.batch_sizes) != rows:
            raise OptionError(
                f"batch_sizes: expected rows for each of {workers} workers that sum to {rows}, got "
                f"{len(self.batch_sizes)} that sum to {sum(self.batch_sizes)}"
            )
        return train_synchronously(self, trial)


@dataclass(frozen=True)
class Proportional:
    """Shares in proportion to each worker's rows per second, measured once under the equal split.

    The median of the first ``measured_steps`` steps counts. Where steps have fixed costs this is not the fastest split.
    """

    measured_steps: int = 5
    name: str = "proportional"

    def __post_init__(self) -> None:
        positive_integer("measured_steps", self.measured_steps)

    def begin(self, workers: Sequence[int], rows: int, first_step: int) -> Shares:
        equal = equal_split(len(workers), rows).batch_sizes
        return _ProportionalShares(equal, self.measured_steps)

    def simulate(self, trial: Trial) -> Simulated:
        return train_synchronously(self, trial)


class _ProportionalShares:
    def __init__(self, equal: tuple[int, ...], measured_steps: int) -> None:
        self._rows = equal
        self._left = measured_steps
        self._measured: list[NDArray[np.float64]] = []

    def rows(self, step: int) -> Sequence[int]:
        return self._rows

    def after(
        self, step: int, rows: Sequence[int], computing: NDArray[np.float64], period: float
    ) -> None:
        if self._left == 0:
            return
        self._left -= 1
        self._measured.append(computing)
        if self._left == 0:
            self._rows = proportional_shares(rows, np.median(self._measured, axis=0).tolist())


@dataclass(frozen=True)
class LbBsp:
    """After every step ``rows_moved`` rows go from the slowest worker to the fastest one.

    The plainest form of LB-BSP, which corrects shares at the synchronization barriers (Chen, Weng, Wang, Li and Li,
    "Semi-Dynamic Load Balancing", SoCC 2020): it goes by the seconds of the last step alone and predicts no speeds. It
    begins with the equal split; a worker keeps one row at least, and nothing moves where all have needed the same time.
    """

    rows_moved: int = 1
    name: str = "LB-BSP"

    def __post_init__(self) -> None:
        positive_integer("rows_moved", self.rows_moved)

    def begin(self, workers: Sequence[int], rows: int, first_step: int) -> Shares:
        return _MovingShares(equal_split(len(workers), rows).batch_sizes, self.rows_moved)

    def simulate(self, trial: Trial) -> Simulated:
        return train_synchronously(self, trial)


class _MovingShares:
    def __init__(self, rows: tuple[int, ...], rows_moved: int) -> None:
        self._rows = rows
        self._rows_moved = rows_moved

    def rows(self, step: int) -> Sequence[int]:
        return self._rows

    def after(
        self, step: int, rows: Sequence[int], computing: NDArray[np.float64], period: float
    ) -> None:
        moved = moved_shares(rows, computing.tolist(), self._rows_moved)
        if moved != self._rows:
            self._rows = moved
