"""What the ranks of a training have done when, and what follows from it for a window of steps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytorch_lightning as pl

from lightning_boa.reports.comparison import Span, Timeline


@dataclass(frozen=True)
class RankRecord:
    """One rank's training: times in seconds, of one clock for all ranks.

    Args:
        starts: when each batch of the trainer began; batch k begins after k updates.
        spans: (batch, begin, end) of each computation, from the entry of a training step to the end of its backward.
        settled: the first batch that began without a measurement under way.
        updates: (rank, updates before, rows) of the gradients that entered each update; None where all gradients do.
    """

    starts: tuple[float, ...]
    spans: tuple[tuple[int, float, float], ...]
    settled: int
    updates: tuple[tuple[tuple[int, int, int], ...], ...] | None = None


class StepRecorder(pl.Callback):
    """Records a rank's training; to be placed after the callback that makes the rank slow.

    Args:
        batches: so many from the first settled one on; with the last of them the training ends.
        waits_for_plan: whether batches in which the strategy still measures are not settled.
    """

    def __init__(self, batches: int, *, waits_for_plan: bool) -> None:
        self._batches = batches
        self._waits_for_plan = waits_for_plan
        self._settled: int | None = None
        self._starts: list[float] = []
        self._spans: list[tuple[int, float, float]] = []
        self._begin: float | None = None
        self._end = 0.0
        self._handles: list[Any] = []

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._handles = [
            pl_module.register_forward_pre_hook(self._entered, prepend=True),
            *(parameter.register_hook(self._computed) for parameter in pl_module.parameters()),
        ]

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._starts.append(time.perf_counter())
        self._begin = None
        if self._settled is None and not (self._waits_for_plan and _measures(trainer.strategy)):
            self._settled = len(self._starts) - 1
        if self._settled is not None and len(self._starts) >= self._settled + self._batches:
            trainer.should_stop = True

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        if self._begin is not None:
            self._spans.append((len(self._starts) - 1, self._begin, self._end))

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        for handle in self._handles:
            handle.remove()

    def record(self, strategy: Any) -> RankRecord:
        """What was recorded, with the updates of a strategy that has a server."""
        updates = getattr(strategy, "updates", None)
        return RankRecord(
            tuple(self._starts),
            tuple(self._spans),
            0 if self._settled is None else self._settled,
            None
            if updates is None
            else tuple(
                tuple((each.worker, each.step, each.rows) for each in update.gradients)
                for update in updates
            ),
        )

    def _entered(self, *_: Any) -> None:
        if self._begin is None:
            self._begin = time.perf_counter()

    def _computed(self, _: Any) -> None:
        self._end = time.perf_counter()


def _measures(strategy: Any) -> bool:
    return strategy.orchestration is None or strategy.orchestration.exchange_after is not None


@dataclass(frozen=True)
class MeasuredWindow:
    """Steps `first` to `first + steps` of a training, a step being an update of the global batch.

    Args:
        first: the first step.
        step_seconds: of each step.
        rows_used: in all steps together.
        idle_share: of each rank.
        timeline: what each rank did, beginning with the first step.
    """

    first: int
    step_seconds: tuple[float, ...]
    rows_used: int
    idle_share: tuple[float, ...]
    timeline: Timeline

    @property
    def seconds(self) -> float:
        return sum(self.step_seconds)


def window_of(
    records: Sequence[RankRecord],
    policy: str,
    devices: tuple[str, ...],
    *,
    first: int,
    steps: int,
    global_batch_size: int,
    updates_per_step: int = 1,
) -> MeasuredWindow:
    """`steps` steps from `first` on; the earliest rank tells when an update was made."""
    update_times = [min(starts) for starts in zip(*(each.starts for each in records), strict=True)]
    ends = update_times[first * updates_per_step :: updates_per_step][: steps + 1]
    if len(ends) <= steps:
        raise ValueError(
            f"{policy}: expected {first + steps} steps, the training has {len(update_times) // updates_per_step}"
        )
    begin, end = ends[0], ends[-1]
    updates = records[0].updates
    used = range(first * updates_per_step, (first + steps) * updates_per_step)
    return MeasuredWindow(
        first,
        tuple(later - earlier for earlier, later in pairwise(ends)),
        steps * global_batch_size
        if updates is None
        else sum(rows for update in used for *_, rows in updates[update]),
        tuple(1 - _computing(record, begin, end) / (end - begin) for record in records),
        Timeline(
            policy, devices, _spans_since(begin, records), tuple(each - begin for each in ends)
        ),
    )


def _computing(record: RankRecord, begin: float, end: float) -> float:
    spans = ((max(begin, first), min(end, last)) for _, first, last in record.spans)
    return sum(max(0.0, last - first) for first, last in spans)


def _spans_since(begin: float, records: Sequence[RankRecord]) -> tuple[tuple[Span, ...], ...]:
    updates = records[0].updates
    entered = {(rank, batch) for update in updates or () for rank, batch, _ in update}
    return tuple(
        tuple(
            Span(first - begin, last - begin, updates is None or (rank, batch) in entered)
            for batch, first, last in record.spans
            if last > begin
        )
        for rank, record in enumerate(records)
    )
