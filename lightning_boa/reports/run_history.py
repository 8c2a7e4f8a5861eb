"""A training's record as it grows: blocks, plans and what they have saved."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import hypot, sqrt
from typing import Generic, TypeVar

from lightning_boa.planning import (
    Block,
    EqualStep,
    NetworkFindings,
    Orchestration,
    Rebalancing,
    Schedule,
    StepRecord,
    hindrance,
)
from lightning_boa.planning.equal_step import computing
from lightning_boa.reports.plan_report import PlanReport, describe_plan
from lightning_boa.reports.run_record import BlockRecord, RunRecord, Saving, loader_share

MOST_BLOCKS = 2_000
MOST_PLANS = 2_000
MOST_STEP_RECORDS = 20_000
LEAST_SPREAD_OF_A_BLOCK = 0.01

T = TypeVar("T")


def block_record(block: Block, orchestration: Orchestration, equal: EqualStep) -> BlockRecord:
    """What is kept of the newest block of a watched training."""
    watch = orchestration.watch
    assert watch is not None
    rows = orchestration.schedule.plan_at(block.first_step).batch_sizes
    seconds = computing(block, rows, watch)
    slowest = float(seconds.max())
    return BlockRecord(
        step=block.first_step,
        batch_sizes=rows,
        period=block.period,
        loader_wait=block.loader_wait,
        compute=slowest,
        busy=tuple((seconds / slowest).tolist()),
        equal_period=equal.seconds(block, rows, watch),
    )


def saving(
    blocks: Sequence[BlockRecord],
    equal_batch_sizes: Sequence[int],
    last_step: int,
    error_of_equal_step: float,
) -> Saving | None:
    """What a training has saved since its warm-up, None without a block.

    A block stands for the steps from its first one to the first one of the next block; short last steps and pauses
    (validation, checkpoints) are not told apart. Under the equal split itself nothing is saved, exactly.

    The error has two parts. What a step of the equal split takes is known from a few steps of the warm-up: an error
    that all steps have in common. Blocks scatter, each for itself, by as much as successive ones differ.

    Args:
        blocks: in the order of their steps.
        last_step: the last training step that has ended.
        error_of_equal_step: standard error of the seconds of a step of the equal split.
    """
    if not blocks:
        return None
    ends = [*(block.step for block in blocks[1:]), max(last_step, blocks[-1].step) + 1]
    lengths = [end - block.step for block, end in zip(blocks, ends, strict=True)]
    uneven = [
        (length, block.equal_period - block.period)
        for block, length in zip(blocks, lengths, strict=True)
        if block.batch_sizes != tuple(equal_batch_sizes)
    ]
    changes = sorted((later - earlier) ** 2 for (_, earlier), (_, later) in pairwise(uneven))
    kept = changes[: len(changes) - len(changes) // 20]
    scatter = sqrt(sum(kept) / len(kept) / 2) if kept else 0.0
    scatter = max(scatter, LEAST_SPREAD_OF_A_BLOCK * blocks[0].period)
    return Saving(
        seconds=sum(length * saved for length, saved in uneven),
        error=hypot(
            error_of_equal_step * sum(length for length, _ in uneven),
            scatter * sqrt(sum(length**2 for length, _ in uneven)),
        ),
        trained_seconds=sum(
            length * block.period for block, length in zip(blocks, lengths, strict=True)
        ),
        steps=sum(lengths),
    )


@dataclass(frozen=True)
class Training:
    """What a record says of a training as it is now.

    Args:
        strategy: the name of its class.
        devices: one name per rank.
        schedule: its plans; of a watched training those since it began or was resumed.
        orchestration: None under a plan that nothing changes.
        fixed_reason: why nothing changes it, in a few words.
        network: what communication costs, None where that is not known.
        software: the version of each package that matters.
    """

    strategy: str
    devices: tuple[str, ...]
    schedule: Schedule
    orchestration: Orchestration | None = None
    fixed_reason: str = ""
    network: NetworkFindings | None = None
    software: Mapping[str, str] = field(default_factory=dict)

    @property
    def plan(self) -> PlanReport:
        """The plan of the warm-up beside the equal split."""
        state = self.orchestration
        plan = self.schedule.latest if state is None else state.first_plan
        return describe_plan(plan, state, self.devices, self.network)


class RunHistory:
    """What has been seen of a training so far, no more than a page can show.

    Args:
        started: local time as ISO 8601, by which the training knows its own record again.
        before: the record with which the training goes on.
        first_step: the step with which it does; what the record says of later ones was lost with them.
    """

    def __init__(self, started: str, before: RunRecord | None = None, first_step: int = 0) -> None:
        self.started = started
        self.equal: EqualStep | None = None
        self._blocks = EvenlyKept[BlockRecord](MOST_BLOCKS)
        self._plans: dict[int, tuple[int, ...]] = {}
        self._rebalancings: dict[int, Rebalancing] = {}
        self._steps: dict[tuple[int, int], StepRecord] = {}
        if before is not None:
            for block in before.blocks:
                if block.step < first_step:
                    self._blocks.add(block)
            self._plans = {step: rows for step, rows in before.plans if step < first_step}
            self._rebalancings = {c.step: c for c in before.rebalancings if c.step < first_step}
            self._steps = {(r.step, r.rank): r for r in before.steps if r.step < first_step}

    def add(self, block: BlockRecord) -> None:
        """Another block was measured."""
        self._blocks.add(block)

    def note_plans(self, schedule: Schedule) -> None:
        """Plans that are not to be forgotten when the schedule forgets them."""
        for step, plan in schedule.entries:
            self._plans[step] = plan.batch_sizes
        while len(self._plans) > MOST_PLANS:
            for step in sorted(self._plans)[2:-1:3]:
                del self._plans[step]

    def record(self, training: Training, outcome: str, last_step: int) -> RunRecord:
        """The record as it is now; for ``outcome`` see `RunRecord`."""
        self.note_plans(training.schedule)
        state, plan = training.orchestration, training.plan
        if state is not None:
            self._rebalancings |= {change.step: change for change in state.rebalancings}
            self._steps |= {(record.step, record.rank): record for record in state.records}
        equal_rows = tuple(rank.equal_rows for rank in plan.ranks)
        saved = saving(
            self._blocks.kept,
            equal_rows,
            last_step,
            0.0 if self.equal is None else self.equal.error,
        )
        gain = plan.gain if saved is None else saved.gain
        return RunRecord(
            strategy=training.strategy,
            devices=training.devices,
            global_batch_size=sum(equal_rows),
            outcome=outcome,
            last_step=last_step,
            plan=plan,
            hindrance=hindrance(
                state,
                fixed_reason=training.fixed_reason,
                gain=gain,
                gain_error=0.0 if saved is None else saved.error / saved.trained_seconds,
                loader_share=self._loader_share(state),
                network=training.network,
            ),
            plans=tuple(
                (step, rows)
                for (_, before), (step, rows) in pairwise([(0, ()), *sorted(self._plans.items())])
                if rows != before
            ),
            rebalancings=tuple(each for _, each in sorted(self._rebalancings.items())),
            steps=kept_steps(
                [record for _, record in sorted(self._steps.items())],
                (equal_rows, tuple(rank.boa_rows for rank in plan.ranks)),
            ),
            blocks=tuple(self._blocks.kept),
            saving=saved,
            software=training.software,
            started=self.started,
        )

    def _loader_share(self, state: Orchestration | None) -> float:
        blocks = self._blocks.kept
        if blocks:
            return loader_share(blocks)
        measured = None if state is None else state.planned_measurement or state.equal_measurement
        return 0.0 if measured is None else max(measured.rank_loader_wait) / measured.step_period


class EvenlyKept(Generic[T]):
    """Of more than ``most`` items every second one is left out, and of later ones too, so that they lie evenly."""

    def __init__(self, most: int) -> None:
        self.kept: list[T] = []
        self._most = most
        self._stride = 1
        self._left_out = 0

    def add(self, item: T) -> None:
        self._left_out += 1
        if self._left_out < self._stride:
            return
        self._left_out = 0
        self.kept.append(item)
        if len(self.kept) > self._most:
            del self.kept[1::2]
            self._stride *= 2


def kept_steps(
    records: Sequence[StepRecord], splits: Sequence[Sequence[int]], most: int = MOST_STEP_RECORDS
) -> tuple[StepRecord, ...]:
    """At most so many of the records, evenly over whole steps, those that ran one of the splits first."""
    if len(records) <= most:
        return tuple(records)
    by_step: defaultdict[int, dict[int, StepRecord]] = defaultdict(dict)
    for record in records:
        by_step[record.step][record.rank] = record
    wanted = [dict(enumerate(split)) for split in splits]
    preferred = [
        step
        for step, ranks in by_step.items()
        if {rank: record.rows for rank, record in ranks.items()} in wanted
    ]
    rest = sorted(set(by_step) - set(preferred))
    room = max(1, most // max(map(len, by_step.values())))
    chosen = _evenly(preferred, room)
    chosen += _evenly(rest, room - len(chosen))
    return tuple(record for step in sorted(chosen) for record in by_step[step].values())


def _evenly(items: Sequence[int], most: int) -> list[int]:
    if len(items) <= most:
        return list(items)
    return [items[number * len(items) // most] for number in range(most)]
