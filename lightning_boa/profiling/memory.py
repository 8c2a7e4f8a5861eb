"""How many rows a rank's memory is predicted to hold: peak bytes are linear in the rows of a step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

MEMORY_SHARE = 0.9


class MemoryGauge(Protocol):
    """Reads a device's memory, in bytes."""

    def begin_step(self) -> int:
        """Forget the last peak; return the bytes allocated now."""
        ...

    def peak(self) -> int:
        """The most bytes allocated since `begin_step`."""
        ...

    def available(self) -> int:
        """All bytes this process could have on the device."""
        ...


class CudaMemoryGauge:
    """The caching allocator's own counters; none of them waits for the device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def begin_step(self) -> int:
        torch.cuda.reset_peak_memory_stats(self._device)
        return int(torch.cuda.memory_allocated(self._device))

    def peak(self) -> int:
        return int(torch.cuda.max_memory_allocated(self._device))

    def available(self) -> int:
        free, _ = torch.cuda.mem_get_info(self._device)
        return int(free) + int(torch.cuda.memory_reserved(self._device))


def most_rows(
    rows: list[int],
    resident: list[int],
    peak: list[int],
    available: int,
    share: float = MEMORY_SHARE,
) -> int:
    """The most rows whose predicted peak stays within `share` of the available bytes.

    One size: bytes per row = (peak - resident) / rows, which counts a fixed workspace as if it grew with the rows and
    so errs on the safe side. Several sizes: a least-squares line through the largest peak of each, raised until it
    lies above all of them. Never less than the largest size that has already run.

    Args:
        rows: rows of each measured step, at least one step.
        resident: bytes allocated as that step began.
        peak: most bytes allocated during that step.
        available: bytes the process could have on the device.
        share: part of `available` that may be used.
    """
    highest: dict[int, int] = {}
    lowest_resident: dict[int, int] = {}
    for size, before, most in zip(rows, resident, peak, strict=True):
        highest[size] = max(most, highest.get(size, 0))
        lowest_resident[size] = min(before, lowest_resident.get(size, before))
    sizes = np.array(sorted(size for size in highest if size > 0), dtype=np.float64)
    peaks = np.array([highest[int(size)] for size in sizes], dtype=np.float64)
    if len(sizes) == 1:
        base = float(lowest_resident[int(sizes[0])])
        per_row = (peaks[0] - base) / sizes[0]
    else:
        per_row, base = np.polyfit(sizes, peaks, 1)
        base += float(np.max(peaks - (base + per_row * sizes)))
    largest = int(sizes[-1])
    if per_row <= 0:
        return largest
    return max(largest, int((share * available - base) // per_row))


@dataclass
class MemoryProfile:
    """One rank's measured steps, and the rows its memory is predicted to hold."""

    gauge: MemoryGauge
    _rows: list[int] = field(default_factory=list)
    _resident: list[int] = field(default_factory=list)
    _peak: list[int] = field(default_factory=list)
    _before: int = 0

    def begin_step(self) -> None:
        """A step begins."""
        self._before = self.gauge.begin_step()

    def end_step(self, rows: int) -> None:
        """A step of `rows` rows is over."""
        if rows > 0:
            self._rows.append(rows)
            self._resident.append(self._before)
            self._peak.append(self.gauge.peak())

    def row_cap(self) -> int | None:
        """The most rows that fit, None before anything was measured."""
        if not self._rows:
            return None
        return most_rows(self._rows, self._resident, self._peak, self.gauge.available())


def memory_profile_of(device: torch.device) -> MemoryProfile | None:
    """A profile of `device`'s memory; None where memory is not the device's own (CPU) or cannot be read."""
    return MemoryProfile(CudaMemoryGauge(device)) if device.type == "cuda" else None
