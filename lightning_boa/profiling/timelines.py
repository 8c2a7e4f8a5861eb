"""Marks in time on the device that computes: the host's clock, or events on an accelerator's stream."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import torch


class Timeline(Protocol):
    """Where a step's moments are marked, and how the seconds between two of them are read later."""

    def mark(self) -> Any:
        """Mark the present moment without waiting for the device."""
        ...

    def settle(self, mark: Any) -> None:
        """Wait until the device has passed `mark`."""
        ...

    def seconds(self, begin: Any, end: Any) -> float:
        """Seconds between two settled marks."""
        ...


class HostTimeline:
    """Marks are readings of the host's clock, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock

    def mark(self) -> float:
        return self._clock()

    def settle(self, mark: float) -> None:
        return None

    def seconds(self, begin: float, end: float) -> float:
        return end - begin


class AcceleratorTimeline:
    """Marks are timing events on the current stream of an accelerator; nothing waits until they are settled.

    Args:
        device: the accelerator whose current stream computes.
        new_event: makes a timing event with `record()`, `synchronize()` and `elapsed_time(other)` in milliseconds.
    """

    def __init__(
        self, device: torch.device, new_event: Callable[[torch.device], Any] | None = None
    ) -> None:
        self._device = device
        self._new_event = new_event or timing_event

    def mark(self) -> Any:
        event = self._new_event(self._device)
        event.record()
        return event

    def settle(self, mark: Any) -> None:
        mark.synchronize()

    def seconds(self, begin: Any, end: Any) -> float:
        return float(begin.elapsed_time(end)) / 1000.0


def timing_event(device: torch.device) -> Any:
    """A timing event of `device`'s kind: CUDA's and ROCm's own, torch's generic one elsewhere."""
    if device.type == "cuda":
        return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    return torch.Event(device.type, enable_timing=True)


def timeline_of(device: torch.device) -> Timeline:
    """The timeline on which `device` computes."""
    return HostTimeline() if device.type == "cpu" else AcceleratorTimeline(device)
