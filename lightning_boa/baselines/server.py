"""The parameter server: takes gradients, makes updates of them, and keeps each until all workers have it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from threading import Condition

from torch import Tensor

from lightning_boa.baselines.rules import Gradient, Rule, Update

REMEMBERED_UPDATES = 100_000


class Server:
    """Lives on rank 0; one thread for each worker calls it, and waits in the call as the worker does.

    Args:
        rule: which gradients enter which update.
        workers: how many there are.
        patience: seconds after which a call that waits for other workers fails.

    Attributes:
        updates: the latest of the updates that were made.
        dropped: the latest of the gradients that came too late for one.
        used: how many gradients of each worker have entered an update.
    """

    def __init__(self, rule: Rule, workers: int, patience: float | None = None) -> None:
        self.updates: deque[Update] = deque(maxlen=REMEMBERED_UPDATES)
        self.dropped: deque[Gradient] = deque(maxlen=REMEMBERED_UPDATES)
        self.used = Counter[int]()
        self._rule = rule
        self._workers = workers
        self._patience = patience
        self._made = 0
        self._entered: list[Gradient] = []
        self._sum: Tensor | None = None
        self._kept: dict[int, Tensor] = {}
        self._taken = [0] * workers
        self._claims: dict[int, _Claims] = {}
        self._changed = Condition()
        self._error: BaseException | None = None

    @property
    def kept(self) -> int:
        """Updates that are kept, since some worker does not have them yet."""
        return len(self._kept)

    def push(self, gradient: Gradient, values: Tensor) -> list[Tensor]:
        """Take a gradient, already weighted; its worker waits for the update of the step that it was computed for.

        Returns:
            All updates since that step, oldest first: sums of weighted gradients.
        """
        with self._changed:
            self._receive(gradient, values)
            return self._updates_since(gradient.worker, gradient.step)

    def wait(self, worker: int, step: int) -> list[Tensor]:
        """The updates since ``step``, for a worker that computes nothing."""
        with self._changed:
            return self._updates_since(worker, step)

    def ask(self, worker: int, step: int) -> list[Tensor]:
        """Wait until the worker may compute (no updates are returned then), or there are updates since ``step``."""
        with self._changed:
            self._wait_until(lambda: self._made > step or self._rule.may_compute(worker))
            return self._take(worker) if self._made > step else []

    def claim(self, worker: int, epoch: int, chunks: int) -> int | None:
        """The number of the next of so many chunks of rows in an epoch, None where all are taken.

        Each worker has one for certain.
        """
        with self._changed:
            if epoch not in self._claims:
                self._claims[epoch] = _Claims(self._workers)
                self._rule.begin_epoch()
            chunk = self._claims[epoch].next_for(worker)
            if chunk < chunks:
                self._rule.claimed(worker)
                return chunk
            self._rule.rests(worker)
            self._changed.notify_all()
            return None

    def fail(self, error: BaseException) -> None:
        """Let every call end with this error: a worker has failed or is gone."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def check(self) -> None:
        """Raise what has gone wrong with a worker, if anything has."""
        if self._error is not None:
            raise RuntimeError(
                f"The parameter server has lost a worker (gloo): {self._error}"
            ) from self._error

    def _receive(self, gradient: Gradient, values: Tensor) -> None:
        if not self._rule.enters(gradient, self._made):
            self.dropped.append(gradient)
            return
        self.used[gradient.worker] += 1
        self._entered.append(gradient)
        self._sum = values.clone() if self._sum is None else self._sum.add_(values)
        if not self._rule.is_complete(self._entered):
            return
        self.updates.append(Update(self._made, tuple(self._entered)))
        self._kept[self._made] = self._sum
        self._entered, self._sum = [], None
        self._made += 1
        self._changed.notify_all()

    def _updates_since(self, worker: int, step: int) -> list[Tensor]:
        self._wait_until(lambda: self._made > step)
        return self._take(worker)

    def _take(self, worker: int) -> list[Tensor]:
        updates = [self._kept[step] for step in range(self._taken[worker], self._made)]
        self._taken[worker] = self._made
        for step in [step for step in self._kept if step < min(self._taken)]:
            del self._kept[step]
        return updates

    def _wait_until(self, is_so: Callable[[], bool]) -> None:
        if not self._changed.wait_for(lambda: self._error is not None or is_so(), self._patience):
            self.fail(TimeoutError(f"no gradient came for {self._patience:g} s"))
        self.check()


class _Claims:
    """Which chunk of an epoch is whose: one reserved for each worker, the others to whoever comes."""

    def __init__(self, workers: int) -> None:
        self._have_begun: set[int] = set()
        self._next = workers

    def next_for(self, worker: int) -> int:
        if worker not in self._have_begun:
            self._have_begun.add(worker)
            return worker
        self._next += 1
        return self._next - 1
