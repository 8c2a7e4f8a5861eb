"""Quantities typed on a command line: times, bytes, rates, counts, rows per rank."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from lightning_boa.errors import OptionError
from lightning_boa.planning.bounds import MOST_ROWS

_SECONDS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_COUNTS = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9}
_BYTES = {
    "": 1.0,
    "B": 1.0,
    **{f"{prefix}B": 1000.0**power for power, prefix in enumerate("kMGT", 1)},
    **{f"{prefix}iB": 1024.0**power for power, prefix in enumerate("KMGT", 1)},
}
_RATES = {
    **{f"{unit}/s": size for unit, size in _BYTES.items() if unit},
    **{f"{prefix}bit/s": 1000.0**power / 8 for power, prefix in enumerate(["", *"kMGT"])},
}


def seconds(option: str, text: str) -> float:
    """Seconds of "2.1ms"; a unit is needed."""
    return _quantity(option, text, _SECONDS, "a time with a unit (us, ms, s), as in 2.1ms")


def byte_count(option: str, text: str) -> float:
    """Bytes of "100MB" or "1e8"."""
    return _quantity(option, text, _BYTES, "bytes (B, kB, MB, GB, MiB, GiB), as in 100MB")


def bytes_per_second(option: str, text: str) -> float:
    """Bytes per second of "10Gbit/s" or "1.25GB/s"; a unit is needed, and never 0."""
    expected = "a rate above 0 with a unit (MB/s, GB/s, Mbit/s, Gbit/s), as in 10Gbit/s"
    rate = _quantity(option, text, _RATES, expected)
    if rate == 0:
        raise OptionError(f"{option}: expected {expected}, got {text!r}.")
    return rate


def parameter_count(option: str, text: str) -> float:
    """The number of "25M" or "1.3B" parameters."""
    return _quantity(option, text, _COUNTS, "a number of parameters, as in 25M or 1.3B")


def share(option: str, text: str) -> float:
    """The share of "0.02" or "2%", below 1."""
    expected = "a share from 0 to below 1, as in 0.02"
    value = _quantity(option, text, {"": 1.0, "%": 0.01}, expected)
    if value >= 1:
        raise OptionError(f"{option}: expected {expected}, got {text!r}.")
    return value


def whole_number(option: str, text: str, *, least: int) -> int:
    """The number of "64"."""
    if not _is_whole(text, least):
        raise OptionError(f"{option}: expected a whole number of at least {least}, got {text!r}.")
    return _not_above(MOST_ROWS, option, int(text))


def whole_numbers(option: str, text: str, *, least: int) -> tuple[int, ...]:
    """The numbers of "64,128,256"."""
    parts = text.split(",")
    if not all(_is_whole(part, least) for part in parts):
        raise OptionError(
            f"{option}: expected a whole number of at least {least}, or several with commas between them, got {text!r}."
        )
    return tuple(_not_above(MOST_ROWS, option, int(part)) for part in parts)


def _is_whole(text: str, least: int) -> bool:
    return re.fullmatch(r"\s*[0-9]{1,100}\s*", text) is not None and int(text) >= least


def _not_above(most: int, option: str, number: int) -> int:
    if number > most:
        raise OptionError(f"{option}: expected at most {most:,}, got {number:,}.")
    return number


def _quantity(option: str, text: str, units: Mapping[str, float], expected: str) -> float:
    match = re.fullmatch(
        r"\s*((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)\s*([^\d\s]*)\s*", text
    )
    factor = None if match is None else units.get(match.group(2))
    if match is None or factor is None or not math.isfinite(float(match.group(1)) * factor):
        raise OptionError(f"{option}: expected {expected}, got {text!r}.")
    return float(match.group(1)) * factor
