"""Training on devices with known times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from lightning_boa.planning import (
    InPasses,
    Orchestration,
    OrchestrationSettings,
    StepRecord,
    TimeModel,
    allocate,
    pass_sizes,
)

PARKED = 1e-9


@pytest.fixture(scope="session")
def cluster() -> type[SimulatedCluster]:
    return SimulatedCluster


@dataclass
class SimulatedCluster:
    """Plays the trainer: runs the steps of a schedule and hands the records to the loop.

    ``devices`` are the true times of a pass; ``memory`` the most rows that each device holds at once: a pass that does
    not fit is divided anew until it does. ``row_caps`` are what is known of it, or a function that tells it from the
    largest pass that each rank has run and whether its memory was too small once. ``read_ahead`` are the steps each
    rank's sampler is ahead within the epoch.

    ``noise`` is the relative standard deviation of a time, ``outliers`` maps (step, rank) to a factor.
    The last of an epoch's steps has ``short_last`` rows where that is not 0.
    """

    devices: Sequence[TimeModel]
    batch: int
    steps_per_epoch: int = 10_000
    short_last: int = 0
    read_ahead: Sequence[int] | int = 2
    noise: float = 0.0
    seed: int = 0
    outliers: dict[tuple[int, int], float] = field(default_factory=dict)
    memory: Sequence[int] | None = None
    row_caps: Sequence[int] | Callable[[list[int], list[bool]], Sequence[int]] | None = None
    after_exchange: Callable[[Orchestration], Orchestration] = lambda state: state

    def settings(self, **options: object) -> OrchestrationSettings:
        ranks = len(self.devices)
        values = {"lower": (1,) * ranks, "upper": (self.batch,) * ranks, **options}
        return OrchestrationSettings(ranks, self.batch, **values)

    def train(
        self,
        settings: OrchestrationSettings,
        *,
        most_steps: int = 2000,
        state: Orchestration | None = None,
    ) -> Orchestration:
        """Run until nothing more is to be exchanged, from step 0 on in ``state`` or a warm-up."""
        state = state or Orchestration.begin(settings, 0)
        random = np.random.default_rng(self.seed)
        self._largest_pass = [0] * len(self.devices)
        self._was_too_small = [False] * len(self.devices)
        pending: list[StepRecord] = []
        for step in range(most_steps):
            pending += self._records(state, step, random)
            epoch_ends = (step + 1) % self.steps_per_epoch == 0
            closing = epoch_ends and state.phase == "warmup"
            if step != state.exchange_after and not closing:
                continue
            state = self.after_exchange(
                state.observe(
                    pending,
                    first_free_step=self._first_free_step(step),
                    row_caps=self.known_caps(),
                    closing=epoch_ends,
                )
            )
            pending = []
            if state.exchange_after is None:
                return state
        raise AssertionError(
            f"still in {state.phase}, round {state.round}, after {most_steps} steps"
        )

    def known_caps(self) -> Sequence[int] | None:
        if callable(self.row_caps):
            return self.row_caps(self._largest_pass, self._was_too_small)
        return self.row_caps

    @property
    def shares(self) -> Sequence[TimeModel]:
        """The true times of whole shares of at least one row."""
        if self.memory is None:
            return self.devices
        return [InPasses(*each) for each in zip(self.devices, self.memory, strict=True)]

    def true_step(self, batch_sizes: Sequence[int]) -> float:
        return max(
            float(device.seconds(size))
            for device, size in zip(self.shares, batch_sizes, strict=True)
        )

    def optimum(self, settings: OrchestrationSettings) -> float:
        split = allocate(
            self.shares,
            self.batch,
            lower=settings.lower,
            upper=settings.upper,
            granularity=settings.granularity,
        )
        return self.true_step(split)

    def _first_free_step(self, step: int) -> int:
        ahead = [self.read_ahead] if isinstance(self.read_ahead, int) else self.read_ahead
        end_of_epoch = (step // self.steps_per_epoch + 1) * self.steps_per_epoch
        return min(step + 1 + max(ahead), max(end_of_epoch, step + 1))

    def _records(
        self, state: Orchestration, step: int, random: np.random.Generator
    ) -> list[StepRecord]:
        last = (step + 1) % self.steps_per_epoch == 0
        step_rows = self.short_last if last and self.short_last else self.batch
        plan = state.schedule.plan_at(step)
        rows = plan.rows_of(step_rows)
        passes = [self._run(rank, plan.passes_of(rank, size)) for rank, size in enumerate(rows)]
        seconds = [
            (PARKED if state.settings.parks and sizes == (0,) else 1.0)
            * sum(float(device.seconds(max(size, 1))) for size in sizes)
            * max(0.1, 1 + self.noise * random.standard_normal())
            * self.outliers.get((step, rank), 1.0)
            for rank, (device, sizes) in enumerate(zip(self.devices, passes, strict=True))
        ]
        if step < 2:
            seconds = [3 * time for time in seconds]
        slowest = max(seconds)
        return [
            StepRecord(
                step=step,
                rank=rank,
                rows=size,
                step_rows=step_rows,
                compute=time,
                loader_wait=0.001,
                communication=slowest - time + 0.01,
                optimizer=0.002,
                period=slowest + 0.013,
                passes=len(passes[rank]),
            )
            for rank, (size, time) in enumerate(zip(rows, seconds, strict=True))
        ]

    def _run(self, rank: int, sizes: Sequence[int]) -> Sequence[int]:
        """The passes that the step really took."""
        if self.memory is not None and sizes[0] > self.memory[rank]:
            sizes = pass_sizes(sum(sizes), self.memory[rank])
            self._was_too_small[rank] = True
        self._largest_pass[rank] = max(self._largest_pass[rank], sizes[0])
        return sizes
