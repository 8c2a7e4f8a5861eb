"""What one rank's training step spends its time on: compute, communication and waiting, optimizer, loader."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from lightning_boa.planning import StepRecord
from lightning_boa.profiling.timelines import HostTimeline, Timeline

NEXT_TO_NOTHING = 1e-9
Activity = Literal["compute", "communication", "optimizer"]


@dataclass
class _RunningStep:
    step: int
    rows: int
    step_rows: int
    loader_wait: float
    spans: list[tuple[Activity, Any, Any]] = field(default_factory=list)
    activity: Activity | None = None
    since: Any = None
    entered: bool = False
    last_mark: Any = None
    period: float = 0.0
    passes: int = 1


class StepClock:
    """Splits each training step of one rank into activities, without a device synchronisation per step.

    The strategy says when an activity begins; figures are read from the timeline only in `records`.

    Args:
        rank: the rank that is measured.
        timeline: where the moments are marked (the device's stream, or the host).
        clock: the host's clock in seconds, for the period from one step's end to the next one's.
        capacity: how many finished steps are kept until they are read.
    """

    def __init__(
        self,
        rank: int,
        timeline: Timeline | None = None,
        *,
        clock: Callable[[], float] = time.perf_counter,
        capacity: int = 128,
    ) -> None:
        self.rank = rank
        self._timeline = timeline or HostTimeline(clock)
        self._clock = clock
        self._running: _RunningStep | None = None
        self._finished: deque[_RunningStep] = deque(maxlen=capacity)
        self._period_began: float | None = None
        self.enabled = True

    def interrupt(self) -> None:
        """The next step's period starts anew: something that is no training step came between."""
        self._period_began = None

    def begin(self, step: int, rows: int, step_rows: int, loader_wait: float) -> None:
        """A step's batch has arrived; `loader_wait` are the seconds spent waiting for it."""
        if not self.enabled:
            self._period_began = self._running = None
            return
        if self._period_began is None:
            self._period_began = self._clock() - loader_wait
        self._running = _RunningStep(step, rows, step_rows, loader_wait)

    def count_passes(self, passes: int) -> None:
        """The step that runs does so in so many passes."""
        if self._running is not None:
            self._running.passes = passes

    def leave_out(self) -> None:
        """The step that runs is no measure of any other."""
        self._running = None
        self._period_began = None

    def enter_compute(self) -> None:
        """The module's own training step begins; only the first entry of a step counts."""
        running = self._running
        if running is not None and not running.entered:
            running.entered = True
            self.switch("compute")

    def switch(self, activity: Activity | None) -> None:
        """End the present activity and begin another one (None: nothing that is measured)."""
        running = self._running
        if running is None or not running.entered or running.activity == activity:
            return
        mark = self._timeline.mark()
        if running.activity is not None:
            running.spans.append((running.activity, running.since, mark))
        running.activity, running.since, running.last_mark = activity, mark, mark

    @contextmanager
    def communicating(self) -> Iterator[None]:
        """Time blocked in a collective inside the step is communication, whatever it interrupts."""
        interrupted = self._running.activity if self._running is not None else None
        if interrupted is None:
            yield
            return
        self.switch("communication")
        try:
            yield
        finally:
            self.switch(interrupted)

    def end(self) -> None:
        """The step is over."""
        running = self._running
        if running is None:
            return
        self.switch(None)
        self._running = None
        now = self._clock()
        assert self._period_began is not None
        running.period = now - self._period_began
        self._period_began = now
        self._finished.append(running)

    def last_compute(self) -> float | None:
        """Seconds of computation in the step that has just ended; waits for the device. None if it was not measured."""
        if not self._finished or self._finished[-1].last_mark is None:
            return None
        self._timeline.settle(self._finished[-1].last_mark)
        record = self._record(self._finished[-1])
        return None if record is None else record.compute

    def records(self, *, before: int | None = None) -> list[StepRecord]:
        """The finished steps since the last call, oldest first; waits once for the last of them on the device.

        Steps from ``before`` on are kept for the next call.
        """
        finished: list[_RunningStep] = []
        while self._finished and (before is None or self._finished[0].step < before):
            finished.append(self._finished.popleft())
        if finished and finished[-1].last_mark is not None:
            self._timeline.settle(finished[-1].last_mark)
        records = (self._record(step) for step in finished)
        return [record for record in records if record is not None]

    def _record(self, finished: _RunningStep) -> StepRecord | None:
        """None where the device's figures make no sense: other ranks wait, so this is no place to raise."""
        spent: dict[Activity, float] = {"compute": 0.0, "communication": 0.0, "optimizer": 0.0}
        for activity, begin, end in finished.spans:
            spent[activity] += self._timeline.seconds(begin, end)
        if not finished.rows:
            spent["compute"] = max(spent["compute"], NEXT_TO_NOTHING)
        if not (spent["compute"] > 0 and finished.period > 0):
            return None
        return StepRecord(
            step=finished.step,
            rank=self.rank,
            rows=finished.rows,
            step_rows=finished.step_rows,
            compute=spent["compute"],
            loader_wait=finished.loader_wait,
            communication=spent["communication"],
            optimizer=spent["optimizer"],
            period=finished.period,
            passes=finished.passes,
        )


class ClockEntry:
    """A forward pre-hook that tells a clock when the module's own step begins; copies of the module lose the clock."""

    def __init__(self, clock: StepClock | None = None) -> None:
        self._clock = clock

    def __call__(self, *arguments: Any) -> None:
        if self._clock is not None:
            self._clock.enter_compute()

    def __reduce__(self) -> tuple[type[ClockEntry], tuple[()]]:
        return ClockEntry, ()
