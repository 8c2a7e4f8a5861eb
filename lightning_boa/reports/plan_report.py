"""What a run's plan looks like to people, as plain values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from lightning_boa.planning import (
    BatchPlan,
    NetworkFindings,
    Orchestration,
    TimeModel,
    equal_split,
    predicted_plan,
)

GIVEN = "these shares were given"
UNFINISHED = (
    "the training ended within the warm-up, so this is only the last split that it tried; more epochs, or a shorter"
    " warm-up, give a plan"
)


@dataclass(frozen=True)
class RankReport:
    """One rank's share; seconds are the compute time of one step, None where nothing was measured.

    ``predicted_error`` is the standard error of ``predicted_seconds``.
    """

    rank: int
    device: str
    equal_rows: int
    boa_rows: int
    equal_seconds: float | None = None
    boa_seconds: float | None = None
    predicted_seconds: float | None = None
    predicted_error: float | None = None

    @property
    def samples_per_second(self) -> float | None:
        """Rows per second of compute under BOA's plan, as measured, else as predicted."""
        seconds = self.predicted_seconds if self.boa_seconds is None else self.boa_seconds
        return self.boa_rows / seconds if seconds and self.boa_rows else None


@dataclass(frozen=True)
class PlanReport:
    """A plan beside the equal split.

    Args:
        ranks: in the order of their numbers.
        equal_step_seconds: measured seconds from one step to the next under the equal split.
        boa_step_seconds: the same under BOA's plan.
        reason: one sentence: why this plan.
        network: one sentence: what communication costs, and which ranks had better be left out; empty where it costs
            next to nothing.
        name: what has made the plan.
        is_measured: False where nothing was, so that all seconds here are predicted.
    """

    ranks: tuple[RankReport, ...]
    equal_step_seconds: float | None = None
    boa_step_seconds: float | None = None
    reason: str = ""
    network: str = ""
    name: str = "BOA"
    is_measured: bool = True

    @property
    def gain(self) -> float | None:
        """How many times faster a step is under BOA than under the equal split, both measured."""
        return _ratio(self.equal_step_seconds, self.boa_step_seconds)

    @cached_property
    def equal_compute_seconds(self) -> float | None:
        """The slowest rank's measured compute time under the equal split."""
        return slowest(rank.equal_seconds for rank in self.ranks)

    @cached_property
    def boa_compute_seconds(self) -> float | None:
        """The slowest rank's measured compute time under BOA's plan."""
        return slowest(rank.boa_seconds for rank in self.ranks)

    @property
    def compute_gain(self) -> float | None:
        return _ratio(self.equal_compute_seconds, self.boa_compute_seconds)

    @property
    def linear_ceiling(self) -> float | None:
        """Mean speed over slowest speed, both measured under the equal split: the gain that no split exceeds on
        devices whose time is proportional to their rows and that talk to each other for nothing."""
        speeds = [
            rank.equal_rows / rank.equal_seconds
            for rank in self.ranks
            if rank.equal_seconds and rank.equal_rows
        ]
        if not speeds or len(speeds) < len(self.ranks):
            return None
        return sum(speeds) / len(speeds) / min(speeds)

    def of_extreme_ranks(self, most: int) -> PlanReport:
        """The report of no more than ``most`` ranks: those with the fewest rows and those with the most."""
        if len(self.ranks) <= most:
            return self
        by_rows = sorted(self.ranks, key=lambda rank: rank.boa_rows)
        shown = by_rows[: most // 2] + by_rows[-(most // 2) :]
        return replace(self, ranks=tuple(sorted(shown, key=lambda rank: rank.rank)))

    def equal_idle_share(self, rank: RankReport) -> float | None:
        """The part of a step in which the rank waits for the slowest one under the equal split, 0 to 1."""
        return _idle_share(rank.equal_seconds, self.equal_compute_seconds)

    def boa_idle_share(self, rank: RankReport) -> float | None:
        """The part of a step in which the rank waits for the slowest one under BOA's plan, 0 to 1."""
        return _idle_share(rank.boa_seconds, self.boa_compute_seconds)


def describe_plan(
    plan: BatchPlan,
    orchestration: Orchestration | None,
    device_names: Sequence[str],
    network: NetworkFindings | None = None,
) -> PlanReport:
    """What is known of `plan`; without an orchestration (a fixed plan) no time is."""
    if orchestration is None:
        equal_rows = equal_split(plan.world_size, plan.global_batch_size).batch_sizes
        equal = planned = None
        reason = "one device, nothing to balance" if plan.world_size == 1 else GIVEN
    else:
        equal_rows = orchestration.settings.equal_batch_sizes
        equal, planned = orchestration.equal_measurement, orchestration.planned_measurement
        reason = UNFINISHED if orchestration.phase == "warmup" else orchestration.reason
    return PlanReport(
        ranks=tuple(
            RankReport(
                rank=rank,
                device=device_names[rank],
                equal_rows=equal_rows[rank],
                boa_rows=rows,
                equal_seconds=None if equal is None else equal.rank_compute[rank],
                boa_seconds=None if planned is None else planned.rank_compute[rank],
                predicted_seconds=None if plan.rank_seconds is None else plan.rank_seconds[rank],
                predicted_error=_predicted_error(plan, orchestration, rank),
            )
            for rank, rows in enumerate(plan.batch_sizes)
        ),
        equal_step_seconds=None if equal is None else equal.step_period,
        boa_step_seconds=None if planned is None else planned.step_period,
        reason=reason,
        network="" if network is None else describe_network(network),
        name="BOA" if orchestration is None else orchestration.name,
    )


def predicted_report(
    plan: BatchPlan,
    time_models: Sequence[TimeModel],
    equal_rows: Sequence[int],
    device_names: Sequence[str],
    communication_seconds: float = 0.0,
) -> PlanReport:
    """What `time_models` say of `plan` and of the equal split; a step of both has ``communication_seconds`` besides."""
    equal = predicted_plan(time_models, equal_rows)
    planned = predicted_plan(time_models, plan.batch_sizes)
    assert equal.rank_seconds is not None
    assert equal.step_seconds is not None
    assert planned.rank_seconds is not None
    assert planned.step_seconds is not None
    return PlanReport(
        ranks=tuple(
            RankReport(rank, device, before, rows, before_seconds, seconds, seconds)
            for rank, (device, before, rows, before_seconds, seconds) in enumerate(
                zip(
                    device_names,
                    equal_rows,
                    plan.batch_sizes,
                    equal.rank_seconds,
                    planned.rank_seconds,
                    strict=True,
                )
            )
        ),
        equal_step_seconds=equal.step_seconds + communication_seconds,
        boa_step_seconds=planned.step_seconds + communication_seconds,
        is_measured=False,
    )


def describe_network(network: NetworkFindings) -> str:
    """What communication costs, and the advice about the set of workers; empty where it costs next to nothing."""
    if not network.is_considerable:
        return ""
    return "; ".join(filter(None, (network.summary, network.advice)))


def slowest(seconds: Iterable[float | None]) -> float | None:
    """The largest value, None where one is missing."""
    known = list(seconds)
    complete = [value for value in known if value is not None]
    return max(complete) if complete and len(complete) == len(known) else None


def _predicted_error(
    plan: BatchPlan, orchestration: Orchestration | None, rank: int
) -> float | None:
    if plan.rank_seconds is None or orchestration is None:
        return None
    fit = orchestration.fits[rank]
    return None if fit is None else fit.relative_error * plan.rank_seconds[rank]


def _ratio(numerator: float | None, denominator: float | None) -> float | None:
    return numerator / denominator if numerator is not None and denominator else None


def _idle_share(seconds: float | None, step_seconds: float | None) -> float | None:
    return 1 - seconds / step_seconds if seconds is not None and step_seconds else None
