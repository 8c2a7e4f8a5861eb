"""Planning loops of other systems, for comparison: shares in proportion to speed, and LB-BSP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

from lightning_boa.errors import UnsupportedError
from lightning_boa.planning.bounds import positive_integer
from lightning_boa.planning.orchestration import Orchestration
from lightning_boa.planning.plan import BatchPlan
from lightning_boa.planning.records import StepRecord, measure_split
from lightning_boa.planning.schedule import Schedule
from lightning_boa.planning.settings import OrchestrationSettings
from lightning_boa.planning.simple_shares import moved_shares, proportional_shares


@dataclass(frozen=True)
class SimpleLoop(Orchestration):
    """`Orchestration` whose plans a ``rule`` makes from measured seconds: nothing is fitted, confirmed or watched."""

    rule: ShareRule = field(kw_only=True)

    def observe(
        self,
        records: Sequence[StepRecord],
        *,
        first_free_step: int,
        row_caps: Sequence[int] | None = None,
        closing: bool = False,
    ) -> SimpleLoop:
        """The state after all ranks' ``records`` since the last exchange; what memory holds is not looked at."""
        self._check(records, row_caps)
        if self.exchange_after is None:
            return self
        if closing and first_free_step <= self.exchange_after:
            return replace(self, records=(*self.records, *records))
        return self.rule.observed(self, self.exchange_after, records, first_free_step)

    @property
    def name(self) -> str:
        return self.rule.name

    @property
    def changes_always(self) -> bool:
        return self.rule.changes_always

    def resumed(self, state_dict: Mapping[str, Any]) -> SimpleLoop:
        """This beginning with the plan of an earlier state, where ranks, batch and bounds fit."""
        old = Orchestration.from_dict(state_dict)
        if not old.holds_for(self.settings):
            return self
        return replace(
            self,
            schedule=Schedule.starting_with(old.plan, self.first_step),
            phase=old.phase,
            exchange_after=self.exchange_after if self.rule.changes_always else None,
            reason=old.reason,
        )


class ShareRule(Protocol):
    """Makes the plans of a `SimpleLoop`.

    ``name`` is what the rule is called; ``changes_always`` tells that plans never cease to change.
    """

    name: ClassVar[str]
    changes_always: ClassVar[bool]

    def begin(self, settings: OrchestrationSettings, first_step: int) -> SimpleLoop:
        """The loop before its first step."""

    def resume(
        self, settings: OrchestrationSettings, state_dict: Mapping[str, Any], first_step: int
    ) -> SimpleLoop:
        """The loop that goes on with a checkpoint's plan, where it fits."""

    def observed(
        self, loop: SimpleLoop, step: int, records: Sequence[StepRecord], first_free_step: int
    ) -> SimpleLoop:
        """The loop after ``step``, with all ranks' ``records`` of it and of those before, since the last exchange."""


@dataclass(frozen=True)
class ProportionalPlanning:
    """Shares in proportion to rows per second, measured once under the equal split.

    The first step of a training settles; the median of the next ``measured_steps`` full steps counts.
    """

    measured_steps: int = 5

    name: ClassVar = "proportional"
    changes_always: ClassVar = False

    def __post_init__(self) -> None:
        positive_integer("measured_steps", self.measured_steps)

    def begin(self, settings: OrchestrationSettings, first_step: int) -> SimpleLoop:
        """The loop before its first step."""
        last = first_step + self.measured_steps
        reason = "the devices are measured under the equal split"
        return _start(
            self, settings, first_step, phase="warmup", exchange_after=last, reason=reason
        )

    def resume(
        self, settings: OrchestrationSettings, state_dict: Mapping[str, Any], first_step: int
    ) -> SimpleLoop:
        """The loop that goes on with a checkpoint's plan, where it fits."""
        return self.begin(settings, first_step).resumed(state_dict)

    def observed(
        self, loop: SimpleLoop, step: int, records: Sequence[StepRecord], first_free_step: int
    ) -> SimpleLoop:
        """The loop with its plan, or with as many steps more to measure as are missing."""
        known = replace(loop, records=(*loop.records, *records))
        equal, settings = loop.plan.batch_sizes, loop.settings
        measured = measure_split([r for r in known.records if r.step > loop.first_step], equal)
        missing = self.measured_steps - (0 if measured is None else measured.steps)
        if measured is None or missing > 0:
            return replace(known, exchange_after=step + missing)
        rows = proportional_shares(
            equal,
            measured.rank_compute,
            lower=settings.lower,
            granularity=settings.granularity,
        )
        return replace(
            known,
            schedule=loop.schedule.then(first_free_step, BatchPlan(rows)),
            phase="planned",
            exchange_after=None,
            reason="shares are in proportion to the rows per second under the equal split",
        )


@dataclass(frozen=True)
class LbBspPlanning:
    """After a step ``rows_moved`` rows go from the slowest rank to the fastest one, again and again.

    They go from the first step on that no sampler has handed out, and it is that step which is looked at next: every
    step, unless a loader reads ahead. A short last step moves nothing.
    """

    rows_moved: int = 1

    name: ClassVar = "LB-BSP"
    changes_always: ClassVar = True

    def __post_init__(self) -> None:
        positive_integer("rows_moved", self.rows_moved)

    def begin(self, settings: OrchestrationSettings, first_step: int) -> SimpleLoop:
        """The loop before its first step, which it looks at."""
        reason = "LB-BSP moves rows from the slowest rank to the fastest one"
        return _start(
            self, settings, first_step, phase="planned", exchange_after=first_step, reason=reason
        )

    def resume(
        self, settings: OrchestrationSettings, state_dict: Mapping[str, Any], first_step: int
    ) -> SimpleLoop:
        """The loop that goes on with a checkpoint's plan, where it fits."""
        return self.begin(settings, first_step).resumed(state_dict)

    def observed(
        self, loop: SimpleLoop, step: int, records: Sequence[StepRecord], first_free_step: int
    ) -> SimpleLoop:
        """The loop with the next step's rows; it keeps no more than the plan of ``step`` and the one that follows."""
        rows, settings = loop.plan.batch_sizes, loop.settings
        measured = measure_split([record for record in records if record.step == step], rows)
        schedule = loop.schedule.since(step)
        if measured is not None:
            moved = moved_shares(
                rows,
                measured.rank_compute,
                self.rows_moved,
                lower=settings.lower,
                granularity=settings.granularity,
            )
            if moved != rows:
                schedule = schedule.then(first_free_step, BatchPlan(moved))
        return replace(loop, schedule=schedule, exchange_after=first_free_step)


def _start(
    rule: ShareRule, settings: OrchestrationSettings, first_step: int, **state: Any
) -> SimpleLoop:
    if settings.has_unknown_rows:
        raise UnsupportedError(
            "Expected steps of a known number of rows, since shares are made of rows, got batches of any size. Give the"
            ' batch sampler a batch_size, or train with strategy="boa".'
        )
    return SimpleLoop(
        settings=settings,
        first_step=first_step,
        schedule=Schedule.starting_with(BatchPlan(settings.equal_batch_sizes), first_step),
        round=0,
        exchanges=0,
        rule=rule,
        **state,
    )
