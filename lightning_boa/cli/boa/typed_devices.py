"""Devices typed on a command line: "3090=2.1ms", "2x3090=2.1ms", "4090=0.9ms+12ms"."""

from __future__ import annotations

import re

from lightning_boa.cli.boa.quantities import seconds
from lightning_boa.cli.devices import MOST_EQUAL, MOST_SECONDS, Device
from lightning_boa.errors import OptionError

SYNTAX = "NAME=TIME_PER_ROW[+FIXED_TIME], as in 3090=2.1ms or 2x4090=0.9ms+12ms"


def typed_devices(option: str, text: str) -> tuple[Device, ...]:
    """The devices of one typed text.

    Raises:
        OptionError: another form, or a time that is no time; the message begins with ``option``.
    """
    count, rest = counted(option, text)
    name, equals, times = rest.rpartition("=")
    name = name.strip()
    if set("=,") & set(name):
        raise OptionError(
            f"{option}: expected one device, as {SYNTAX}, with neither = nor , in its name, got {text!r}; each other "
            f"device has a {option} of its own."
        )
    if not equals or not name or not name.isprintable():
        raise OptionError(f"{option}: expected {SYNTAX}, got {text!r}.")
    per_row, plus, fixed = times.partition("+")
    seconds_per_sample = seconds(option, per_row)
    if not 0 < seconds_per_sample <= MOST_SECONDS:
        raise OptionError(
            f"{option}: expected a time per row above 0, got {per_row!r} in {text!r}."
        )
    device = Device(
        name=name,
        seconds_per_sample=seconds_per_sample,
        overhead=seconds(option, fixed) if plus else 0.0,
    )
    return (device,) * count


def counted(option: str, text: str) -> tuple[int, str]:
    """(2, "3090") for "2x3090", (1, "3090") for "3090"."""
    match = re.fullmatch(r"\s*([-+]?[0-9.]+)\s*x\s*(\S.*)", text)
    if match is None:
        return 1, text.strip()
    digits = match.group(1)
    if not (digits.isdecimal() and len(digits) < 10 and 1 <= int(digits) <= MOST_EQUAL):
        raise OptionError(f"{option}: expected 1 to {MOST_EQUAL:,} devices, got {text!r}.")
    return int(digits), match.group(2).strip()
