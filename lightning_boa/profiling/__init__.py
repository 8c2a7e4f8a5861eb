"""Measuring one rank's steps and sharing the figures: torch, no Lightning."""

from __future__ import annotations

from lightning_boa.profiling.exchange import (
    Exchange,
    check_digest,
    check_same,
    decide_once,
    exchange_records,
)
from lightning_boa.profiling.memory import MemoryProfile, memory_profile_of, most_rows
from lightning_boa.profiling.step_clock import ClockEntry, StepClock
from lightning_boa.profiling.timelines import AcceleratorTimeline, HostTimeline, timeline_of

__all__ = [
    "AcceleratorTimeline",
    "ClockEntry",
    "Exchange",
    "HostTimeline",
    "MemoryProfile",
    "StepClock",
    "check_digest",
    "check_same",
    "decide_once",
    "exchange_records",
    "memory_profile_of",
    "most_rows",
    "timeline_of",
]
