"""Synchronous policies with a parameter server: all gradients of a step, or the first of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lightning_boa.errors import OptionError
from lightning_boa.planning import equal_split
from lightning_boa.planning.bounds import is_count
from lightning_boa.simulation.outcome import Simulated
from lightning_boa.simulation.server import Server
from lightning_boa.simulation.trial import Trial


@dataclass(frozen=True)
class ParameterServer:
    """A server that waits for the gradients of all workers under the equal split, and sends all of them the weights.

    Its link carries one message after another, in the order in which gradients arrive and in that of the workers back.
    """

    name: str = "parameter server"

    def simulate(self, trial: Trial) -> Simulated:
        return _train(self.name, trial, backups=0, notice_seconds=None)


@dataclass(frozen=True)
class BackupWorkers:
    """Every step takes the first gradients that arrive, all but ``backups`` of them, under the equal split.

    After Chen, Pan, Monga, Bengio and Jozefowicz, "Revisiting Distributed Synchronous SGD" (2016). A late gradient is
    dropped, and so are its rows; its worker goes on from the newest weights, into whatever step is under way then.

    Args:
        backups: how many workers a step does not wait for.
        notice_seconds: so long after the end of a step a late worker stops computing; None: it computes to the end, and
            notices when its gradient is refused.

    Raises:
        OptionError: a negative number; in `simulate` no worker that is waited for.
    """

    backups: int
    notice_seconds: float | None = None

    def __post_init__(self) -> None:
        if not is_count(self.backups):
            raise OptionError(
                f"backups: expected a whole number of at least 0, got {self.backups!r}"
            )
        notice = self.notice_seconds
        if notice is not None and not (math.isfinite(notice) and notice >= 0):
            raise OptionError(
                f"notice_seconds: expected None or a finite number of at least 0, got {notice!r}"
            )

    @property
    def name(self) -> str:
        return f"{self.backups} backup worker{'s' * (self.backups != 1)}"

    def simulate(self, trial: Trial) -> Simulated:
        if self.backups >= trial.cluster.workers:
            raise OptionError(
                f"backups: expected fewer than the {trial.cluster.workers} workers, got {self.backups}"
            )
        return _train(self.name, trial, backups=self.backups, notice_seconds=self.notice_seconds)


def _train(name: str, trial: Trial, *, backups: int, notice_seconds: float | None) -> Simulated:
    rule = _FirstGradients(trial, backups, notice_seconds)
    server = Server(trial, rule)
    server.run(trial.steps)
    return server.outcome(
        name, updates_per_step=1, rows_per_step=trial.global_batch_size, plans=rule.plans
    )


class _FirstGradients:
    def __init__(self, trial: Trial, backups: int, notice_seconds: float | None) -> None:
        self._trial = trial
        self._wanted = trial.cluster.workers - backups
        self._notice_seconds = notice_seconds
        self._ends = set(trial.cluster.failures.values())
        self._entered: list[int] = []
        self.plans: list[tuple[int, tuple[int, ...]]] = []
        self._begin_step(0)

    def begin(self, server: Server) -> None:
        for worker in range(self._trial.cluster.workers):
            if worker in self._alive:
                server.compute(worker, self._seconds(worker, 0), 0.0)
            else:
                server.leave(worker, 0.0)

    def received(self, server: Server, worker: int, version: int, now: float) -> None:
        if version < server.updates:
            self.asked(server, worker, now)
            return
        self._entered.append(worker)
        if len(self._entered) == self._needed:
            self._update(server, now)

    def asked(self, server: Server, worker: int, now: float) -> None:
        if worker in self._alive:
            server.send_weights(worker, self._seconds(worker, server.updates), now)
        else:
            server.leave(worker, now)

    def _update(self, server: Server, now: float) -> None:
        step, needed = server.updates, self._needed
        entered, self._entered = self._entered, []
        server.update([(worker, step, self._rows[worker]) for worker in entered], now)
        late = self._alive.difference(entered)
        self._begin_step(step + 1)
        if self._notice_seconds is not None:
            for worker in sorted(late):
                server.expect_question(worker, now + self._notice_seconds)
        pause = self._trial.cluster.restart_seconds if self._needed < needed else 0.0
        for worker in sorted(entered):
            self.asked(server, worker, now + pause * (worker in self._alive))

    def _begin_step(self, step: int) -> None:
        if step > 0 and step not in self._ends:
            return
        trial = self._trial
        alive = trial.cluster.alive(step)
        split = equal_split(len(alive), trial.global_batch_size).batch_sizes
        rows = np.zeros(trial.cluster.workers, dtype=np.int64)
        rows[np.asarray(alive)] = split
        self._alive = frozenset(alive)
        self._needed = min(self._wanted, len(alive))
        self._rows: Sequence[int] = rows.tolist()
        self._undisturbed: list[float] = trial.undisturbed_seconds(rows).tolist()
        self.plans.append((step, tuple(self._rows)))

    def _seconds(self, worker: int, step: int) -> float:
        return self._undisturbed[worker] * self._trial.disturbances.of(worker, step)
