"""The loaders of each stage: a user's loader, and how the rows of its steps are shared out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch.utils.data import DataLoader

from lightning_boa.data import (
    GlobalOrder,
    SampledOrder,
    Share,
    ShareBatchSampler,
    batch_size_of,
    boa_loader,
    drop_last_of,
    order_of,
    original_loader,
)

Split = Callable[[int, int], Sequence[int]]


@dataclass(frozen=True)
class LoaderSource:
    """What a user's loader says: its order, the rows of its batches, and whether a short last one is left out.

    Raises:
        LoaderError: a loader that cannot be split exactly.
    """

    loader: DataLoader[Any]
    order: GlobalOrder
    batch_size: int
    drop_last: bool

    @classmethod
    def of(cls, loader: Any) -> LoaderSource:
        """Read the user's loader, also behind a twin of it."""
        user = original_loader(loader)
        order = order_of(user)
        return cls(user, order, batch_size_of(user), drop_last_of(user))

    def last_rows(self, global_batch_size: int) -> int:
        """Rows of a short last step; 0 where there is none."""
        return 0 if self.drop_last else len(self.order) % global_batch_size


@dataclass(frozen=True)
class Sharing:
    """How this rank takes part: its number, the seed of the order, and who is told of deliveries and drawn orders."""

    rank: int
    seed: int
    deliver: Callable[[Share], object]
    note_order: Callable[[int], object]

    def training(
        self,
        source: LoaderSource,
        global_batch_size: int,
        rows_of: Split,
        first_step: Callable[[], tuple[int, int]],
    ) -> tuple[DataLoader[Any], ShareBatchSampler]:
        """The twin that delivers this rank's part of each training step, and its sampler."""
        sampler = self._sampler(source, global_batch_size, rows_of, first_step)
        return boa_loader(source.loader, sampler, deliver=self.deliver), sampler

    def evaluation(
        self, source: LoaderSource, global_batch_size: int, rows_of: Split
    ) -> DataLoader[Any]:
        """The twin for validation and test: every row once, the same number of steps on all ranks."""
        sampler = self._sampler(source, global_batch_size, rows_of, _from_the_start)
        return boa_loader(source.loader, sampler, deliver=self.deliver)

    def prediction(
        self,
        source: LoaderSource,
        global_batch_size: int,
        rows_of: Split,
        ranks: int,
        record: Callable[[ShareBatchSampler], Any],
    ) -> DataLoader[Any]:
        """The twin for predict: every row once; a rank leaves out the steps in which it has no rows."""
        sampler = self._sampler(
            replace(source, drop_last=False),
            global_batch_size,
            rows_of,
            _from_the_start,
            skip_ghosts=True,
        )
        return boa_loader(source.loader, record(sampler), sized=len(source.order) >= ranks)

    def _sampler(
        self,
        source: LoaderSource,
        global_batch_size: int,
        rows_of: Split,
        first_step: Callable[[], tuple[int, int]],
        skip_ghosts: bool = False,
    ) -> ShareBatchSampler:
        compares_orders = isinstance(source.order, SampledOrder) and not skip_ghosts
        return ShareBatchSampler(
            source.order,
            rank=self.rank,
            global_batch_size=global_batch_size,
            drop_last=source.drop_last,
            seed=self.seed,
            rows_of=rows_of,
            first_step=first_step,
            skip_ghosts=skip_ghosts,
            check_order=self.note_order if compares_orders else None,
        )


def _from_the_start() -> tuple[int, int]:
    return 0, 0
