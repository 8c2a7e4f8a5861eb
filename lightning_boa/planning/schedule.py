"""Which plan holds at which step."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from lightning_boa.planning.plan import BatchPlan, digest


@dataclass(frozen=True)
class Schedule:
    """Plans and the first step of each. Steps are counted over the whole training."""

    entries: tuple[tuple[int, BatchPlan], ...]
    _first_steps: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        first_steps = tuple(first_step for first_step, _ in self.entries)
        if not first_steps or any(later <= earlier for earlier, later in pairwise(first_steps)):
            raise ValueError(
                f"a schedule needs entries with rising first steps, got {list(first_steps)}"
            )
        object.__setattr__(self, "_first_steps", first_steps)

    @classmethod
    def starting_with(cls, plan: BatchPlan, first_step: int = 0) -> Schedule:
        return cls(((first_step, plan),))

    @property
    def latest(self) -> BatchPlan:
        """The plan that holds from the last entry on."""
        return self.entries[-1][1]

    @property
    def digest(self) -> int:
        """63 bits of all first steps and batch sizes."""
        return digest([part for first, plan in self.entries for part in (first, plan.digest)])

    def plan_at(self, step: int) -> BatchPlan:
        """The plan of ``step``; ValueError before the first entry."""
        index = bisect_right(self._first_steps, step)
        if index == 0:
            raise ValueError(f"the schedule begins at step {self._first_steps[0]}, got {step}")
        return self.entries[index - 1][1]

    def then(self, first_step: int, plan: BatchPlan) -> Schedule:
        """This schedule with ``plan`` from ``first_step`` on, which must be after all entries."""
        if first_step <= self._first_steps[-1]:
            raise ValueError(
                f"the next plan must begin after step {self._first_steps[-1]}, got {first_step}"
            )
        return Schedule((*self.entries, (first_step, plan)))

    def since(self, step: int) -> Schedule:
        """This schedule without the plans that have ended before ``step``."""
        index = max(0, bisect_right(self._first_steps, step) - 1)
        return Schedule(self.entries[index:])

    def changed_from(self, first_step: int, change: Callable[[BatchPlan], BatchPlan]) -> Schedule:
        """This schedule with ``change`` of every plan that holds at ``first_step`` or later."""
        begun = [entry for entry in self.entries if entry[0] < first_step]
        later = [(first, change(plan)) for first, plan in self.entries[len(begun) :]]
        if begun and (not later or later[0][0] > first_step):
            present = begun[-1][1]
            changed = change(present)
            later[:0] = [(first_step, changed)] if changed != present else []
        return Schedule((*begun, *later))

    def to_dict(self) -> dict[str, Any]:
        """Plain values that `from_dict` reads."""
        return {"entries": [[first, plan.to_dict()] for first, plan in self.entries]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Schedule:
        """The schedule whose `to_dict` gave ``values``."""
        return cls(tuple((first, BatchPlan.from_dict(plan)) for first, plan in values["entries"]))
