"""The loaders of each stage: a user's loader, and how the rows of its steps are shared out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader

from lightning_boa.data import Share, ShareBatchSampler, Source, Steps, boa_loader

Split = Callable[[int, int], Sequence[int]]


@dataclass(frozen=True)
class Sharing:
    """How this rank takes part: its number, the seed of the order, and who is told of drawn orders."""

    rank: int
    seed: int
    note_order: Callable[[int], object]

    def training(
        self,
        source: Source,
        steps: Steps,
        rows_of: Split,
        first_step: Callable[[], tuple[int, int]],
        deliver: Callable[[Share], object],
        *,
        begin: Callable[[], object],
        starts_again: Callable[[], bool | None],
        passes_of: Callable[[int, int], tuple[int, ...]] | None,
    ) -> tuple[DataLoader[Any], ShareBatchSampler]:
        """The twin that delivers this rank's part of each training step, and its sampler."""
        sampler = self._sampler(
            source, steps, rows_of, first_step, starts_again=starts_again, passes_of=passes_of
        )
        is_sized = source.length is not None
        twin = boa_loader(source.loader, sampler, deliver=deliver, begin=begin, sized=is_sized)
        return twin, sampler

    def evaluation(
        self, source: Source, steps: Steps, rows_of: Split, deliver: Callable[[Share], object]
    ) -> DataLoader[Any]:
        """The twin for validation and test: every row once, the same number of steps on all ranks."""
        sampler = self._sampler(source, steps, rows_of, _from_the_start)
        is_sized = source.length is not None
        return boa_loader(source.loader, sampler, deliver=deliver, sized=is_sized)

    def prediction(
        self,
        source: Source,
        steps: Steps,
        rows_of: Split,
        ranks: int,
        record: Callable[[ShareBatchSampler], Any],
    ) -> DataLoader[Any]:
        """The twin for predict: every row once; a rank leaves out the steps in which it has no rows."""
        sampler = self._sampler(source, steps, rows_of, _from_the_start, skip_ghosts=True)
        is_sized = steps.short_rows is not None and (source.length or 0) >= ranks
        return boa_loader(source.loader, record(sampler), sized=is_sized)

    def _sampler(
        self,
        source: Source,
        steps: Steps,
        rows_of: Split,
        first_step: Callable[[], tuple[int, int]],
        *,
        skip_ghosts: bool = False,
        starts_again: Callable[[], bool | None] | None = None,
        passes_of: Callable[[int, int], tuple[int, ...]] | None = None,
    ) -> ShareBatchSampler:
        compares_orders = source.needs_comparison and not skip_ghosts
        return ShareBatchSampler(
            steps,
            rank=self.rank,
            seed=self.seed,
            rows_of=rows_of,
            first_step=first_step,
            skip_ghosts=skip_ghosts,
            check_order=self.note_order if compares_orders else None,
            starts_again=starts_again,
            passes_of=passes_of,
        )


def _from_the_start() -> tuple[int, int]:
    return 0, 0
