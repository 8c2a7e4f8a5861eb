from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch.distributed as dist


@dataclass
class Ticker:
    """A clock that stands still until it is told to go on; counts how often it was read."""

    now: float = 100.0
    readings: int = 0

    def __call__(self) -> float:
        self.readings += 1
        return self.now

    def passes(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class Stream:
    """An accelerator's queue of work: `done` is the moment up to which somebody has waited for it."""

    now: float = 5.0
    done: float = 0.0
    synchronizations: int = 0
    events: list[Event] = field(default_factory=list)

    def __call__(self, device: Any) -> Event:
        self.events.append(Event(self))
        return self.events[-1]

    def passes(self, seconds: float) -> None:
        self.now += seconds


class Event:
    """A timing event as torch has it: not readable before the device has passed it, in milliseconds."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.at: float | None = None

    def record(self) -> None:
        assert self.at is None, "an event was recorded twice"
        self.at = self._stream.now

    def synchronize(self) -> None:
        assert self.at is not None
        self._stream.synchronizations += 1
        self._stream.done = max(self._stream.done, self.at)

    def elapsed_time(self, end: Event) -> float:
        assert self.at is not None
        assert end.at is not None
        if max(self.at, end.at) > self._stream.done:
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        return 1000.0 * (end.at - self.at)


@pytest.fixture
def ticker() -> Ticker:
    return Ticker()


@pytest.fixture
def stream() -> Stream:
    return Stream()


@pytest.fixture
def gloo_alone() -> Iterator[None]:
    """A real process group of one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
