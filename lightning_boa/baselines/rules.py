"""Which gradients enter which update of the weights: what tells one parameter server from another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Gradient:
    """A worker's gradient: over so many rows, at the weights after ``step`` updates."""

    worker: int
    step: int
    rows: int


@dataclass(frozen=True)
class Update:
    """What changed the weights after ``step`` updates: the gradients that entered, in the order of their arrival."""

    step: int
    gradients: tuple[Gradient, ...]


class Rule(Protocol):
    """Decides on each gradient that arrives."""

    def enters(self, gradient: Gradient, update: int) -> bool:
        """Whether it is a part of the update that is being made, the next after so many."""

    def is_complete(self, gradients: Sequence[Gradient]) -> bool:
        """Whether an update of these gradients is made."""

    def may_compute(self, worker: int) -> bool:
        """Whether a worker that has the newest weights may compute another gradient."""

    def begin_epoch(self) -> None:
        """Rows of another epoch are taken from here on."""

    def claimed(self, worker: int) -> None:
        """A worker has taken rows to compute a gradient of."""

    def rests(self, worker: int) -> None:
        """There were no more rows for a worker."""


class FirstGradients:
    """An update is made of the first gradients that arrive of those that were computed at the newest weights.

    After Chen, Pan, Monga, Bengio and Jozefowicz, "Revisiting Distributed Synchronous SGD" (2016).

    Args:
        wanted: how many; all others of the same step come late and are dropped.
    """

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted

    def enters(self, gradient: Gradient, update: int) -> bool:
        return gradient.step == update

    def is_complete(self, gradients: Sequence[Gradient]) -> bool:
        return len(gradients) == self._wanted

    def may_compute(self, worker: int) -> bool:
        return True

    def begin_epoch(self) -> None: ...

    def claimed(self, worker: int) -> None: ...

    def rests(self, worker: int) -> None: ...


class AsTheyArrive:
    """Each gradient is an update of its own.

    Args:
        workers: how many there are.
        most_ahead: by how many gradients of the epoch a worker may be ahead of the slowest one when it begins another
            (Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", 2013); None:
            any. A worker for which there are no more rows is not waited for.
    """

    def __init__(self, workers: int, most_ahead: int | None) -> None:
        self._workers = workers
        self._most_ahead = most_ahead
        self.begin_epoch()

    def begin_epoch(self) -> None:
        self._made = [0] * self._workers
        self._under_way = [0] * self._workers
        self._has_no_more = [False] * self._workers

    def enters(self, gradient: Gradient, update: int) -> bool:
        self._made[gradient.worker] += 1
        self._under_way[gradient.worker] = max(0, self._under_way[gradient.worker] - 1)
        return True

    def is_complete(self, gradients: Sequence[Gradient]) -> bool:
        return True

    def may_compute(self, worker: int) -> bool:
        if self._most_ahead is None:
            return True
        others = zip(self._made, self._has_no_more, self._under_way, strict=True)
        made = [made for made, has_no_more, under_way in others if under_way or not has_no_more]
        return self._made[worker] - min(made, default=self._made[worker]) <= self._most_ahead

    def claimed(self, worker: int) -> None:
        self._under_way[worker] += 1
        self._has_no_more[worker] = False

    def rests(self, worker: int) -> None:
        self._has_no_more[worker] = True
