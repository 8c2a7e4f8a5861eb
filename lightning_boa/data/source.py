"""What a user's DataLoader says about its rows: their order or their batches, and how many a batch has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)
from torch.utils.data.distributed import DistributedSampler

from lightning_boa.data.loader import original_loader
from lightning_boa.data.order import (
    GlobalOrder,
    SampledOrder,
    length_of,
    name_of,
    order_of,
    refuse_own_split,
)
from lightning_boa.data.steps import BatchListSteps, EvenSteps, Steps
from lightning_boa.errors import LoaderError


@dataclass(frozen=True)
class RowSource:
    """A loader that makes batches of `batch_size` rows in a global order."""

    loader: DataLoader[Any]
    order: GlobalOrder
    batch_size: int
    drop_last: bool

    has_usual_size = True

    @property
    def length(self) -> int:
        """Rows in an epoch."""
        return len(self.order)

    @property
    def sampling(self) -> str:
        """How rows are chosen, in words."""
        drawn = f" of {name_of(self.loader.sampler)}" if self.needs_comparison else ""
        return f"{type(self.order).__name__}{drawn}, drop_last={self.drop_last}"

    @property
    def needs_comparison(self) -> bool:
        """Whether ranks could draw different orders from it."""
        return isinstance(self.order, SampledOrder)

    def steps(self, global_batch_size: int, batches_per_step: int) -> Steps:
        """Steps of `global_batch_size` rows."""
        return EvenSteps(self.order, global_batch_size, self.drop_last)

    def all_steps(self, global_batch_size: int, batches_per_step: int) -> Steps:
        """The same with the short last one."""
        return EvenSteps(self.order, global_batch_size, drop_last=False)


@dataclass(frozen=True)
class BatchSource:
    """A loader whose batches are lists of rows that a sampler of the user's decides.

    `batch_size` are the rows of a usual list; where `has_usual_size` is false nothing is known of them, and it is 1.
    """

    loader: DataLoader[Any]
    batch_sampler: Iterable[Sequence[Any]]
    batch_size: int
    has_usual_size: bool

    needs_comparison = True

    @property
    def length(self) -> int | None:
        """Batches in an epoch, as far as the sampler knows."""
        return length_of(self.batch_sampler)

    @property
    def sampling(self) -> str:
        """How rows are chosen, in words."""
        return f"batches of {name_of(self.batch_sampler)}"

    def steps(self, global_batch_size: int, batches_per_step: int) -> Steps:
        """Steps of `batches_per_step` batches."""
        return BatchListSteps(self.batch_sampler, batches_per_step, self.batch_size)

    all_steps = steps


Source: TypeAlias = RowSource | BatchSource

_OF_ROWS = (SequentialSampler, RandomSampler, DistributedSampler)


def source_of(loader: Any) -> Source:
    """Read a user's loader, also behind a twin of it, without drawing anything.

    Raises:
        LoaderError: it has no rows whose order could be split exactly, or is no loader of torch.
    """
    user = original_loader(loader)
    _check(user)
    batch_sampler = user.batch_sampler
    if type(batch_sampler) is BatchSampler:
        order = order_of(batch_sampler.sampler)
        return RowSource(user, order, int(batch_sampler.batch_size), bool(batch_sampler.drop_last))
    lists: Any = user.sampler if batch_sampler is None else batch_sampler
    if batch_sampler is None and type(lists) in _OF_ROWS:
        raise LoaderError(
            f"expected a sampler that yields lists of rows beside batch_size=None, got {name_of(lists)}: each item of"
            " the data set is then a whole batch, which cannot be split among the ranks. Give a batch_size and let the"
            " data set yield rows, pass sampler=BatchSampler(…), or split the data yourself with"
            " Trainer(use_distributed_sampler=False)."
        )
    refuse_own_split(lists)
    refuse_own_split(getattr(lists, "sampler", None))
    size = getattr(lists, "batch_size", None)
    if isinstance(size, int) and size > 0:
        return BatchSource(user, lists, size, has_usual_size=True)
    return BatchSource(user, lists, 1, has_usual_size=False)


def is_stream(loader: Any) -> bool:
    """Whether a loader gives no rows by number: an IterableDataset, or no loader of torch at all."""
    return not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset)


def makes_single_batches(loader: DataLoader[Any]) -> bool:
    """Whether each item of the data set is a batch of its own (batch_size=None), in an order of torch's."""
    return loader.batch_sampler is None and isinstance(loader.sampler, _OF_ROWS)


def _check(loader: object) -> None:
    if is_stream(loader):
        raise LoaderError(
            f"expected a torch.utils.data.DataLoader with a map-style data set, got {name_of(loader)}: a stream has no"
            " positions that could be split exactly."
        )
    if not getattr(loader, "in_order", True):
        raise LoaderError(
            "expected a loader that hands its batches out in order, got in_order=False: the "
            "ranks would take their rows from different steps. Leave in_order=True, or train with "
            'strategy="ddp".'
        )
