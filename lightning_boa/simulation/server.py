"""Training through a parameter server: gradients arrive one after another, and a rule says what follows from each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import IntEnum
from heapq import heappop, heappush
from typing import Protocol

import numpy as np

from lightning_boa.simulation.outcome import Simulated
from lightning_boa.simulation.trial import Trial


class Rule(Protocol):
    """What the server does with gradients, and when it sends weights to whom."""

    def begin(self, server: Server) -> None:
        """All workers that take part have the first weights."""

    def received(self, server: Server, worker: int, version: int, now: float) -> None:
        """A gradient has arrived, computed with the weights after ``version`` updates."""

    def asked(self, server: Server, worker: int, now: float) -> None:
        """A worker has stopped computing and asks for the newest weights."""


class _Event(IntEnum):
    ARRIVES = 0
    ASKS = 1
    IS_RECEIVED = 2


class Server:
    """The clock, the links and the workers' computations; a `Rule` decides.

    A message first crosses the worker's own link, then waits for its turn on the server's, which carries one message
    after another in each direction; weights go the same way back.
    """

    def __init__(self, trial: Trial, rule: Rule) -> None:
        workers = trial.cluster.workers
        links = trial.cluster.links
        self.updates = 0
        self._trial = trial
        self._rule = rule
        self._transfer: list[float] = links.transfer_seconds(workers).tolist()
        self._server_seconds = links.server_seconds
        self._inbound_free = self._outbound_free = 0.0
        self._events: list[tuple[float, int, _Event, int, int, int]] = []
        self._number = 0
        self._tickets = [0] * workers
        self._computes = [(0.0, 0.0)] * workers
        self._computing = [0.0] * workers
        self._left_at: list[float | None] = [None] * workers
        self._gradients = [0] * workers
        self._update_times: list[float] = []
        self._rows: list[int] = []
        self._staleness: Counter[int] = Counter()

    def run(self, updates: int) -> None:
        """Go on until so many updates have been made."""
        self._rule.begin(self)
        received, asks, is_received = self._rule.received, _Event.ASKS, _Event.IS_RECEIVED
        events, tickets = self._events, self._tickets
        while self.updates < updates:
            self._trial.progress(self.updates / updates)
            now, _, kind, worker, version, ticket = heappop(events)
            if kind is is_received:
                received(self, worker, version, now)
            elif ticket != tickets[worker]:
                continue
            elif kind is asks:
                self._stop(worker, now)
            elif self._server_seconds == 0:
                received(self, worker, version, now)
            else:
                self._inbound_free = max(self._inbound_free, now) + self._server_seconds
                self._push(self._inbound_free, is_received, worker, version)

    def compute(self, worker: int, seconds: float, now: float) -> None:
        """The worker has the newest weights at ``now`` and computes for so many seconds."""
        self._tickets[worker] += 1
        self._computes[worker] = now, now + seconds
        self._computing[worker] += seconds
        arrives = now + seconds + self._transfer[worker]
        self._push(arrives, _Event.ARRIVES, worker, self.updates)

    def send_weights(self, worker: int, seconds: float, now: float) -> None:
        """The worker gets the newest weights, and then computes for so many seconds."""
        self._outbound_free = max(self._outbound_free, now) + self._server_seconds
        self.compute(worker, seconds, self._outbound_free + self._transfer[worker])

    def expect_question(self, worker: int, at: float) -> None:
        """The worker stops ``at`` this time and asks for the newest weights, if it still computes the same then."""
        self._push(at, _Event.ASKS, worker, self.updates)

    def leave(self, worker: int, now: float) -> None:
        """The worker takes part no more."""
        self._left_at[worker] = now

    def update(self, gradients: Sequence[tuple[int, int, int]], now: float) -> None:
        """The weights change by the gradients of (worker, version, rows)."""
        all_rows = 0
        for worker, version, rows in gradients:
            self._gradients[worker] += 1
            self._staleness[self.updates - version] += 1
            all_rows += rows
        self._rows.append(all_rows)
        self._update_times.append(now)
        self.updates += 1

    def outcome(
        self,
        name: str,
        *,
        updates_per_step: int,
        rows_per_step: int | None,
        plans: Sequence[tuple[int, tuple[int, ...]]],
    ) -> Simulated:
        """What has come out; ``rows_per_step`` are those that a step should have used, if any are dropped."""
        end = self._update_times[-1]
        times = self._update_times[updates_per_step - 1 :: updates_per_step]
        used = np.asarray(self._rows).reshape(-1, updates_per_step).sum(axis=1).tolist()
        return Simulated(
            policy=name,
            step_seconds=tuple(np.diff(times, prepend=0.0).tolist()),
            rows_used=tuple(used),
            rows_dropped=tuple(
                0 if rows_per_step is None else rows_per_step - rows for rows in used
            ),
            computing_seconds=tuple(
                seconds - max(0.0, until - max(begun, end))
                for seconds, (begun, until) in zip(self._computing, self._computes, strict=True)
            ),
            present_seconds=tuple(
                end if left is None else min(left, end) for left in self._left_at
            ),
            gradients_used=tuple(self._gradients),
            staleness=dict(sorted(self._staleness.items())),
            plans=tuple(plans),
        )

    def _stop(self, worker: int, now: float) -> None:
        _, until = self._computes[worker]
        if now < until:
            self._tickets[worker] += 1
            self._computing[worker] -= until - now
            self._computes[worker] = now, now
            self._rule.asked(self, worker, now)

    def _push(self, at: float, kind: _Event, worker: int, version: int) -> None:
        self._number += 1
        event = (at, self._number, kind, worker, version, self._tickets[worker])
        heappush(self._events, event)
