"""`boa simulate`."""

from __future__ import annotations


def simulate() -> None:
    """Not there yet."""
