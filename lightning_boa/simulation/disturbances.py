"""Noise and throttling: by which factor a worker's step takes longer than its time model says."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lightning_boa.errors import OptionError
from lightning_boa.simulation.cluster import Cluster

BLOCK = 64


class Disturbances:
    """The factor of any step of any worker.

    It depends on the seed, the worker and the step alone: not on what else was drawn, nor on the other workers.
    """

    def __init__(self, cluster: Cluster, seed: int) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**64:
            raise OptionError(f"seed: expected a whole number from 0 to 2**64 - 1, got {seed!r}")
        self._cluster = cluster
        self._seed = seed
        self._noise = np.broadcast_to(cluster.noise, (cluster.workers,)).tolist()
        self._blocks: dict[int, tuple[int, list[float]]] = {}
        self._all: tuple[int, NDArray[np.float64]] | None = None

    def of(self, worker: int, step: int) -> float:
        """The factor of one step of one worker, fast where a worker's steps rise."""
        number = step // BLOCK
        block = self._blocks.get(worker)
        if block is None or block[0] != number:
            block = number, self._block(worker, number).tolist()
            self._blocks[worker] = block
        return block[1][step % BLOCK]

    def of_all(self, step: int) -> NDArray[np.float64]:
        """The factors of all workers in one step, shape ``(workers,)``."""
        number, place = divmod(step, BLOCK)
        if self._all is None or self._all[0] != number:
            workers = range(self._cluster.workers)
            block = np.array([self._block(each, number) for each in workers])
            self._all = number, np.ascontiguousarray(block.T)
        factors: NDArray[np.float64] = self._all[1][place]
        return factors

    def _block(self, worker: int, number: int) -> NDArray[np.float64]:
        factors = np.ones(BLOCK)
        steps = number * BLOCK + np.arange(BLOCK)
        for first, factor in sorted(self._cluster.throttle.get(worker, {}).items()):
            factors[steps >= first] = factor
        noise = self._noise[worker]
        if noise == 0:
            return factors
        bits = np.random.Philox(key=self._seed, counter=[0, 0, worker, number])
        normal = np.random.Generator(bits).standard_normal(BLOCK)
        return np.asarray(factors * np.exp(noise * normal), dtype=np.float64)
