"""The devices and links on which policies are simulated."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_boa.errors import OptionError
from lightning_boa.planning import (
    Buckets,
    LinearTime,
    OverlappedTime,
    RingAllReduce,
    TimeModel,
)

FORWARD_SHARE = 1 / 3


@dataclass(frozen=True)
class Links:
    """Each worker's link, and the one of a parameter server where a policy has one; the default costs nothing.

    Every link carries as much in one direction as in the other at the same time.

    Args:
        gradient_bytes: size of all gradients, and of all weights.
        bandwidth: bytes per second over a worker's link, a number or one per worker.
        latency: seconds of an empty message over a worker's link, a number or one per worker.
        server_bandwidth: bytes per second over the server's link, which all workers share.
        ready: the parts of the backward after which each of equally large buckets of gradients can be reduced, up to 1
            for the last; one bucket at the end unless given, so that nothing overlaps.

    Raises:
        OptionError: negative or non-finite bytes or latencies, no bandwidth.
        MeasurementError: parts that do not rise to 1.
    """

    gradient_bytes: float = 0.0
    bandwidth: float | Sequence[float] = math.inf
    latency: float | Sequence[float] = 0.0
    server_bandwidth: float = math.inf
    ready: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        for name in ("bandwidth", "latency"):
            object.__setattr__(self, name, _numbers(name, getattr(self, name)))
        for name in ("bandwidth", "server_bandwidth"):
            if not np.all(np.asarray(getattr(self, name)) > 0):
                raise OptionError(
                    f"{name}: expected bytes per second above 0, got {getattr(self, name)!r}"
                )
        for name in ("gradient_bytes", "latency"):
            value = np.asarray(getattr(self, name))
            if not np.all(np.isfinite(value) & (value >= 0)):
                raise OptionError(
                    f"{name}: expected finite numbers of at least 0, got {getattr(self, name)!r}"
                )
        Buckets(self.ready, (0.0,) * len(self.ready))

    def reduced_by(self, workers: Sequence[int]) -> OverlappedTime:
        """When a step of a ring of ``workers`` is over, by the seconds that the slowest of them computes.

        A third of these is the forward; the buckets are reduced beside the rest, one after another.
        """
        of_each = [self._of("bandwidth", workers), self._of("latency", workers)]
        part = self.gradient_bytes / len(self.ready)
        seconds = max(
            float(RingAllReduce(part, 1.0, latency).seconds(len(workers), bandwidth))
            for bandwidth, latency in np.unique(np.array(of_each).T, axis=0).tolist()
        )
        return OverlappedTime(
            LinearTime(0.0, FORWARD_SHARE),
            LinearTime(0.0, 1 - FORWARD_SHARE),
            Buckets(self.ready, (seconds,) * len(self.ready)),
        )

    def transfer_seconds(self, workers: int) -> NDArray[np.float64]:
        """Seconds that each worker's own link takes for all gradients, shape ``(workers,)``."""
        bandwidth, latency = (self._of(name, range(workers)) for name in ("bandwidth", "latency"))
        return latency + self.gradient_bytes / bandwidth

    @property
    def server_seconds(self) -> float:
        """Seconds that the server's link takes for all gradients of one worker."""
        return self.gradient_bytes / self.server_bandwidth

    def check(self, workers: int) -> None:
        """Raise OptionError unless there are as many links as workers."""
        for name in ("bandwidth", "latency"):
            value = getattr(self, name)
            if isinstance(value, tuple) and len(value) != workers:
                raise OptionError(
                    f"{name}: expected a number or one for each of {workers} workers, got {len(value)}"
                )

    def _of(self, name: str, workers: Sequence[int]) -> NDArray[np.float64]:
        value = np.asarray(getattr(self, name), dtype=np.float64)
        return value[list(workers)] if value.ndim else np.full(len(workers), value)


@dataclass(frozen=True)
class Cluster:
    """Workers with known times, what disturbs them, and the links between them.

    Args:
        time_models: seconds of a step of each worker, from its entry to the end of its backward.
        noise: standard deviation of the logarithm of a step's seconds, whose median the model tells; a number or one
            per worker.
        throttle: {worker: {step: factor}}: from this step on its steps last ``factor`` times as long, until another
            factor follows. Where workers do not step together, a worker's own steps count.
        failures: {worker: step}: the worker has no part in this step and all after it.
        restart_seconds: what it costs a synchronous policy to go on without a worker that has failed.
        links: between the workers.

    Raises:
        OptionError: no worker, lists of another length, a worker or step that does not exist, a factor that is not
            above 0, no worker that stays.
    """

    time_models: tuple[TimeModel, ...]
    noise: float | Sequence[float] = 0.0
    throttle: Mapping[int, Mapping[int, float]] = field(default_factory=dict)
    failures: Mapping[int, int] = field(default_factory=dict)
    restart_seconds: float = 0.0
    links: Links = field(default_factory=Links)

    def __post_init__(self) -> None:
        object.__setattr__(self, "time_models", tuple(self.time_models))
        if not self.time_models:
            raise OptionError("time_models: expected one for each worker, got none")
        noise = _numbers("noise", self.noise)
        noises = noise if isinstance(noise, tuple) else (noise,) * self.workers
        if len(noises) != self.workers or not all(
            math.isfinite(each) and each >= 0 for each in noises
        ):
            raise OptionError(
                f"noise: expected a finite number of at least 0 or one for each of {self.workers} workers, got "
                f"{self.noise!r}"
            )
        object.__setattr__(self, "noise", noises)
        for worker, factors in self.throttle.items():
            self._check_steps("throttle", worker, factors)
            if not all(math.isfinite(factor) and factor > 0 for factor in factors.values()):
                raise OptionError(
                    f"throttle: expected finite factors above 0 for worker {worker}, got {dict(factors)}"
                )
        for worker, step in self.failures.items():
            self._check_steps("failures", worker, (step,))
        if len(self.failures) == self.workers:
            raise OptionError(
                f"failures: expected a worker that stays, got {dict(self.failures)}, in which all end"
            )
        if not (math.isfinite(self.restart_seconds) and self.restart_seconds >= 0):
            raise OptionError(
                f"restart_seconds: expected a finite number of at least 0, got {self.restart_seconds!r}"
            )
        self.links.check(self.workers)

    @property
    def workers(self) -> int:
        return len(self.time_models)

    def alive(self, step: int) -> tuple[int, ...]:
        """The workers that take part in ``step``."""
        return tuple(
            worker for worker in range(self.workers) if self.failures.get(worker, step + 1) > step
        )

    def _check_steps(self, name: str, worker: int, steps: Any) -> None:
        if not (isinstance(worker, int) and 0 <= worker < self.workers) or not all(
            isinstance(step, int) and step >= 0 for step in steps
        ):
            raise OptionError(
                f"{name}: expected workers 0 to {self.workers - 1} and steps of at least 0, got worker {worker!r} with "
                f"{list(steps)}"
            )


def _numbers(name: str, value: float | Sequence[float]) -> float | tuple[float, ...]:
    try:
        if isinstance(value, int | float):
            return float(value)
        return tuple(float(each) for each in value)
    except (TypeError, ValueError):
        raise OptionError(
            f"{name}: expected a number or one for each worker, got {value!r}"
        ) from None
