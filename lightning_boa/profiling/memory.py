"""How many rows a rank's memory is predicted to hold, from the peaks of the steps that have run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

MEMORY_SHARE = 0.9
MOST_ROWS = 2**31 - 1
LARGEST_PART = 0.8


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
    rows: Sequence[int],
    resident: Sequence[int],
    peak: Sequence[int],
    available: int,
    share: float = MEMORY_SHARE,
) -> int:
    """The most rows whose predicted peak stays within `share` of the available bytes.

    What a step adds to the resident bytes is a fixed part (workspaces, the optimizer's own peak) and a part that grows
    with the rows. Split by a fitted line, noise and bends can make rows look free; so all of it counts as growing, as
    it was at the largest size that has run: (peak - resident) / rows bytes a row. That never predicts too little, and
    becomes exact as the sizes grow. Never less than the largest size that has already run.

    Args:
        rows: rows of each measured step, at least one step, each at least one row.
        resident: bytes allocated as that step began.
        peak: most bytes allocated during that step.
        available: bytes the process could have on the device.
        share: part of `available` that may be used.
    """
    largest = max(rows)
    per_row = max(_added(largest, rows, resident, peak), 1) / largest
    room = share * available - max(resident)
    return max(largest, min(int(room / per_row), MOST_ROWS))


def hopeful_rows(
    rows: Sequence[int],
    resident: Sequence[int],
    peak: Sequence[int],
    available: int,
    share: float = MEMORY_SHARE,
) -> int:
    """The most rows whose peak stays within `share` of the available bytes if it is a line over the rows.

    The line through the smallest and the largest size that have run, where they are a fifth apart, up to twice the
    largest size; else, and where it says less, as `most_rows`. For steps that may run out of memory.
    """
    known = most_rows(rows, resident, peak, available, share)
    least, largest = min(rows), max(rows)
    at_least, at_largest = (_added(size, rows, resident, peak) for size in (least, largest))
    if least > LARGEST_PART * largest or at_largest <= at_least:
        return known
    per_row = (at_largest - at_least) / (largest - least)
    room = share * available - max(resident) - at_largest
    return max(known, min(largest + int(room / per_row), 2 * largest))


def _added(size: int, rows: Sequence[int], resident: Sequence[int], peak: Sequence[int]) -> int:
    """The most bytes that a step of `size` rows has added to those that were resident."""
    steps = zip(rows, resident, peak, strict=True)
    return max(most - before for each, before, most in steps if each == size)


@dataclass
class MemoryProfile:
    """One rank's measured steps, and the rows its memory is predicted to hold at once."""

    gauge: MemoryGauge
    _rows: list[int] = field(default_factory=list)
    _resident: list[int] = field(default_factory=list)
    _peak: list[int] = field(default_factory=list)
    _before: int = 0
    _failed: int | None = None

    def begin_step(self) -> None:
        """A step begins."""
        self._before = self.gauge.begin_step()

    def end_step(self, rows: int) -> None:
        """A step of `rows` rows is over."""
        if rows > 0:
            self._rows.append(rows)
            self._resident.append(self._before)
            self._peak.append(self.gauge.peak())

    def note_failure(self, rows: int) -> None:
        """So many rows did not fit; the step begins anew."""
        self._failed = rows if self._failed is None else min(rows, self._failed)
        self.begin_step()

    @property
    def proven_cap(self) -> int | None:
        """The most rows that fit, None while nothing has failed."""
        if self._failed is None:
            return None
        cap = self.row_cap()
        return max(1, self._failed - 1) if cap is None else cap

    def row_cap(self, *, may_fail: bool = False) -> int | None:
        """The most rows that fit, None before anything was measured; less than have failed.

        Args:
            may_fail: the steps that follow may run out of memory, so that the prediction may hope.
        """
        if not self._rows:
            return None
        predict = hopeful_rows if may_fail else most_rows
        cap = predict(self._rows, self._resident, self._peak, self.gauge.available())
        return cap if self._failed is None else max(1, min(cap, self._failed - 1))


def memory_profile_of(device: torch.device) -> MemoryProfile | None:
    """A profile of `device`'s memory; None where memory is not the device's own (CPU) or cannot be read."""
    return MemoryProfile(CudaMemoryGauge(device)) if device.type == "cuda" else None
