"""Time that a test moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightning_boa import BoaStrategy, EmulatedCluster
from lightning_boa.profiling import HostTimeline, MemoryProfile, StepClock


class VirtualTime:
    """A clock that only sleeping moves; each rank has its own."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class MeasuresVirtualTime(BoaStrategy):
    """Measures by a clock that the test moves."""

    time: VirtualTime

    def new_clock(self) -> StepClock:
        return StepClock(self.global_rank, HostTimeline(self.time), clock=self.time)

    def new_memory_profile(self) -> MemoryProfile | None:
        return None


def emulated(strategy: Any, seconds_per_sample: Sequence[float], **options: Any) -> EmulatedCluster:
    """The callback that makes each rank's step last so long in the strategy's time."""
    strategy.time = VirtualTime()
    return EmulatedCluster(
        seconds_per_sample,
        clock=strategy.time,
        sleep=strategy.time.sleep,
        work_clock=lambda: 0.0,
        **options,
    )
