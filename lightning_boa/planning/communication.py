"""How long the workers of a step take to average their gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_boa.errors import MeasurementError, OptionError
from lightning_boa.planning.bounds import is_count


@runtime_checkable
class Communication(Protocol):
    """Seconds that a set of workers adds to a step, by its size and its slowest link."""

    def links(self, workers: int) -> NDArray[np.float64]:
        """How fast each worker's link is, in any unit; shape ``(workers,)``."""

    def seconds(self, sizes: ArrayLike, slowest_link: float) -> NDArray[np.float64]:
        """Seconds for sets of ``sizes`` workers (any shape) of which one has ``slowest_link``.

        A faster slowest link must not take longer.
        """


@dataclass(frozen=True)
class RingAllReduce:
    """``2 (k - 1) (latency + gradient_bytes / (k bandwidth))`` seconds for k workers in a ring.

    Each worker sends 2 (k - 1) messages of a k-th of the gradients (Patarasuk and Yuan, 2009); the
    slowest link of the ring decides. ``gradient_bytes`` is the size of all gradients, ``bandwidth``
    bytes per second over a worker's link, one way, one number or one per worker, and ``latency``
    the seconds of an empty message.

    Raises:
        MeasurementError: a value that is not finite, a negative size or latency, no bandwidth.
    """

    gradient_bytes: float
    bandwidth: float | Sequence[float]
    latency: float = 0.0

    def __post_init__(self) -> None:
        for name in ("gradient_bytes", "latency"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise MeasurementError(
                    f"RingAllReduce: {name} must be finite and >= 0, got {value!r}"
                )
        links = np.asarray(self.bandwidth, dtype=np.float64)
        if links.ndim > 1 or links.size == 0 or not np.all(np.isfinite(links) & (links > 0)):
            raise MeasurementError(
                "RingAllReduce: bandwidth must be finite bytes per second > 0, one number or one "
                f"per worker, got {self.bandwidth!r}"
            )
        plain = tuple(links.tolist()) if links.ndim else float(links)
        object.__setattr__(self, "bandwidth", plain)

    def links(self, workers: int) -> NDArray[np.float64]:
        """Bytes per second of each worker's link, shape ``(workers,)``.

        Raises:
            OptionError: bandwidths of another number of workers.
        """
        links = np.asarray(self.bandwidth, dtype=np.float64)
        if links.ndim and links.size != workers:
            raise OptionError(
                f"bandwidth: expected one number or one for each of {workers} workers, "
                f"got {links.size}"
            )
        return np.broadcast_to(links, (workers,))

    def seconds(self, sizes: ArrayLike, slowest_link: float) -> NDArray[np.float64]:
        """Seconds for rings of ``sizes`` workers (any shape), the slowest link in bytes per second."""
        workers = np.asarray(sizes, dtype=np.float64)
        message = self.latency + self.gradient_bytes / workers / slowest_link
        return np.asarray(2.0 * (workers - 1.0) * message, dtype=np.float64)


@dataclass(frozen=True, init=False)
class MeasuredAllReduce:
    """Measured seconds at some sizes of the set; a single worker has nothing to exchange.

    Between them seconds are a straight line over ``(k - 1) / k``, which is how the bytes grow that
    each of k workers sends: a single measurement is enough to ask for less workers.
    All links count as alike.

    Raises:
        MeasurementError: no measurement, a size below 2, or seconds that are negative or not finite.
    """

    sizes: tuple[int, ...]
    seconds_at: tuple[float, ...]

    def __init__(self, seconds: Mapping[int, float]) -> None:
        if not seconds or not all(is_count(size) and size >= 2 for size in seconds):
            raise MeasurementError(
                "MeasuredAllReduce: expected seconds by the number of workers, whole numbers >= 2, "
                f"got {dict(seconds)}"
            )
        if not all(math.isfinite(value) and value >= 0 for value in seconds.values()):
            raise MeasurementError(
                f"MeasuredAllReduce: seconds must be finite and >= 0, got {dict(seconds)}"
            )
        sizes = sorted(seconds)
        object.__setattr__(self, "sizes", tuple(int(size) for size in sizes))
        object.__setattr__(self, "seconds_at", tuple(float(seconds[size]) for size in sizes))

    def links(self, workers: int) -> NDArray[np.float64]:
        """The same for all workers.

        Raises:
            OptionError: so many workers were not measured.
        """
        if workers > self.sizes[-1]:
            raise OptionError(
                f"communication: expected seconds measured with at least {workers} workers, "
                f"got {list(self.sizes)}; measure all of them together"
            )
        return np.ones(workers)

    def seconds(self, sizes: ArrayLike, slowest_link: float = 1.0) -> NDArray[np.float64]:
        """Seconds for sets of ``sizes`` workers (any shape)."""
        known = np.array([1, *self.sizes], dtype=np.float64)
        asked = np.asarray(sizes, dtype=np.float64)
        part, known_part = (asked - 1.0) / asked, (known - 1.0) / known
        return np.asarray(np.interp(part, known_part, [0.0, *self.seconds_at]), dtype=np.float64)


@dataclass(frozen=True)
class LinkedAllReduce:
    """Measured seconds of workers whose links differ: a set takes ``among`` seconds over its slowest link's speed.

    ``speeds`` says how many times as fast as the slowest link of all each worker's is, ``among`` what sets take that
    have that slowest link.

    Raises:
        MeasurementError: speeds that are not finite and above 0.
    """

    speeds: tuple[float, ...]
    among: MeasuredAllReduce

    def __post_init__(self) -> None:
        if not self.speeds or not all(math.isfinite(each) and each > 0 for each in self.speeds):
            raise MeasurementError(
                "LinkedAllReduce: speeds must be finite and > 0, one per worker, "
                f"got {list(self.speeds)}"
            )

    def links(self, workers: int) -> NDArray[np.float64]:
        """How many times as fast as the slowest one each worker's link is, shape ``(workers,)``.

        Raises:
            OptionError: speeds of another number of workers.
        """
        if len(self.speeds) != workers:
            raise OptionError(
                f"speeds: expected one for each of {workers} workers, got {len(self.speeds)}"
            )
        return np.asarray(self.speeds, dtype=np.float64)

    def seconds(self, sizes: ArrayLike, slowest_link: float) -> NDArray[np.float64]:
        """Seconds for sets of ``sizes`` workers (any shape), the slowest link being so many times as fast."""
        return self.among.seconds(sizes) / slowest_link
