"""What a run's record says, drawn from its measured steps and blocks as plain values for pages and pictures."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import pairwise
from statistics import fmean, median
from typing import Any, Literal

from lightning_boa.planning import SplitMeasurement, StepRecord
from lightning_boa.planning.orchestration import FIRST_SETTLING_STEPS, SETTLING_STEPS
from lightning_boa.planning.records import counted, measure_split, step_costs
from lightning_boa.reports.plan_report import GIVEN, UNFINISHED, RankReport
from lightning_boa.reports.run_record import BlockRecord, RunRecord, mean_idle_share

MOST_LANES = 16
MOST_KINDS = 6
EXTREMES = 2
USUAL = 0.98
ROOM_ABOVE = 1.18
ALIKE = 1.2
WORTH_A_HEADLINE = 0.01

Verdict = Literal["saved", "lost", "unsure", "unknown"]


@dataclass(frozen=True)
class StepParts:
    """Seconds of a typical step of one rank, in the order in which they come to pass.

    ``waiting`` is for ranks that compute longer, ``communication`` what all ranks spend on it after the slowest
    backward, ``rest`` whatever belongs to none of the others.
    """

    loader_wait: float
    compute: float
    waiting: float
    communication: float
    optimizer: float
    rest: float

    @classmethod
    def of(cls, step: StepRecord, exposed: float) -> StepParts:
        """Those of one step, in which all ranks communicate for ``exposed`` seconds."""
        return cls.filled(
            step.period, step.loader_wait, step.compute, step.communication, exposed, step.optimizer
        )

    @classmethod
    def of_block(cls, block: BlockRecord, busy: float) -> StepParts:
        """Those of a block's mean step, of the rank that computes for ``busy`` of the slowest one's seconds.

        A block does not tell communication and optimizer apart: they are in the rest.
        """
        waiting = block.compute * (1 - busy)
        return cls.filled(block.period, block.loader_wait, block.compute * busy, waiting, 0.0, 0.0)

    @classmethod
    def filled(
        cls,
        period: float,
        loader_wait: float,
        compute: float,
        communication: float,
        exposed: float,
        optimizer: float,
    ) -> StepParts:
        """The parts of a step of ``period`` seconds; ``communication`` includes waiting for others."""
        known = loader_wait + compute + communication + optimizer
        return cls(
            loader_wait=loader_wait,
            compute=compute,
            waiting=max(0.0, communication - exposed),
            communication=min(communication, exposed),
            optimizer=optimizer,
            rest=max(0.0, period - known),
        )

    @property
    def seconds(self) -> float:
        return sum(self.named().values())

    def named(self) -> dict[str, float]:
        return asdict(self)


@dataclass(frozen=True)
class TypicalStep:
    """The medians of the steps that ran one split; ``ranks`` in the order of their numbers."""

    batch_sizes: tuple[int, ...]
    ranks: tuple[StepParts, ...]

    @property
    def seconds(self) -> float:
        return max(rank.seconds for rank in self.ranks)

    @property
    def loader_share(self) -> float:
        """The part of the step that the rank with the longest wait for a batch waits for it, 0 to 1."""
        return max(rank.loader_wait for rank in self.ranks) / self.seconds

    @property
    def communication_share(self) -> float:
        """The part of the step that no split of the rows makes shorter, 0 to 1."""
        return max(rank.communication for rank in self.ranks) / self.seconds

    @property
    def idle_share(self) -> float:
        """The mean over ranks of the part of the slowest rank's computation in which one has none itself, 0 to 1."""
        return mean_idle_share([rank.compute for rank in self.ranks])


@dataclass(frozen=True)
class Kind:
    """Devices of one name, of about one speed, and with about as many rows.

    ``rows`` and ``idle`` are under the equal split and under the plan. These and ``rows_per_second`` are means of its
    ranks; ``least_and_most_rows_per_second`` and ``least_and_most_rows`` (of the plan) are not.
    """

    name: str
    ranks: tuple[int, ...]
    rows_per_second: float | None
    share_of_rows: float
    rows: tuple[float, float]
    idle: tuple[float | None, float | None]
    least_and_most_rows_per_second: tuple[float, float] | None = None
    least_and_most_rows: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Lane:
    """A rank that is shown; ``label`` and ``note`` tell which one, and for how many it stands."""

    rank: int
    label: str
    note: str


@dataclass(frozen=True)
class Point:
    """A measured step, or the mean step of a block: seconds from one step to the next, and those of the equal split."""

    step: int
    period: float
    idle: float
    equal_period: float | None = None

    @property
    def longest(self) -> float:
        """The longer of both times."""
        return max(self.period, self.equal_period or 0.0)


