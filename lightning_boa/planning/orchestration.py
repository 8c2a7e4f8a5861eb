"""The loop from warm-up to plan: records of measured steps in, a schedule of plans out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil
from statistics import median
from typing import Any, Literal

from lightning_boa.errors import MeasurementError
from lightning_boa.planning.equal_devices import common_fits, second_split
from lightning_boa.planning.fitting import MEDIAN_TO_MEAN_ERROR, TimeFit
from lightning_boa.planning.plan import BatchPlan, predicted_plan
from lightning_boa.planning.rebalancing import Rebalancing
from lightning_boa.planning.records import (
    SplitMeasurement,
    StepRecord,
    counted,
    measure_split,
    step_costs,
)
from lightning_boa.planning.rounds import (
    LEAST_GAIN,
    Decision,
    Evidence,
    after_first_round,
    after_later_round,
    best_known,
    equal_within,
    hopeful,
    refined,
    usable_upper,
)
from lightning_boa.planning.schedule import Schedule
from lightning_boa.planning.settings import OrchestrationSettings
from lightning_boa.planning.time_models import TimeModel, scaled
from lightning_boa.planning.varying import as_usual_steps, usual_rows
from lightning_boa.planning.watching import BLOCK_STEPS, Block, Bounds, Watch
from lightning_boa.planning.words import passes_in_words

SECOND_SIZE = "; a few steps measure a second size, in case a device becomes slower"
FIRST_SETTLING_STEPS = 2
SETTLING_STEPS = 1
COUNTED_STEPS = 4
CONFIRMING_STEPS = 8
MOST_ROUNDS = 5
MOST_EXCHANGES = 10
WANTED_RESOLUTION = 0.05
MOST_PROLONGATIONS = 3
WANTED_ERROR = 0.03
MOST_COUNTED_STEPS = 32
SECONDS_BETWEEN_BLOCKS = 0.5
STEP_SECONDS_OF_RARER_BLOCKS = 0.05
MOST_STEPS_BETWEEN_BLOCKS = 500
BLOCKS_OF_AN_OUTCOME = 4


@dataclass(frozen=True)
class Orchestration:
    """The state of the loop; `observe` returns the next one.

    ``schedule`` tells every rank's rows at any step. ``exchange_after`` is the step after which all
    ranks exchange their records, None when nothing more is needed. ``reason`` says in one sentence
    why the latest plan holds. ``records`` are all records of full steps, ``row_caps`` the most rows
    that each rank's memory is known to hold at once. ``refined`` tells that the steps which confirmed the
    first plan led to a better one, ``prolongations`` how often a round went on because its noise
    hid what it was to show. ``watch`` looks after the plan once it has been confirmed,
    ``rebalancings`` are the changes of the plan that this has led to. ``known_fits`` are those of an
    earlier training by which the plan was made; empty where it is made from ``records``.
    """

    settings: OrchestrationSettings
    first_step: int
    schedule: Schedule
    phase: Literal["warmup", "planned"]
    round: int
    exchanges: int
    exchange_after: int | None
    reason: str
    records: tuple[StepRecord, ...] = field(default=(), repr=False)
    row_caps: tuple[int, ...] | None = None
    refined: bool = False
    prolongations: int = 0
    watch: Watch | None = None
    rebalancings: tuple[Rebalancing, ...] = ()
    known_fits: tuple[TimeFit | None, ...] = ()

    @classmethod
    def begin(cls, settings: OrchestrationSettings, first_step: int) -> Orchestration:
        """The start of a warm-up whose first step is ``first_step``, with the equal split."""
        start = cls(
            settings=settings,
            first_step=first_step,
            schedule=Schedule.starting_with(BatchPlan(settings.equal_batch_sizes), first_step),
            phase="warmup",
            round=0,
            exchanges=0,
            exchange_after=None,
            reason="the warm-up begins with the equal split",
        )
        return replace(start, exchange_after=start._end_of_round(first_step, 0))

    @property
    def plan(self) -> BatchPlan:
        """The latest plan."""
        return self.schedule.latest

    @property
    def first_plan(self) -> BatchPlan:
        """The plan that the warm-up led to, before any change that the watch has made."""
        if not self.rebalancings:
            return self.plan
        sizes = self.rebalancings[0].batch_sizes_before
        plans = (plan for _, plan in self.schedule.entries if plan.batch_sizes == sizes)
        return next(plans, BatchPlan(sizes))

    @property
    def is_settled(self) -> bool:
        """Whether nothing is measured and the plan will not change."""
        return self.phase == "planned" and self.exchange_after is None and self.watch is None

    @property
    def name(self) -> str:
        """What makes the plans."""
        return "BOA"

    @property
    def changes_always(self) -> bool:
        """Whether plans change after every step: each rank then makes them from the same figures, and tells nobody."""
        return False

    @cached_property
    def counted_records(self) -> tuple[StepRecord, ...]:
        """The records without settling steps, of full steps only, or told as if all steps were usual ones."""
        first, later = _settling(self.settings)
        return counted(self._usual_records, first_settling=first, settling=later)

    @property
    def _usual_records(self) -> tuple[StepRecord, ...]:
        rows = self.settings.global_batch_size
        full = tuple(record for record in self.records if record.step_rows == rows)
        if not self.settings.varying or 2 * len(full) >= len(self.records):
            return full
        return as_usual_steps(self.records, self.schedule.plan_at, rows)

    @property
    def fits(self) -> tuple[TimeFit | None, ...]:
        """Each rank's fit of a pass: a line through the origin after one size, None before any."""
        return self._evidence.fits

    @property
    def equal_measurement(self) -> SplitMeasurement | None:
        """What was measured under the equal split of the first round."""
        return measure_split(self.counted_records, self.settings.equal_batch_sizes)

    @property
    def planned_measurement(self) -> SplitMeasurement | None:
        """What was measured under the warm-up's plan; None until a step of it has counted."""
        if self.phase != "planned":
            return None
        return measure_split(self.counted_records, self.first_plan.batch_sizes)

    @property
    def equal_step_seconds(self) -> float | None:
        """Measured seconds of a step under the equal split: the greatest median period."""
        measured = self.equal_measurement
        return None if measured is None else measured.step_period

    @property
    def planned_step_seconds(self) -> float | None:
        """Measured seconds of a step under the warm-up's plan: the greatest median period."""
        measured = self.planned_measurement
        return None if measured is None else measured.step_period

    def observe(
        self,
        records: Sequence[StepRecord],
        *,
        first_free_step: int,
        row_caps: Sequence[int] | None = None,
        closing: bool = False,
    ) -> Orchestration:
        """The state after all ranks' ``records`` since the last exchange.

        To be called when the step ``exchange_after`` has ended, and with ``closing`` at the end of
        an epoch in the warm-up. Records may come late; missing ones prolong a round.

        Args:
            first_free_step: the first step that no rank's sampler has handed out; new plans begin
                there, and so do more or fewer passes of the same shares.
            row_caps: the most rows each rank's memory is predicted to hold at once, None where
                nothing is known yet.
            closing: an epoch has ended: finish with what is known. Without two sizes of any rank
                the warm-up goes on in the next epoch. A warm-up of a given number of steps is not
                cut short.
        """
        self._check(records, row_caps)
        full = tuple(
            r
            for r in records
            if r.step >= self.first_step
            and (self.settings.varying or r.step_rows == self.settings.global_batch_size)
        )
        grown = replace(
            self,
            records=self.records + full,
            row_caps=self.row_caps if row_caps is None else tuple(int(cap) for cap in row_caps),
        )
        after = grown._after_exchange(first_free_step, closing=closing)
        return after._in_passes(first_free_step, since=self)

    def _after_exchange(self, first_free_step: int, *, closing: bool) -> Orchestration:
        if self.exchange_after is None:
            return self
        due = not closing or first_free_step > self.exchange_after
        if self.phase == "planned":
            return self._after_confirmation(first_free_step) if due else self
        closing = closing and self.settings.warmup == "auto"
        if not due and not closing:
            return self
        return self._after_round(first_free_step, closing=closing)

    def _in_passes(self, first_free_step: int, *, since: Orchestration) -> Orchestration:
        """The state whose plans run in the passes that memory asks for; the one place that writes them into plans."""
        if not self.settings.in_passes or self.row_caps is None:
            return self
        caps = [max(1, cap) for cap in self.row_caps]
        most = max((record.step_rows for record in self.records), default=0)
        schedule = self.schedule.changed_from(
            first_free_step, lambda plan: plan.in_passes(caps, most)
        )
        watch = self.watch and replace(self.watch, bounds=self._watched_bounds)
        told = replace(self, schedule=schedule, watch=watch)
        words = passes_in_words(told.plan)
        if self.phase == "warmup" or not words:
            return told
        if self.reason != since.reason:
            return replace(told, reason=f"{self.reason}; {words}")
        is_same_split = told.plan.batch_sizes == since.plan.batch_sizes
        if is_same_split and told.plan.rows_per_pass != since.plan.rows_per_pass:
            return replace(told, reason=f"{words}, since memory holds fewer at once")
        return told

    @property
    def block_interval(self) -> int:
        """Steps from the beginning of one measured block to that of the next.

        Shorter steps are measured more rarely, so that what a block costs stays a small part of the time.
        """
        if self.watch is not None and self.watch.blocks:
            seconds = self.watch.blocks[-1].period
        else:
            seconds = self.planned_step_seconds or self.equal_step_seconds or SECONDS_BETWEEN_BLOCKS
        between = SECONDS_BETWEEN_BLOCKS * max(1.0, STEP_SECONDS_OF_RARER_BLOCKS / seconds)
        return max(BLOCK_STEPS, min(MOST_STEPS_BETWEEN_BLOCKS, ceil(between / seconds)))

    def with_block(self, block: Block) -> Orchestration:
        """The state after another block of watched steps; every rank that gets the same has the same state."""
        assert self.watch is not None
        watch = self.watch.with_block(block)
        return replace(self, watch=watch, rebalancings=_with_outcome(self.rebalancings, watch))

    def heard(self, computed: Sequence[tuple[int, float] | None]) -> Orchestration:
        """The state after a step in which ranks without rows ran the model too; all ranks have to be told the same.

        Args:
            computed: rows that each rank computed at once, and its seconds; None where it was not measured.
        """
        if self.watch is None:
            return self
        ratios = [
            None if each is None else each[1] / float(model.seconds(each[0]))
            for model, each in zip(self.watch.models, computed, strict=True)
        ]
        return replace(self, watch=self.watch.heard(ratios, self.plan.batch_sizes))

    @property
    def wants_change(self) -> bool:
        """Whether the watched steps speak for another plan: a quick look, to be taken after each block."""
        if self.watch is None:
            return False
        return self.watch.search(self.plan.batch_sizes, every_window=False) is not None

    def rebalanced(
        self, first_free_step: int, row_caps: Sequence[int] | None = None
    ) -> Orchestration:
        """The state with the plan that the watched steps speak for, or the same one if none does any more."""
        current = self if row_caps is None else replace(self, row_caps=tuple(row_caps))
        if self.watch is None:
            return current._in_passes(first_free_step, since=self)
        watch = replace(self.watch, bounds=current._watched_bounds)
        finding = watch.search(self.plan.batch_sizes)
        if finding is None or first_free_step <= self.schedule.entries[-1][0]:
            return current._in_passes(first_free_step, since=self)
        models = [
            scaled(model, scale)
            for model, scale in zip(watch.share_models, finding.scales, strict=True)
        ]
        decision = Rebalancing(
            step=first_free_step,
            batch_sizes_before=self.plan.batch_sizes,
            batch_sizes=finding.batch_sizes,
            scales=finding.scales,
            expected_gain=finding.gain,
            seconds_before=median(block.period for block in watch.blocks[-finding.blocks :]),
        )
        return replace(
            current,
            schedule=self._schedule_with(
                predicted_plan(models, finding.batch_sizes), first_free_step
            ),
            watch=watch.after(finding),
            rebalancings=(*self.rebalancings, decision),
        )._in_passes(first_free_step, since=self)

    def _watched(self) -> Orchestration:
        """Nothing more is to be measured for the plan; from here on the devices are watched."""
        done = replace(self, exchange_after=None)
        if self.settings.rebalance == "off" or self.settings.world_size == 1:
            return replace(done, watch=None)
        if self.watch is not None:
            return replace(done, watch=replace(self.watch, bounds=self._watched_bounds))
        evidence = self._watched_evidence
        watch = Watch(
            models=_watched_models(evidence),
            bounds=self._watched_bounds,
            is_refined=evidence.known_fits != self.known_fits,
            doubt=evidence.error,
            spans=evidence.spans,
        )
        return replace(done, watch=watch)

    @property
    def _watched_bounds(self) -> Bounds:
        evidence = self._evidence
        return Bounds(
            lower=evidence.least,
            upper=evidence.growth_limits,
            granularity=evidence.granularity,
            row_caps=evidence.row_caps,
            seats=evidence.seats if evidence.parks else None,
        )

    @property
    def _watched_evidence(self) -> Evidence:
        """What is known, with the fits that equal devices have in common."""
        evidence = self._evidence
        is_equal = self.first_plan.batch_sizes == evidence.equal
        fits = common_fits(evidence) if is_equal else None
        return evidence if fits is None else replace(evidence, known_fits=fits)

    def keep_split(self, reason: str) -> Orchestration:
        """Stop measuring and stay with the present split, for a `reason` that this loop cannot see."""
        return replace(self, phase="planned", exchange_after=None, watch=None, reason=reason)

    def _after_round(self, first_free_step: int, *, closing: bool) -> Orchestration:
        if self.settings.has_unknown_rows and self.records:
            return self._with_usual_rows(first_free_step)
        exchanges = self.exchanges + (not closing)
        last = self._last_warmup_step
        at_end = last is not None and self.exchange_after == last
        must_end = at_end or exchanges >= MOST_EXCHANGES
        evidence = self._evidence
        if must_end or (closing and evidence.has_two_sizes):
            return self._planned(best_known(evidence), first_free_step)
        if not evidence.is_complete:
            return replace(
                self,
                exchanges=exchanges,
                exchange_after=self.exchange_after
                if closing
                else self._end_of_round(first_free_step, self.round),
            )
        if self.round == 0:
            decision = after_first_round(evidence)
        else:
            decision = after_later_round(evidence, agreement_counts=self.round > 1)
        if last is None:
            if not decision.done and self.round + 1 >= MOST_ROUNDS:
                decision = best_known(evidence)
            if decision.done and self._is_too_coarse(decision):
                return self._prolonged(first_free_step)
            if decision.done:
                return self._planned(decision, first_free_step)
        elif first_free_step + SETTLING_STEPS > last:
            return replace(self, exchanges=0, exchange_after=last)
        return replace(
            self,
            schedule=self._with_second_size(decision.plan, first_free_step)
            or self._schedule_with(decision.plan, first_free_step),
            round=self.round + 1,
            exchanges=exchanges if last is None else 0,
            exchange_after=self._end_of_round(first_free_step, self.round + 1),
            reason=decision.reason,
        )

    def _with_usual_rows(self, first_free_step: int) -> Orchestration:
        """The same proportions, in the rows that a step usually has."""
        if first_free_step <= self.schedule.entries[-1][0]:
            return replace(self, exchange_after=first_free_step)
        rows = max(usual_rows(self.records), self.settings.world_size + 1)
        settings = self.settings.for_rows(rows)
        equal = BatchPlan(settings.equal_batch_sizes)
        told = replace(self, settings=settings, schedule=self.schedule.then(first_free_step, equal))
        return told._after_round(first_free_step + 1, closing=False)

    def _is_too_coarse(self, decision: Decision) -> bool:
        return decision.resolution > WANTED_RESOLUTION and self.prolongations < MOST_PROLONGATIONS

    def _prolonged(self, first_free_step: int) -> Orchestration:
        """The same split for twice as many steps as before: the noise of a median falls with their root."""
        steps = COUNTED_STEPS * 2 ** (self.prolongations + 1)
        return replace(
            self,
            prolongations=self.prolongations + 1,
            exchange_after=first_free_step + steps - 1,
            reason="the measurement is too noisy to tell, so the warm-up goes on",
        )

    def _after_confirmation(self, first_free_step: int) -> Orchestration:
        withdrawn = self._withdrawn(first_free_step)
        if withdrawn is not None:
            return withdrawn
        better = None if self.refined else refined(self._evidence)
        if better is None:
            return self._watched()
        return replace(self._planned(better, first_free_step), refined=True)

    def _withdrawn(self, first_free_step: int) -> Orchestration | None:
        """The equal split again, where whole steps are not a hundredth shorter under the plan; else None.

        What slowed a rank in the warm-up may have had nothing to do with its device.
        """
        evidence = self._evidence
        equal = [cost.own for cost in step_costs(self.counted_records, evidence.equal)]
        planned = [cost.own for cost in step_costs(self.counted_records, self.plan.batch_sizes)]
        if self.plan.batch_sizes == evidence.equal or not equal or not planned:
            return None
        if median(planned) < (1 - LEAST_GAIN) * median(equal):
            return None
        return replace(
            self,
            schedule=self._schedule_with(evidence.with_figures(evidence.equal), first_free_step),
            reason="measured steps were no shorter under another split, so the equal split stays",
        )._watched()

    def _planned(self, decision: Decision, first_free_step: int) -> Orchestration:
        if first_free_step <= self.schedule.entries[-1][0]:
            decision = Decision(
                self.plan,
                done=True,
                reason="the epoch ended before the latest split began, which therefore is the plan",
            )
        tour = self._with_second_size(decision.plan, first_free_step)
        if tour is None:
            schedule, reason = self._schedule_with(decision.plan, first_free_step), decision.reason
        else:
            schedule, reason = tour, decision.reason + SECOND_SIZE
            first_free_step = tour.entries[-1][0]
        return replace(
            self,
            schedule=schedule,
            phase="planned",
            round=self.round + (self.phase == "warmup"),
            exchange_after=self._end_of_confirmation(first_free_step),
            reason=reason,
        )

    def _end_of_confirmation(self, first_step: int) -> int:
        return first_step + SETTLING_STEPS + max(CONFIRMING_STEPS, self._steps_to_count) - 1

    def _with_second_size(self, plan: BatchPlan, first_free_step: int) -> Schedule | None:
        """The schedule with a few steps at another size of equal devices; None where that is not wanted or possible."""
        evidence = self._evidence
        is_equal = evidence.equal == self.plan.batch_sizes == plan.batch_sizes
        is_wanted = is_equal and self.settings.rebalance != "off" and not evidence.has_two_sizes
        back, last = first_free_step + SETTLING_STEPS + self._steps_to_count, self._last_warmup_step
        is_in_time = first_free_step > self.schedule.entries[-1][0] and (
            last is None or back <= last
        )
        if not is_wanted or not is_in_time:
            return None
        split = second_split(
            evidence.equal,
            lower=evidence.seats,
            upper=evidence.growth_limits,
            granularity=evidence.granularity,
        )
        if split is None:
            return None
        second = evidence.with_figures(split)
        return self.schedule.then(first_free_step, second).then(back, plan)

    def _schedule_with(self, plan: BatchPlan, first_free_step: int) -> Schedule:
        """The schedule with ``plan``, unless the latest plan is still to begin."""
        if plan.batch_sizes == self.plan.batch_sizes:
            plan = replace(plan, rows_per_pass=self.plan.rows_per_pass)
        if plan == self.plan or first_free_step <= self.schedule.entries[-1][0]:
            return self.schedule
        return self.schedule.then(first_free_step, plan)

    @cached_property
    def _evidence(self) -> Evidence:
        settings = self.settings
        upper = usable_upper(
            settings.upper,
            None if settings.in_passes else self.row_caps,
            lower=settings.lower,
            equal=settings.equal_batch_sizes,
            granularity=settings.granularity,
        )
        return Evidence(
            current=self.plan,
            equal=equal_within(
                settings.global_batch_size, settings.lower, upper, settings.granularity
            ),
            lower=settings.lower,
            upper=upper,
            granularity=settings.granularity,
            records=self.counted_records,
            known_fits=self.known_fits,
            row_caps=self._pass_caps,
            parks=settings.parks,
            least_rows=settings.least_rows,
        )

    @property
    def _pass_caps(self) -> tuple[int | None, ...] | None:
        """The most rows of a pass of each rank, None for one that can hold all rows that it may have."""
        known = self.row_caps or self.plan.rows_per_pass
        if not self.settings.in_passes or known is None:
            return None
        caps = tuple(
            None if cap is None or cap >= most else max(1, cap)
            for cap, most in zip(known, self.settings.upper, strict=True)
        )
        return None if all(cap is None for cap in caps) else caps

    def _check(self, records: Sequence[StepRecord], row_caps: Sequence[int] | None) -> None:
        world_size = self.settings.world_size
        for record in records:
            if not 0 <= record.rank < world_size:
                raise MeasurementError(
                    f"a record of rank {record.rank} at step {record.step}; "
                    f"expected ranks 0 to {world_size - 1}"
                )
        if row_caps is not None and len(row_caps) != world_size:
            raise MeasurementError(
                f"row_caps: expected one number for each of {world_size} ranks, "
                f"got {list(row_caps)}"
            )

    def _end_of_round(self, start: int, number: int) -> int:
        last = self._last_warmup_step
        if last is None:
            settling = FIRST_SETTLING_STEPS if number == 0 else SETTLING_STEPS
            return start + settling + self._steps_to_count - 1
        lengths = _round_lengths(int(self.settings.warmup))
        return min(last, start + lengths[min(number, len(lengths) - 1)] - 1)

    @property
    def _steps_to_count(self) -> int:
        """So many that the standard error of a median is as small as wanted, as far as the noise is known."""
        noise = max((fit.noise for fit in self.fits if fit is not None), default=0.0)
        wanted = ceil((MEDIAN_TO_MEAN_ERROR * noise / WANTED_ERROR) ** 2)
        return max(COUNTED_STEPS, min(MOST_COUNTED_STEPS, wanted))

    @property
    def _last_warmup_step(self) -> int | None:
        if self.settings.warmup == "auto":
            return None
        return self.first_step + int(self.settings.warmup) - 1

    def to_dict(self) -> dict[str, Any]:
        """Plain values (dict, list, str, int, float, None) that `from_dict` reads."""
        return {
            "settings": self.settings.to_dict(),
            "first_step": self.first_step,
            "schedule": self.schedule.to_dict(),
            "phase": self.phase,
            "round": self.round,
            "exchanges": self.exchanges,
            "exchange_after": self.exchange_after,
            "reason": self.reason,
            "records": [record.to_list() for record in self.records],
            "row_caps": None if self.row_caps is None else list(self.row_caps),
            "refined": int(self.refined),
            "prolongations": self.prolongations,
            "watch": None if self.watch is None else self.watch.to_dict(),
            "rebalancings": [each.to_dict() for each in self.rebalancings],
            "known_fits": [None if fit is None else fit.to_dict() for fit in self.known_fits],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Orchestration:
        """The state whose `to_dict` gave ``values``."""
        caps, watch = values["row_caps"], values.get("watch")
        state = cls(
            **{
                **values,
                "settings": OrchestrationSettings.from_dict(values["settings"]),
                "schedule": Schedule.from_dict(values["schedule"]),
                "records": tuple(StepRecord(*record) for record in values["records"]),
                "row_caps": None if caps is None else tuple(caps),
                "refined": bool(values["refined"]),
                "watch": None,
                "rebalancings": tuple(map(Rebalancing.from_dict, values.get("rebalancings", ()))),
                "known_fits": tuple(
                    None if fit is None else TimeFit.from_dict(fit)
                    for fit in values.get("known_fits", ())
                ),
            }
        )
        return (
            state
            if watch is None
            else replace(
                state, watch=Watch.from_dict(watch, _watched_models(state._watched_evidence))
            )
        )

    def holds_for(self, settings: OrchestrationSettings) -> bool:
        """Whether there is a plan, made for the same rows and ranks, that keeps to ``settings``."""
        sizes = self.plan.batch_sizes
        return (
            self.phase == "planned"
            and self.settings.world_size == settings.world_size
            and self.settings.global_batch_size == settings.global_batch_size
            and self.settings.granularity == settings.granularity
            and self.settings.varying == settings.varying
            and (settings.in_passes or not self.plan.has_passes)
            and all(
                low <= size <= high
                for low, size, high in zip(settings.lower, sizes, settings.upper, strict=True)
            )
        )

    @classmethod
    def resume(
        cls, settings: OrchestrationSettings, state_dict: Mapping[str, Any], first_step: int
    ) -> Orchestration:
        """Go on with a checkpoint's plan where ranks, batch and bounds fit; else begin anew."""
        old = cls.from_dict(state_dict)
        if settings.has_unknown_rows and old.settings.varying:
            settings = settings.for_rows(old.settings.global_batch_size)
        if not old.holds_for(settings):
            return cls.begin(settings, first_step)
        plan = old.plan if settings.in_passes else replace(old.plan, rows_per_pass=None)
        resumed = replace(
            old,
            settings=settings,
            first_step=min(old.first_step, first_step),
            records=old._usual_records,
            schedule=Schedule.starting_with(plan, first_step),
            exchange_after=None,
        )
        if old.watch is not None:
            return replace(resumed, watch=old.watch.anew())._watched()
        tour = resumed._with_second_size(old.plan, first_step + 1)
        if tour is not None and old.exchange_after is not None and not old.known_fits:
            last = resumed._end_of_confirmation(tour.entries[-1][0])
            return replace(resumed, schedule=tour, exchange_after=last)
        if old.planned_measurement is None:
            last = first_step + SETTLING_STEPS + CONFIRMING_STEPS - 1
            return replace(resumed, exchange_after=last)
        return resumed._watched()


def _watched_models(evidence: Evidence) -> tuple[TimeModel, ...]:
    return tuple(
        model if fit is None else hopeful(model, fit.batch_sizes)
        for model, fit in zip(evidence.cautious_models, evidence.fits, strict=True)
    )


def _with_outcome(rebalancings: tuple[Rebalancing, ...], watch: Watch) -> tuple[Rebalancing, ...]:
    """The last change with what came of it, once a few blocks have run under its plan."""
    if not rebalancings or rebalancings[-1].gain is not None:
        return rebalancings
    since = [block.period for block in watch.blocks if block.first_step >= rebalancings[-1].step]
    if len(since) < BLOCKS_OF_AN_OUTCOME:
        return rebalancings
    return (*rebalancings[:-1], replace(rebalancings[-1], seconds_after=median(since)))


def _round_lengths(steps: int) -> tuple[int, ...]:
    """How many steps of a warm-up of ``steps`` each round has."""
    rounds = max(1, min(3, steps // 3), min(MOST_ROUNDS, steps // 4))
    length, longer = divmod(steps, rounds)
    return tuple(length + (number < longer) for number in range(rounds))


def _settling(settings: OrchestrationSettings) -> tuple[int, int]:
    if settings.warmup == "auto":
        return FIRST_SETTLING_STEPS, SETTLING_STEPS
    return min(FIRST_SETTLING_STEPS, _round_lengths(int(settings.warmup))[0] - 1), SETTLING_STEPS
