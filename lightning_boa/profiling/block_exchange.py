"""The figures of a block of watched steps, exchanged while the next step runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from lightning_boa.planning import BLOCK_STEPS, Block, block_of


class BlockFigures(NamedTuple):
    """What all ranks know of a block.

    ``ratios`` are measured over modelled seconds, ranks x steps, NaN where nothing was measured; ``periods`` and
    ``loader_waits`` are each rank's median seconds; ``wants_change`` is what rank 0 has said of the block before.
    """

    wants_change: bool
    ratios: NDArray[np.float64]
    periods: NDArray[np.float64]
    loader_waits: NDArray[np.float64]

    def block_from(self, first_step: int) -> Block | None:
        """The block of steps that begins with ``first_step``; None where too little was measured."""
        if not np.isfinite(self.periods).all():
            return None
        return block_of(
            self.ratios,
            period=float(self.periods.max()),
            loader_wait=float(self.loader_waits.max()),
            first_step=first_step,
        )


class BlockExchange:
    """One small all-gather for each block, 64 bytes a rank, that nobody waits for while it runs.

    Args:
        world_size: ranks.
        group: of all ranks on the host; None: the default one.
    """

    def __init__(self, world_size: int, group: Any) -> None:
        self._group = group
        self._gathered = torch.empty((world_size, 3 + BLOCK_STEPS), dtype=torch.float64)
        self._work: Any = None

    def send(
        self, *, wants_change: bool, ratios: Sequence[float], period: float, loader_wait: float
    ) -> None:
        """Begin to give this rank's figures to all; every rank calls it at the same step."""
        mine = torch.tensor(
            [float(wants_change), period, loader_wait, *ratios], dtype=torch.float64
        )
        self._work = dist.all_gather(list(self._gathered), mine, group=self._group, async_op=True)

    @property
    def is_under_way(self) -> bool:
        """Whether figures have been sent and not yet received."""
        return self._work is not None

    def receive(self) -> BlockFigures:
        """The figures of all ranks; waits for them."""
        self._work.wait()
        self._work = None
        table = self._gathered.numpy().copy()
        return BlockFigures(bool(table[0, 0]), table[:, 3:], table[:, 1], table[:, 2])
