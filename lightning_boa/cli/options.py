"""Checks of the options in conf/: each names the option, what it expected and what came."""

from __future__ import annotations

import math
from collections.abc import Collection

from lightning_boa.errors import OptionError

START_METHODS = ("popen", "spawn", "fork", "forkserver")


def whole_number(option: str, value: object, *, least: int, most: int | None = None) -> int:
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or value < least
        or (most is not None and value > most)
    ):
        limit = "" if most is None else f" and at most {most}"
        raise OptionError(
            f"{option}: expected a whole number of at least {least}{limit}, got {value!r}."
        )
    return value


def yes_or_no(option: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise OptionError(f"{option}: expected true or false, got {value!r}.")
    return value


def number(
    option: str,
    value: object,
    *,
    above: float = -math.inf,
    least: float = -math.inf,
    below: float = math.inf,
) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not math.isfinite(value)
        or not above < value < below
        or value < least
    ):
        limits = [
            text
            for text, limit in (
                (f"above {above:g}", above),
                (f"of at least {least:g}", least),
                (f"below {below:g}", below),
            )
            if math.isfinite(limit)
        ]
        wanted = " ".join(["a number", " and ".join(limits)]).strip()
        raise OptionError(f"{option}: expected {wanted}, got {value!r}.")
    return float(value)


def one_of(option: str, value: object, names: Collection[str]) -> str:
    if not isinstance(value, str) or value not in names:
        raise OptionError(f"{option}: expected one of {', '.join(names)}, got {value!r}.")
    return value
