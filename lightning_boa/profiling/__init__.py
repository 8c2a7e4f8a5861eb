"""Measuring one rank's steps and sharing the figures: torch, no Lightning."""

from __future__ import annotations

from lightning_boa.profiling.block_exchange import BlockExchange, BlockFigures
from lightning_boa.profiling.collective_errors import is_of_a_collective
from lightning_boa.profiling.exchange import (
    Exchange,
    check_digest,
    check_same,
    decide_once,
    exchange_records,
)
from lightning_boa.profiling.host_group import host_group
from lightning_boa.profiling.memory import (
    MOST_ROWS,
    MemoryProfile,
    hopeful_rows,
    memory_profile_of,
    most_rows,
)
from lightning_boa.profiling.network_probe import NetworkProbe
from lightning_boa.profiling.step_clock import ClockEntry, StepClock
from lightning_boa.profiling.timelines import AcceleratorTimeline, HostTimeline, timeline_of

__all__ = [
    "MOST_ROWS",
    "AcceleratorTimeline",
    "BlockExchange",
    "BlockFigures",
    "ClockEntry",
    "Exchange",
    "HostTimeline",
    "MemoryProfile",
    "NetworkProbe",
    "StepClock",
    "check_digest",
    "check_same",
    "decide_once",
    "exchange_records",
    "hopeful_rows",
    "host_group",
    "is_of_a_collective",
    "memory_profile_of",
    "most_rows",
    "timeline_of",
]
