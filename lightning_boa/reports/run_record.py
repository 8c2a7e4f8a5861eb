"""What a training leaves behind for `boa report`: plain values in one JSON file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec

from lightning_boa.errors import OptionError
from lightning_boa.planning import Rebalancing, StepRecord
from lightning_boa.reports.plan_report import PlanReport

FILE_NAME = "boa-run.json"
IN_LOG_FOLDER: Literal["auto"] = "auto"
VERSION: Literal[1] = 1

Rows = Annotated[int, msgspec.Meta(ge=0)]
MOST_SECONDS = 1e9
Seconds = Annotated[float, msgspec.Meta(ge=0, le=MOST_SECONDS)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class _AnyVersion(msgspec.Struct):
    file_version: Any = None


def mean_idle_share(compute: Sequence[float]) -> float:
    """The mean over ranks of the part of the slowest rank's computation in which a rank has none itself, 0 to 1.

    Args:
        compute: of each rank, in any unit; 0 without rows.
    """
    slowest = max(compute)
    return 1 - sum(compute) / len(compute) / slowest if slowest else 0.0


@dataclass(frozen=True)
class BlockRecord:
    """A few steps that were measured together after the warm-up.

    Args:
        step: the first of them.
        batch_sizes: rows of each rank in a full step.
        period: seconds from one step to the next.
        loader_wait: seconds of a step spent waiting for a batch, of the rank that waited longest.
        compute: seconds of computation of a step, of the slowest rank.
        busy: each rank's seconds of computation as a share of the slowest rank's, 0 to 1; 0 without rows.
        equal_period: seconds that a step of the equal split would have taken, by the models as they were then.
    """

    step: int
    batch_sizes: tuple[Rows, ...]
    period: Seconds
    loader_wait: Seconds
    compute: Seconds
    busy: tuple[Share, ...]
    equal_period: Seconds

    @property
    def idle_share(self) -> float:
        """The mean over ranks of the part of the slowest rank's computation in which a rank has none itself."""
        return mean_idle_share(self.busy)


def loader_share(blocks: Sequence[BlockRecord]) -> float:
    """The part of all blocks' steps, 0 to 1, in which the rank that waits longest waits for its batch."""
    period = sum(block.period for block in blocks)
    return sum(block.loader_wait for block in blocks) / period if period else 0.0


@dataclass(frozen=True)
class Saving:
    """Time saved against the equal split.

    Args:
        seconds: over the whole training since the warm-up; negative where the plan cost time.
        error: standard error of `seconds`.
        trained_seconds: what the same steps took.
        steps: how many they were.
    """

    seconds: Annotated[float, msgspec.Meta(ge=-MOST_SECONDS, le=MOST_SECONDS)]
    error: Seconds
    trained_seconds: Seconds
    steps: Rows

    @property
    def gain(self) -> float | None:
        """How many times faster a step was than under the equal split; None without a step."""
        return 1 + self.seconds / self.trained_seconds if self.trained_seconds else None

    @property
    def is_sure(self) -> bool:
        """Whether `seconds` are more than two standard errors away from nothing."""
        return abs(self.seconds) > 2 * self.error


@dataclass(frozen=True)
class RunRecord:
    """A training as far as it has come.

    Args:
        strategy: the name of its class.
        devices: one name per rank.
        global_batch_size: rows of a step over all ranks.
        outcome: "running", "finished", "stopped" by a signal, or what ended it.
        last_step: the last training step that ended.
        plan: the plan of the warm-up beside the equal split.
        hindrance: one sentence where nothing, or little, could be gained: why. Empty else.
        plans: (first step, rows per rank) of each plan, the splits of the warm-up among them.
        rebalancings: changes of the plan since the warm-up.
        steps: measured steps of the warm-up, of all ranks, settling steps included.
        blocks: what was measured afterwards, oldest first; where they were many, some are left out.
        saving: None where nothing was measured after the warm-up.
        software: the version of each package that matters.
        started: local time as ISO 8601.
        file_version: of this file.
    """

    strategy: str
    devices: tuple[str, ...]
    global_batch_size: Rows
    outcome: str
    last_step: int
    plan: PlanReport
    hindrance: str = ""
    plans: tuple[tuple[int, tuple[Rows, ...]], ...] = ()
    rebalancings: tuple[Rebalancing, ...] = ()
    steps: tuple[StepRecord, ...] = ()
    blocks: tuple[BlockRecord, ...] = ()
    saving: Saving | None = None
    software: Mapping[str, str] = field(default_factory=dict)
    started: str = ""
    file_version: Literal[1] = VERSION

    def __post_init__(self) -> None:
        ranks = len(self.devices)
        lengths = {len(self.plan.ranks), *(len(sizes) for _, sizes in self.plans)}
        for block in self.blocks:
            lengths |= {len(block.batch_sizes), len(block.busy)}
        for change in self.rebalancings:
            lengths |= {len(change.batch_sizes_before), len(change.batch_sizes), len(change.scales)}
        if lengths != {ranks} or ranks == 0:
            raise ValueError(f"expected figures of {ranks} ranks, one for each device, everywhere")
        if [rank.rank for rank in self.plan.ranks] != list(range(ranks)):
            raise ValueError(f"expected the plan's ranks to be 0 to {ranks - 1}, in this order")
        if any(not 0 <= step.rank < ranks for step in self.steps):
            raise ValueError(f"expected measured steps of ranks 0 to {ranks - 1}")
        if any(rank.equal_rows < 0 or rank.boa_rows < 0 for rank in self.plan.ranks):
            raise ValueError("expected no rank with fewer rows than 0")
        for change in self.rebalancings:
            if min(change.scales) <= 0 or change.seconds_after == 0:
                raise ValueError("expected changes of the plan with scales and seconds above 0")
        if not all(0 <= seconds <= MOST_SECONDS for seconds in self._seconds):
            raise ValueError(f"expected seconds from 0 to {MOST_SECONDS:g} everywhere")

    @property
    def _seconds(self) -> Iterator[float]:
        """What the kinds of their fields do not check."""
        plan = self.plan
        known: list[float | None] = [plan.equal_step_seconds, plan.boa_step_seconds]
        for rank in plan.ranks:
            known += [rank.equal_seconds, rank.boa_seconds]
            known += [rank.predicted_seconds, rank.predicted_error]
        for change in self.rebalancings:
            known += [change.seconds_before, change.seconds_after]
        for step in self.steps:
            known += [step.period, step.compute, step.loader_wait]
            known += [step.communication, step.optimizer]
        return (seconds for seconds in known if seconds is not None)

    def to_json(self) -> str:
        """Text that `from_json` reads."""
        return msgspec.json.encode(self).decode() + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, file: str = "the record") -> RunRecord:
        """The record whose `to_json` gave ``text``.

        Args:
            file: what messages call the place that the text comes from.

        Raises:
            OptionError: no JSON, another version, or a value of the wrong kind, length or range.
        """
        try:
            version = msgspec.json.decode(text, type=_AnyVersion).file_version
            if version not in (None, VERSION):
                raise OptionError(
                    f"{file}: expected the record of a training of version {VERSION}, got version {version!r}: "
                    "read it with the lightning-boa that has written it."
                )
            return msgspec.json.decode(text, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise OptionError(
                f"{file}: expected the record of a training (version {VERSION}), got something else: {error}."
            ) from error
