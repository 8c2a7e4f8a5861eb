"""Training in which every gradient changes the weights as it arrives."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from lightning_boa.errors import OptionError
from lightning_boa.planning.bounds import is_count
from lightning_boa.simulation.outcome import Simulated
from lightning_boa.simulation.server import Server
from lightning_boa.simulation.trial import Trial


@dataclass(frozen=True)
class Asynchronous:
    """A server applies each gradient as it arrives and sends its worker the newest weights; all have equal shares.

    Args:
        staleness: the most steps by which a worker may be ahead of the slowest one (Ho et al., "More Effective
            Distributed ML via a Stale Synchronous Parallel Parameter Server", 2013): one that has made so many more
            waits for it before it gets weights. None: nobody waits. A worker that has failed is not waited for.

    Raises:
        OptionError: a negative number.
    """

    staleness: int | None = None

    def __post_init__(self) -> None:
        if self.staleness is not None and not is_count(self.staleness):
            raise OptionError(
                f"staleness: expected None or a whole number of at least 0, got {self.staleness!r}"
            )

    @property
    def name(self) -> str:
        bound = "" if self.staleness is None else f", at most {self.staleness} ahead"
        return f"asynchronous{bound}"

    def simulate(self, trial: Trial) -> Simulated:
        server = Server(trial, _AsTheyArrive(trial, self.staleness))
        workers = trial.cluster.workers
        server.run(trial.steps * workers)
        return server.outcome(
            self.name,
            updates_per_step=workers,
            rows_per_step=None,
            plans=((0, trial.equal_rows),),
        )


class _AsTheyArrive:
    def __init__(self, trial: Trial, most_ahead: int | None) -> None:
        self._failures = trial.cluster.failures
        self._factor = trial.disturbances.of
        self._most_ahead = most_ahead
        self._rows = trial.equal_rows
        self._undisturbed: list[float] = trial.undisturbed_seconds(np.asarray(self._rows)).tolist()
        self._steps = [0] * trial.cluster.workers
        self._workers_at = Counter[int]()
        self._slowest = 0
        self._waiting: list[int] = []

    def begin(self, server: Server) -> None:
        for worker in range(len(self._rows)):
            if self._has_failed(worker):
                server.leave(worker, 0.0)
            else:
                self._workers_at[0] += 1
                server.compute(worker, self._seconds(worker), 0.0)

    def received(self, server: Server, worker: int, version: int, now: float) -> None:
        server.update([(worker, version, self._rows[worker])], now)
        self._workers_at[self._steps[worker]] -= 1
        self._steps[worker] += 1
        if self._has_failed(worker):
            server.leave(worker, now)
        else:
            self._workers_at[self._steps[worker]] += 1
            self._waiting.append(worker)
        self._let_go(server, now)

    def asked(self, server: Server, worker: int, now: float) -> None:
        raise AssertionError("nobody stops before its gradient is computed")

    def _let_go(self, server: Server, now: float) -> None:
        """Weights for all who wait no longer, in the order of their gradients."""
        most = self._most_ahead
        before = self._slowest
        while not self._workers_at[self._slowest]:
            del self._workers_at[self._slowest]
            self._slowest += 1
        newest = (
            self._waiting[-1:] if most is not None and before == self._slowest else self._waiting
        )
        for worker in list(newest):
            if most is None or self._steps[worker] - self._slowest <= most:
                self._waiting.remove(worker)
                server.send_weights(worker, self._seconds(worker), now)

    def _has_failed(self, worker: int) -> bool:
        failure = self._failures.get(worker)
        return failure is not None and self._steps[worker] >= failure

    def _seconds(self, worker: int) -> float:
        return self._undisturbed[worker] * self._factor(worker, self._steps[worker])
