"""What a policy is asked to train on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lightning_boa.errors import PlanError
from lightning_boa.planning import equal_split
from lightning_boa.planning.allocation import WorkerTimes
from lightning_boa.planning.bounds import positive_integer
from lightning_boa.simulation.cluster import Cluster
from lightning_boa.simulation.disturbances import Disturbances


@dataclass(frozen=True)
class Trial:
    """So many steps of a global batch on a cluster, with the noise that a seed gives.

    ``progress`` is called again and again with the part that is done, from 0 to 1.

    Raises:
        OptionError: no step or row, a seed that is not one.
        PlanError: fewer rows than workers.
    """

    cluster: Cluster
    global_batch_size: int
    steps: int
    seed: int
    progress: Callable[[float], None] = field(default=lambda done: None, compare=False)

    def __post_init__(self) -> None:
        positive_integer("global_batch_size", self.global_batch_size)
        positive_integer("steps", self.steps)
        if self.global_batch_size < self.cluster.workers:
            raise PlanError(
                f"a global batch of {self.global_batch_size} rows cannot give each of {self.cluster.workers} workers a "
                "row; enlarge it or simulate fewer workers"
            )

    @cached_property
    def disturbances(self) -> Disturbances:
        return Disturbances(self.cluster, self.seed)

    @cached_property
    def _times(self) -> WorkerTimes:
        return WorkerTimes.of(self.cluster.time_models)

    @property
    def equal_rows(self) -> tuple[int, ...]:
        """The rows of each worker under the equal split."""
        return equal_split(self.cluster.workers, self.global_batch_size).batch_sizes

    def undisturbed_seconds(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Seconds in which each worker computes ``rows``, shape ``(workers,)``; no time without rows."""
        return np.where(rows > 0, self._times.seconds(rows), 0.0)
