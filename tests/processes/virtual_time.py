"""Time that a test moves."""

from __future__ import annotations


class VirtualTime:
    """A clock that only sleeping moves; each rank has its own."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
