"""`boa plan`."""

from __future__ import annotations


def plan() -> None:
    """Not there yet."""
