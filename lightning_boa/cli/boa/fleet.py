"""A set of devices to plan for, and what a plan says of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NoReturn

from lightning_boa.cli.boa.sources import Member, Source
from lightning_boa.errors import BoaValueError, OptionError, PlanError
from lightning_boa.planning import (
    BatchPlan,
    Parkable,
    RingAllReduce,
    TimeModel,
    WorkerSet,
    choose_workers,
    equal_split,
    plan_batches,
    predicted_plan,
    row_bounds,
)
from lightning_boa.planning.words import passes_in_words
from lightning_boa.reports.plan_report import PlanReport, predicted_report

WORTH_SAYING = 0.01
_TYPED = {
    "min_batch_size": "--min",
    "max_batch_size": "--max",
    "granularity": "--granularity",
    "global_batch_size": "--global-batch",
}


@dataclass(frozen=True)
class Network:
    """What the devices exchange in a step.

    Args:
        gradient_bytes: of all gradients; 0: communication does not count.
        latency: of an empty message, in seconds.
    """

    gradient_bytes: float = 0.0
    latency: float = 0.0


@dataclass(frozen=True)
class Outlook:
    """A predicted plan beside the equal split.

    Args:
        plan: the rows of each device.
        report: the same as people see it.
        communication_seconds: of a step, counted in the step times.
    """

    plan: BatchPlan
    report: PlanReport
    communication_seconds: float

    @property
    def step_seconds(self) -> float:
        assert self.report.boa_step_seconds is not None
        return self.report.boa_step_seconds

    @property
    def rows_per_second(self) -> float:
        return self.plan.global_batch_size / self.step_seconds

    def to_dict(self) -> dict[str, Any]:
        """Plain values; seconds, shares of 0 to 1."""
        report = self.report
        return {
            "global_batch_size": self.plan.global_batch_size,
            "batch_sizes": self.plan.batch_sizes,
            "rows_per_pass": self.plan.rows_per_pass,
            "step_seconds": report.boa_step_seconds,
            "equal_step_seconds": report.equal_step_seconds,
            "communication_seconds": self.communication_seconds,
            "rows_per_second": self.rows_per_second,
            "gain": report.gain,
            "linear_ceiling": report.linear_ceiling,
        }


@dataclass(frozen=True)
class Fleet:
    """Devices, the bounds of their rows, and what they exchange.

    ``newcomers`` are the least and most rows of devices that were not there from the beginning, ``plan_in_use`` the
    rows of each device in the plan that they train with, if that is known.
    """

    members: tuple[Member, ...]
    network: Network
    granularity: int = 1
    parks: bool = False
    newcomers: tuple[int, int | None] = (1, None)
    plan_in_use: tuple[int, ...] | None = None

    @classmethod
    def of(cls, source: Source, network: Network) -> Fleet:
        """The devices of a source."""
        return cls(
            source.members,
            network,
            source.granularity,
            source.parks,
            plan_in_use=source.plan_in_use,
        )

    def with_members(self, members: Sequence[Member]) -> Fleet:
        """The same with what else is known of the same devices."""
        return replace(self, members=tuple(members))

    def changed_to(self, members: Sequence[Member]) -> Fleet:
        """Other devices with the same network, for which no plan is in use."""
        return replace(self, members=tuple(members), plan_in_use=None)

    def with_bounds(
        self,
        least: Sequence[int] | None,
        most: Sequence[int] | None,
        granularity: int | None,
    ) -> Fleet:
        """The same with other bounds, each a number for all devices or one for each; None leaves what there is.

        A number for all holds for newcomers too.

        Raises:
            OptionError: another number of them than devices.
        """
        members = [
            replace(
                member,
                least=member.least if low is None else low,
                most=member.most if high is None else high,
            )
            for member, low, high in zip(
                self.members, self._each("--min", least), self._each("--max", most), strict=True
            )
        ]
        least_new, most_new = self.newcomers
        return replace(
            self,
            members=tuple(members),
            granularity=granularity or self.granularity,
            newcomers=(
                least[0] if least is not None and len(least) == 1 else least_new,
                most[0] if most is not None and len(most) == 1 else most_new,
            ),
        )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(member.device.name for member in self.members)

    def outlook(self, rows: int) -> Outlook:
        """The plan of a global batch of so many rows; the one in use where no other is clearly faster.

        Raises:
            OptionError: no split keeps the bounds.
        """
        bounds = self._bounds(rows)
        try:
            plan = plan_batches(self._models, rows, **bounds)
            lower, upper = row_bounds(len(self.members), rows, **bounds)
        except BoaValueError as error:
            _refuse_as_typed(error)
        in_use = self._still_in_use(plan, lower, upper)
        plan = in_use or plan
        equal = equal_split(
            len(self.members), rows, granularity=self.granularity, lower=lower, upper=upper
        )
        ranks = len(self.members)
        slowest_link = min(self._ring.links(ranks).tolist())
        communication = float(self._ring.seconds(ranks, slowest_link))
        report = predicted_report(plan, self._models, equal.batch_sizes, self.names, communication)
        reason = _reason(report, plan, communicates=communication > 0)
        if in_use is not None:
            reason += f"; it is the plan that the training used, and no other is {WORTH_SAYING:.0%} faster"
        return Outlook(plan, replace(report, reason=reason), communication)

    def best_workers(self, outlook: Outlook) -> WorkerSet | None:
        """The devices with which a step of the same rows is shortest.

        None where it is known that no smaller set is faster: nothing is exchanged, and no device needs the whole step
        for its least rows. None also where least rows that differ leave the question open.
        """
        least = max(
            float(model.seconds(max(1, member.least)))
            for model, member in zip(self._models, self.members, strict=True)
        )
        if not outlook.communication_seconds and least < outlook.step_seconds:
            return None
        rows = outlook.plan.global_batch_size
        try:
            return choose_workers(self._models, rows, self._ring, **self._bounds(rows))
        except PlanError:
            return None

    def _still_in_use(
        self, fastest: BatchPlan, lower: Sequence[int], upper: Sequence[int]
    ) -> BatchPlan | None:
        """The plan in use, if the devices, rows and bounds still permit it and ``fastest`` gains next to nothing."""
        sizes = self.plan_in_use
        if sizes is None or len(sizes) != len(self.members):
            return None
        keeps_bounds = all(
            low <= size <= high for low, size, high in zip(lower, sizes, upper, strict=True)
        )
        uneven = sum(size % self.granularity > 0 for size in sizes)
        if not keeps_bounds or uneven > 1 or sum(sizes) != fastest.global_batch_size:
            return None
        plan = predicted_plan(self._models, sizes).in_passes(
            [member.device.rows_at_once for member in self.members]
        )
        assert plan.step_seconds is not None
        assert fastest.step_seconds is not None
        return plan if plan.step_seconds < (1 + WORTH_SAYING) * fastest.step_seconds else None

    @cached_property
    def _models(self) -> tuple[TimeModel, ...]:
        models = (member.device.time_model for member in self.members)
        return tuple(map(Parkable, models)) if self.parks else tuple(models)

    @cached_property
    def _ring(self) -> RingAllReduce:
        if not self.network.gradient_bytes:
            return RingAllReduce(0.0, 1.0, 0.0)
        links = [member.device.bandwidth for member in self.members]
        return RingAllReduce(self.network.gradient_bytes, links, self.network.latency)

    def _bounds(self, rows: int) -> dict[str, Any]:
        return {
            "granularity": self.granularity,
            "min_batch_size": [member.least for member in self.members],
            "max_batch_size": [
                rows if member.most is None else member.most for member in self.members
            ],
        }

    def _each(self, option: str, values: Sequence[int] | None) -> Sequence[int | None]:
        if values is None:
            return [None] * len(self.members)
        if len(values) not in (1, len(self.members)):
            raise OptionError(
                f"{option}: expected one number, or one for each of {len(self.members)} devices, got {len(values)}."
            )
        return list(values) * (len(self.members) // len(values))


def _refuse_as_typed(error: BoaValueError) -> NoReturn:
    """The same error with the options of the command instead of the strategy's."""

    def typed(found: re.Match[str]) -> str:
        option = _TYPED[found.group(1)]
        return option if found.group(2) is None else f"{option} {found.group(2)}"

    names = "|".join(_TYPED)
    raise OptionError(re.sub(rf"\b({names})(?:=(\d+))?", typed, str(error))) from error


def _reason(report: PlanReport, plan: BatchPlan, *, communicates: bool) -> str:
    gain, ceiling = report.gain, report.linear_ceiling
    assert gain is not None
    passes = passes_in_words(plan)
    rest = f"; {passes}" if passes else ""
    if len(report.ranks) == 1:
        return f"one device, nothing to balance{rest}"
    if gain < 1 + WORTH_SAYING:
        return f"the equal split is as fast, so there is next to nothing to gain{rest}"
    most = (
        f", where time in proportion to rows{' and no communication' * communicates} would permit {ceiling:.2f}"
        if ceiling is not None and ceiling >= gain
        else ""
    )
    return f"a step is {gain:.2f} times as fast as under the equal split{most}{rest}"
