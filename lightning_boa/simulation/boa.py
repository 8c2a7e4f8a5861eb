"""BOA in a simulated training: the planning loop and the watch, fed with records as in a real one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_boa.errors import OptionError
from lightning_boa.planning import (
    BLOCK_STEPS,
    Block,
    Orchestration,
    OrchestrationSettings,
    StepRecord,
    block_of,
    row_bounds,
)
from lightning_boa.planning.bounds import is_count
from lightning_boa.simulation.outcome import Simulated
from lightning_boa.simulation.synchronous import Shares, train_synchronously
from lightning_boa.simulation.trial import Trial

PARKED_SECONDS = 1e-9


@dataclass(frozen=True)
class Boa:
    """The planning loop of `lightning_boa.planning`, in which nothing is simulated but the devices.

    Its warm-up begins with the equal split. All steps are those of one epoch.

    Args:
        read_ahead: steps that each worker's loader has handed out beforehand, so that a new plan begins later.
        options: further fields of `OrchestrationSettings` (``warmup``, ``rebalance``, ``granularity``, ``parks``, …).
    """

    read_ahead: int = 2
    options: Mapping[str, Any] = field(default_factory=dict)
    name: str = "BOA"

    def __post_init__(self) -> None:
        if not is_count(self.read_ahead):
            raise OptionError(
                f"read_ahead: expected a whole number of at least 0, got {self.read_ahead!r}"
            )

    def begin(self, workers: Sequence[int], rows: int, first_step: int) -> Shares:
        least = 0 if self.options.get("parks") else 1
        lower, upper = row_bounds(len(workers), rows, min_batch_size=least)
        settings = OrchestrationSettings(
            **{
                "world_size": len(workers),
                "global_batch_size": rows,
                "lower": lower,
                "upper": upper,
                **self.options,
            }
        )
        return PlannedShares(settings, first_step, self.read_ahead)

    def simulate(self, trial: Trial) -> Simulated:
        return train_synchronously(self, trial)


class PlannedShares:
    """Hands the loop its records when it asks for them, and blocks of the watch as `StepWatch` exchanges them."""

    def __init__(self, settings: OrchestrationSettings, first_step: int, read_ahead: int) -> None:
        self.orchestration = Orchestration.begin(settings, first_step)
        self._read_ahead = read_ahead
        self._records: list[StepRecord] = []
        self._blocks: _Blocks | None = None

    def rows(self, step: int) -> Sequence[int]:
        return self.orchestration.schedule.plan_at(step).batch_sizes

    def after(
        self, step: int, rows: Sequence[int], computing: NDArray[np.float64], period: float
    ) -> None:
        state = self.orchestration
        if self._blocks is not None:
            self.orchestration, is_to_change = self._blocks.end_step(
                step, rows, computing, period, state
            )
            if is_to_change and state.settings.rebalance == "auto":
                self.orchestration = self.orchestration.rebalanced(self._first_free(step))
        elif state.exchange_after is not None:
            self._records += _records_of(step, rows, computing, period)
            if step == state.exchange_after:
                self._exchange(step)

    def _exchange(self, step: int) -> None:
        self.orchestration = self.orchestration.observe(
            self._records, first_free_step=self._first_free(step)
        )
        self._records = []
        if self.orchestration.watch is not None:
            self._blocks = _Blocks(step + 1)

    def _first_free(self, step: int) -> int:
        return step + 1 + self._read_ahead


def _records_of(
    step: int, rows: Sequence[int], computing: NDArray[np.float64], period: float
) -> list[StepRecord]:
    step_rows = sum(rows)
    return [
        StepRecord(
            step=step,
            rank=rank,
            rows=size,
            step_rows=step_rows,
            compute=max(seconds, PARKED_SECONDS),
            loader_wait=0.0,
            communication=period - seconds,
            optimizer=0.0,
            period=period,
        )
        for rank, (size, seconds) in enumerate(zip(rows, computing.tolist(), strict=True))
    ]


class _Blocks:
    """A block is measured, sent a step later and received a step after that, with the wish of the last."""

    def __init__(self, first_step: int) -> None:
        self._begin = first_step
        self._steps: list[tuple[Sequence[int], NDArray[np.float64], float]] = []
        self._measured_from: int | None = None
        self._under_way: tuple[Block | None, bool] | None = None
        self._wants_change = False

    def end_step(
        self,
        step: int,
        rows: Sequence[int],
        computing: NDArray[np.float64],
        period: float,
        state: Orchestration,
    ) -> tuple[Orchestration, bool]:
        """The state with what has arrived, and whether the plan is to be changed now."""
        sent_from = self._measured_from
        if sent_from is not None:
            self._under_way = self._block(sent_from, state), self._wants_change
            self._measured_from = None
        if step >= self._begin:
            self._steps.append((rows, computing, period))
        if step == self._begin + BLOCK_STEPS - 1:
            self._measured_from = self._begin
            self._begin += state.block_interval
        elif sent_from is None and self._under_way is not None:
            block, is_wished = self._under_way
            self._under_way = None
            return self._received(block, is_wished, state)
        return state, False

    def _block(self, first_step: int, state: Orchestration) -> Block | None:
        assert state.watch is not None
        steps, self._steps = self._steps, []
        seconds = np.maximum([computing for _, computing, _ in steps], PARKED_SECONDS)
        ratios = state.watch.ratios_of_all([rows for rows, _, _ in steps], seconds)
        period = median(period for _, _, period in steps)
        return block_of(ratios, period=period, loader_wait=0.0, first_step=first_step)

    def _received(
        self, block: Block | None, is_wished: bool, state: Orchestration
    ) -> tuple[Orchestration, bool]:
        after = state if block is None else state.with_block(block)
        if is_wished:
            self._wants_change = False
        elif block is not None:
            self._wants_change = after.wants_change
        return after, is_wished
