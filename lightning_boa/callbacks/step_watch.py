"""Measures blocks of steps after the warm-up and lets all ranks know them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import numpy as np

from lightning_boa.planning import BLOCK_STEPS, Orchestration, StepRecord
from lightning_boa.profiling import BlockExchange, BlockFigures, StepClock

SLOW_LOADER = 0.2
BLOCKS_OF_A_SLOW_LOADER = 4


class StepWatch:
    """A block is measured, sent a step later and received a step after that; every rank does so at the same steps.

    Args:
        first_step: the first step that is measured.
        rank: this rank.
        exchange: gives all ranks each other's figures.
    """

    def __init__(self, first_step: int, rank: int, exchange: BlockExchange) -> None:
        self._begin = first_step
        self._measured: range | None = None
        self._sent_from = first_step
        self._rank = rank
        self._exchange = exchange
        self._wants_change = False
        self._slow_blocks = 0
        self.slow_loader: tuple[int, float] | None = None

    def measures(self, step: int) -> bool:
        """Whether ``step`` belongs to a block."""
        return 0 <= step - self._begin < BLOCK_STEPS

    def end_step(
        self, step: int, clock: StepClock, orchestration: Orchestration
    ) -> tuple[Orchestration, bool]:
        """A step is over: the state with what has arrived, and whether the plan is to be changed now."""
        if step == self._begin + BLOCK_STEPS - 1:
            self._measured = range(self._begin, step + 1)
            self._begin += orchestration.block_interval
        elif self._measured is not None:
            self._send(self._measured, clock.records(before=step), orchestration)
            self._sent_from, self._measured = self._measured.start, None
        elif self._exchange.is_under_way:
            return self._received(self._exchange.receive(), orchestration)
        return orchestration, False

    def finish(self) -> None:
        """The training is over."""
        if self._exchange.is_under_way:
            self._exchange.receive()

    def _send(
        self, steps: range, records: Sequence[StepRecord], orchestration: Orchestration
    ) -> None:
        assert orchestration.watch is not None
        ratios = np.full(BLOCK_STEPS, np.nan)
        mine = [record for record in records if record.step in steps]
        if mine:
            ratios[[record.step - steps.start for record in mine]] = orchestration.watch.ratios(
                self._rank,
                [r.rows for r in mine],
                [r.compute for r in mine],
                [r.passes for r in mine],
            )
        self._exchange.send(
            wants_change=self._wants_change,
            ratios=ratios.tolist(),
            period=median(r.period for r in mine) if mine else np.nan,
            loader_wait=median(r.loader_wait for r in mine) if mine else np.nan,
        )

    def _received(
        self, figures: BlockFigures, orchestration: Orchestration
    ) -> tuple[Orchestration, bool]:
        block = figures.block_from(self._sent_from)
        if block is not None:
            orchestration = orchestration.with_block(block)
            self._look_at_loaders(figures)
        if figures.wants_change:
            self._wants_change = False
        elif block is not None and self._rank == 0:
            self._wants_change = orchestration.wants_change
        return orchestration, figures.wants_change

    def _look_at_loaders(self, figures: BlockFigures) -> None:
        shares = figures.loader_waits / figures.periods
        self._slow_blocks = self._slow_blocks + 1 if shares.max() > SLOW_LOADER else 0
        if self._slow_blocks == BLOCKS_OF_A_SLOW_LOADER:
            self.slow_loader = int(shares.argmax()), float(shares.max())