@dataclass(frozen=True)
class TriedSplit:
    """A split of the warm-up; ``measured`` is None where none of its steps counted."""

    step: int
    batch_sizes: tuple[int, ...]
    measured: SplitMeasurement | None


class RunFigures:
    """The figures of one record."""

    def __init__(self, record: RunRecord) -> None:
        self.record = record

    @cached_property
    def by_step(self) -> dict[int, list[StepRecord]]:
        """The measured steps of the warm-up by their numbers, in order."""
        by_step: defaultdict[int, list[StepRecord]] = defaultdict(list)
        for record in sorted(self.record.steps, key=lambda each: (each.step, each.rank)):
            by_step[record.step].append(record)
        return dict(by_step)

    @cached_property
    def counted(self) -> tuple[StepRecord, ...]:
        """Measured steps of the whole global batch, without those in which a device settles where others are left."""
        full = [
            each
            for step in self.by_step.values()
            for each in step
            if each.step_rows == self.record.global_batch_size
        ]
        return counted(full, first_settling=FIRST_SETTLING_STEPS, settling=SETTLING_STEPS) or tuple(
            full
        )

    @cached_property
    def equal_step(self) -> TypicalStep | None:
        """A typical step of the equal split; None where none was measured."""
        return self._typical([rank.equal_rows for rank in self.record.plan.ranks])

    @cached_property
    def planned_step(self) -> TypicalStep | None:
        """A typical step of the warm-up's plan; None where none was measured."""
        return self._typical([rank.boa_rows for rank in self.record.plan.ranks])

    @cached_property
    def latest_step(self) -> TypicalStep | None:
        """A typical step since the last change of the plan; None where it has not changed, or is not measured since.

        Blocks do not tell communication, optimizer and the rest apart.
        """
        blocks = self._latest_blocks
        if not blocks:
            return None
        typical = replace(
            blocks[-1],
            **{
                name: median(getattr(block, name) for block in blocks)
                for name in ("loader_wait", "compute", "period")
            },
            busy=tuple(map(median, zip(*(block.busy for block in blocks), strict=True))),
        )
        return TypicalStep(
            typical.batch_sizes,
            tuple(StepParts.of_block(typical, share) for share in typical.busy),
        )

    @cached_property
    def latest_equal_seconds(self) -> float | None:
        """What a step of the equal split would have taken since the last change of the plan; None where not known."""
        seconds = [block.equal_period for block in self._latest_blocks]
        return median(seconds) if seconds else None

    @cached_property
    def _latest_blocks(self) -> tuple[BlockRecord, ...]:
        """Those since the last change of the plan; none where it has not changed."""
        changes = self.record.rebalancings
        if not changes:
            return ()
        step, rows = changes[-1].step, changes[-1].batch_sizes
        return tuple(
            block
            for block in self.record.blocks
            if block.step >= step and block.batch_sizes == rows
        )

    @cached_property
    def is_equal(self) -> bool:
        """Whether the plan is the equal split."""
        return all(rank.boa_rows == rank.equal_rows for rank in self.record.plan.ranks)

    @cached_property
    def gain(self) -> float | None:
        """How many times faster a step was than under the equal split: over the whole training, else in the warm-up."""
        saving = self.record.saving
        return self.record.plan.gain if saving is None or saving.gain is None else saving.gain

    @cached_property
    def verdict(self) -> Verdict:
        """Whether the training as a whole was surely faster or slower than with equal shares; "unsure" where noise may
        have done it, "unknown" where nothing was measured after the warm-up, or nothing could be saved."""
        saving = self.record.saving
        if saving is None or not saving.steps or saving.seconds == saving.error == 0:
            return "unknown"
        if not saving.is_sure:
            return "unsure"
        return "saved" if saving.seconds > 0 else "lost"

    @cached_property
    def is_given(self) -> bool:
        """Whether there was no warm-up, since nothing was to be planned."""
        return self.record.plan.reason == GIVEN

    @cached_property
    def is_only_predicted(self) -> bool:
        """Whether the warm-up has made a plan of which no step was measured."""
        plan = self.record.plan
        return (
            plan.boa_step_seconds is None
            and plan.reason not in (GIVEN, UNFINISHED)
            and any(rank.predicted_seconds for rank in plan.ranks)
        )

    @cached_property
    def step_seconds(self) -> tuple[float, float] | None:
        """A step of the equal split and one of this training, of which `gain` is the ratio; None where not measured."""
        saving, plan = self.record.saving, self.record.plan
        if saving is not None and saving.steps:
            whole = saving.trained_seconds + saving.seconds
            return max(0.0, whole) / saving.steps, saving.trained_seconds / saving.steps
        if plan.equal_step_seconds is None or plan.boa_step_seconds is None:
            return None
        return plan.equal_step_seconds, plan.boa_step_seconds

    @cached_property
    def idle(self) -> tuple[float | None, float | None]:
        """The mean over ranks of the share in which one waits for the slowest, under the equal split and the plan."""
        plan = self.record.plan
        return (
            _mean([plan.equal_idle_share(rank) for rank in plan.ranks]),
            _mean([plan.boa_idle_share(rank) for rank in plan.ranks]),
        )

    @cached_property
    def idle_now(self) -> float | None:
        """The mean idle share under the last plan that was measured; None where nothing was."""
        if self.latest_step is not None:
            return self.latest_step.idle_share
        equal, planned = self.idle
        return equal if planned is None else planned

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        """The devices by their names, speeds and rows, fastest first."""
        plan = self.record.plan
        by_name: defaultdict[str, list[RankReport]] = defaultdict(list)
        for rank in plan.ranks:
            by_name[rank.device].append(rank)
        rows = sum(rank.boa_rows for rank in plan.ranks)
        kinds = [
            Kind(
                name=ranks[0].device,
                ranks=tuple(sorted(rank.rank for rank in ranks)),
                rows_per_second=_mean([speed_of(rank) for rank in ranks]),
                share_of_rows=sum(rank.boa_rows for rank in ranks) / rows if rows else 0.0,
                rows=(
                    fmean(rank.equal_rows for rank in ranks),
                    fmean(rank.boa_rows for rank in ranks),
                ),
                idle=(
                    _mean([plan.equal_idle_share(rank) for rank in ranks]),
                    _mean([plan.boa_idle_share(rank) for rank in ranks]),
                ),
                least_and_most_rows_per_second=_least_and_most_speed(ranks),
                least_and_most_rows=(
                    min(rank.boa_rows for rank in ranks),
                    max(rank.boa_rows for rank in ranks),
                ),
            )
            for of_one_name in by_name.values()
            for of_one_speed in _alike(of_one_name, lambda rank: speed_of(rank) or 0.0)
            for ranks in _alike(of_one_speed, lambda rank: float(rank.boa_rows), besides=1.0)
        ]
        return tuple(
            sorted(kinds, key=lambda kind: (-(kind.rows_per_second or 0.0), -kind.rows[1]))
        )

    @cached_property
    def lanes(self) -> tuple[Lane, ...]:
        """The ranks that are shown: all of a few; of many the typical one of each kind, and the slowest and fastest."""
        ranks = self.record.plan.ranks
        if len(ranks) <= MOST_LANES:
            return tuple(Lane(rank.rank, f"{rank.rank}  {rank.device}", "") for rank in ranks)
        by_speed = sorted(ranks, key=lambda rank: speed_of(rank) or 0.0)
        speeds = {rank.rank: place for place, rank in enumerate(by_speed)}
        shown: dict[int, Lane] = {}
        for kind in self.kinds[:MOST_KINDS]:
            typical = sorted(kind.ranks, key=speeds.__getitem__)[len(kind.ranks) // 2]
            note = "" if len(kind.ranks) == 1 else f"typical of {len(kind.ranks)}"
            shown[typical] = Lane(typical, f"{typical}  {kind.name}", note)
        extremes = [(rank, "among the slowest") for rank in by_speed[:EXTREMES]]
        extremes += [(rank, "among the fastest") for rank in by_speed[-EXTREMES:]]
        if self._slowest is not None:
            extremes.append((ranks[self._slowest], "waited for"))
        for rank, note in extremes:
            shown.setdefault(rank.rank, Lane(rank.rank, f"{rank.rank}  {rank.device}", note))
        return tuple(shown.values())

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """The warm-up's steps, then the blocks."""
        warm_up = [
            Point(
                step=number,
                period=max(each.period for each in step),
                idle=mean_idle_share([each.compute if each.rows else 0.0 for each in step]),
            )
            for number, step in self.by_step.items()
        ]
        blocks = [
            Point(block.step, block.period, block.idle_share, block.equal_period)
            for block in self.record.blocks
        ]
        return (*warm_up, *blocks)

    @cached_property
    def usual_most(self) -> float:
        """Seconds that hardly a step exceeds, for axes; 1 where none was measured."""
        watched = sorted(
            max(point.period, point.equal_period)
            for point in self.points
            if point.equal_period is not None
        )
        by_rows: defaultdict[tuple[int, ...], list[float]] = defaultdict(list)
        for step in self.by_step.values():
            by_rows[tuple(each.rows for each in step)].append(max(each.period for each in step))
        longest = [median(periods) for periods in by_rows.values()]
        longest += [watched[int(USUAL * (len(watched) - 1))]] if watched else []
        return max(longest, default=0.0) or 1.0

    @cached_property
    def beyond(self) -> tuple[Point, ...]:
        """The points that are longer than the axis is."""
        return tuple(point for point in self.points if point.longest > self.axis_end)

    @cached_property
    def axis_end(self) -> float:
        """Seconds at the upper end of an axis of step times."""
        return ROOM_ABOVE * self.usual_most

    @cached_property
    def splits(self) -> tuple[TriedSplit, ...]:
        """The splits that the warm-up ran, in order, and the plan that came out of it."""
        later = {change.step for change in self.record.rebalancings}
        first = [(step, sizes) for step, sizes in self.record.plans if step not in later]
        kept = [first[0]] if first else []
        kept += [after for before, after in pairwise(first) if after[1] != before[1]]
        places = [bisect_left(self.counted, step, key=_step_of) for step, _ in kept]
        return tuple(
            TriedSplit(step, sizes, measure_split(self.counted[begin:end], sizes))
            for (step, sizes), (begin, end) in zip(
                kept, pairwise([*places, len(self.counted)]), strict=True
            )
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values: the record without its single steps and blocks, and the figures drawn from them."""
        record = replace(self.record, steps=(), blocks=())
        return {
            **{name: value for name, value in asdict(record).items() if name not in _ONE_BY_ONE},
            "gain": self.gain,
            "verdict": self.verdict,
            "warmup_gain": record.plan.gain,
            "linear_ceiling": record.plan.linear_ceiling,
            "idle_share": dict(zip(("equal", "plan"), self.idle, strict=True)),
            "typical_step": {
                "equal": _parts(self.equal_step),
                "plan": _parts(self.planned_step),
                "since_last_rebalancing": _parts(self.latest_step),
            },
            "kinds": [asdict(kind) for kind in self.kinds],
            "rebalancings": [
                {**change.to_dict(), "gain": change.gain, "reason": change.reason}
                for change in record.rebalancings
            ],
            "measured_steps": len(self.by_step),
            "measured_blocks": len(self.record.blocks),
        }

    @cached_property
    def _slowest(self) -> int | None:
        """The rank that all others wait for under the equal split."""
        seconds = {
            rank.rank: rank.equal_seconds for rank in self.record.plan.ranks if rank.equal_seconds
        }
        return max(seconds, key=lambda rank: seconds[rank]) if seconds else None

    def _typical(self, batch_sizes: Sequence[int]) -> TypicalStep | None:
        measured = measure_split(self.counted, batch_sizes)
        if measured is None:
            return None
        exposed = median(cost.exposed for cost in step_costs(self.counted, batch_sizes))
        of_ranks = zip(
            measured.rank_period,
            measured.rank_loader_wait,
            measured.rank_compute,
            measured.rank_communication,
            measured.rank_optimizer,
            strict=True,
        )
        return TypicalStep(
            tuple(batch_sizes),
            tuple(
                StepParts.filled(period, loader, compute, communication, exposed, optimizer)
                for period, loader, compute, communication, optimizer in of_ranks
            ),
        )


def speed_of(rank: RankReport) -> float | None:
    """Rows per second under the plan, else under the equal split; None where neither is known."""
    if rank.samples_per_second is not None:
        return rank.samples_per_second
    return rank.equal_rows / rank.equal_seconds if rank.equal_seconds and rank.equal_rows else None


def _step_of(record: StepRecord) -> int:
    return record.step


_ONE_BY_ONE = ("steps", "blocks")


def _alike(
    ranks: Sequence[RankReport], value: Callable[[RankReport], float], besides: float = 0.0
) -> tuple[tuple[RankReport, ...], ...]:
    """The ranks in groups between which ``value`` makes a leap: by its `ALIKE`-fold, and by ``besides``."""
    ordered = sorted(ranks, key=value)
    groups = [[ordered[0]]]
    for before, rank in pairwise(ordered):
        if value(rank) > max(ALIKE * value(before), value(before) + besides):
            groups.append([])
        groups[-1].append(rank)
    return tuple(map(tuple, groups))


def _least_and_most_speed(ranks: Sequence[RankReport]) -> tuple[float, float] | None:
    speeds = [speed for rank in ranks if (speed := speed_of(rank)) is not None]
    return (min(speeds), max(speeds)) if speeds else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _parts(step: TypicalStep | None) -> dict[str, Any] | None:
    if step is None:
        return None
    return {
        "seconds": step.seconds,
        "batch_sizes": list(step.batch_sizes),
        "ranks": [rank.named() for rank in step.ranks],
    }
