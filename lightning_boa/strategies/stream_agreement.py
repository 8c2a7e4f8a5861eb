"""Whether all ranks have a next batch, and the rows of all of them."""

from __future__ import annotations

import torch
import torch.distributed as dist

from lightning_boa.data import Together
from lightning_boa.profiling import host_group


class StreamAgreement:
    """One small all-reduce on the host for each step, between ranks that each read a loader of their own.

    To be made on all ranks at the same point: where the process group has no CPU tensors, a second one is opened.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        self._rank = rank
        self._world_size = world_size
        self._is_alone = world_size == 1
        self._group = None if self._is_alone else host_group()

    def __call__(self, rows: int | None) -> Together:
        """`rows` of this rank's next batch, None at its end."""
        figures = torch.zeros(self._world_size + 1, dtype=torch.int64)
        figures[self._rank] = rows is None
        figures[-1] = rows or 0
        if not self._is_alone:
            dist.all_reduce(figures, group=self._group)
        *ended, step_rows = figures.tolist()
        return Together(tuple(rank for rank, has in enumerate(ended) if has), step_rows)
