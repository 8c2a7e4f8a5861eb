"""What was decided while a training was watched: seen, expected, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightning_boa.planning.words import rank_names


@dataclass(frozen=True)
class Rebalancing:
    """A new plan that took effect at ``step``.

    ``scales`` is what was seen: each rank's time against its model, the (lower) median rank being 1.
    ``expected_gain`` is the relative gain in steps per second that was expected, ``seconds_before`` and
    ``seconds_after`` the measured seconds of a step under the old plan, once the devices had changed, and under the new
    one (None until measured).
    """

    step: int
    batch_sizes_before: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    scales: tuple[float, ...]
    expected_gain: float
    seconds_before: float
    seconds_after: float | None = None

    @property
    def gain(self) -> float | None:
        """The relative gain in steps per second that was measured; None until it was."""
        return None if self.seconds_after is None else self.seconds_before / self.seconds_after - 1

    @property
    def observation(self) -> str:
        """What was seen, in a few words."""
        slowest = max(range(len(self.scales)), key=self.scales.__getitem__)
        fastest = min(range(len(self.scales)), key=self.scales.__getitem__)
        slower, faster = self.scales[slowest], 1 / self.scales[fastest]
        if slower * faster - 1 < self.expected_gain:
            return "all ranks are about as fast as their first measurements say"
        if slower >= faster:
            return f"rank {slowest} takes {slower:.2f} times as long as its first measurement says, beside the others"
        return f"rank {fastest} is {faster:.2f} times as fast as its first measurement says, beside the others"

    @property
    def reason(self) -> str:
        """What was seen and is expected, in one sentence."""
        return (
            f"{self.observation}; a step is predicted to be {self.expected_gain:.0%} faster"
            f"{self._comings_and_goings}"
        )

    @property
    def _comings_and_goings(self) -> str:
        """Which ranks get no rows any more, and which get some again; empty where none does."""
        changes = list(enumerate(zip(self.batch_sizes_before, self.batch_sizes, strict=True)))
        gone = [rank for rank, (before, after) in changes if before and not after]
        back = [rank for rank, (before, after) in changes if after and not before]
        return (f", without rows for {rank_names(gone)}" if gone else "") + (
            f", with rows for {rank_names(back)} again" if back else ""
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values that `from_dict` reads."""
        return {
            "step": self.step,
            "batch_sizes_before": list(self.batch_sizes_before),
            "batch_sizes": list(self.batch_sizes),
            "scales": list(self.scales),
            "expected_gain": self.expected_gain,
            "seconds_before": self.seconds_before,
            "seconds_after": self.seconds_after,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Rebalancing:
        """The decision whose `to_dict` gave ``values``."""
        lists = ("batch_sizes_before", "batch_sizes", "scales")
        return cls(**{**values, **{name: tuple(values[name]) for name in lists}})
