"""The wall-clock time of a training step, measured from outside the strategy, alike under every strategy."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median

from lightning_boa.cli.framework import Callback, LightningModule, Trainer

METRIC = "step_seconds"


class StepTimes(Callback):
    """Leaves the last epoch's median seconds from one step's end to the next
    (the mean over ranks) in `trainer.callback_metrics`. A step is the updates that use a global batch."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._ends: list[float] = []

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._ends.clear()

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: object,
        batch: object,
        batch_idx: int,
    ) -> None:
        self._ends.append(self._clock())

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        ends = self._ends[:: getattr(trainer.strategy, "updates_per_step", 1)]
        periods = [end - start for start, end in pairwise(ends)]
        if periods:
            pl_module.log(METRIC, median(periods), sync_dist=True)
