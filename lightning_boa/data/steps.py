"""How an epoch is cut into steps: every B rows of a global order, or every n batches of a user's batch sampler."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, Protocol

import numpy as np

from lightning_boa.data.order import (
    GlobalOrder,
    Indices,
    agreed_randomness,
    as_indices,
    length_of,
    name_of,
    set_epoch,
)
from lightning_boa.errors import LoaderError

MOST_UNSIZED = 1 << 20


class DrawnEpoch(Protocol):
    """The rows of one epoch by position, and where its steps begin and end."""

    @property
    def indices(self) -> Indices: ...

    @property
    def steps(self) -> int:
        """Steps of the epoch."""

    def bounds(self, step: int) -> tuple[int, int]:
        """The first position of a step, and the first position behind it."""


class Steps(Protocol):
    """What is known of all epochs, and how one is drawn."""

    @property
    def global_batch_size(self) -> int:
        """Rows of a full step over all ranks."""

    @property
    def short_rows(self) -> int | None:
        """Rows of a short last step, 0 where there is none; None where steps differ from each other anyway."""

    def __len__(self) -> int:
        """Steps in an epoch, as far as it can be said before one is drawn."""

    def draw(self, seed: int, epoch: int) -> DrawnEpoch:
        """Equal arguments give equal steps on every rank."""


@dataclass(frozen=True)
class EvenSteps:
    """Step s covers positions [s B, (s + 1) B) of a global order.

    Args:
        order: rows by position.
        global_batch_size: B, rows of a step over all ranks.
        drop_last: leave out a last step of fewer than B rows.

    Attributes:
        rows: of an epoch, as the order says at the start; it must keep to them.

    Raises:
        LoaderError: a global batch without rows.
    """

    order: GlobalOrder
    global_batch_size: int
    drop_last: bool
    rows: int = field(init=False)

    def __post_init__(self) -> None:
        if self.global_batch_size < 1:
            raise LoaderError(
                "expected a global batch of at least one row, got "
                f"global_batch_size={self.global_batch_size}"
            )
        object.__setattr__(self, "rows", len(self.order))

    @property
    def short_rows(self) -> int:
        return 0 if self.drop_last else self.rows % self.global_batch_size

    def __len__(self) -> int:
        return self.rows // self.global_batch_size + (self.short_rows > 0)

    def draw(self, seed: int, epoch: int) -> DrawnEpoch:
        """The rows of an epoch.

        Raises:
            LoaderError: as many rows as at the start of training are expected, and others come.
        """
        indices = self.order.draw(seed, epoch)
        if len(indices) != self.rows:
            raise LoaderError(
                f"expected {self.rows} rows in every epoch, as at the start of training, got {len(indices)} in"
                f" epoch {epoch}. Let the sampler have the same length always: the number of steps must be known"
                " before an epoch begins."
            )
        return _EvenEpoch(indices, len(self), self.global_batch_size)


@dataclass(frozen=True)
class _EvenEpoch:
    indices: Indices
    steps: int
    global_batch_size: int

    def bounds(self, step: int) -> tuple[int, int]:
        start = step * self.global_batch_size
        return start, min(start + self.global_batch_size, len(self.indices))


@dataclass(frozen=True, eq=False)
class BatchListSteps:
    """Step s holds the next `batches_per_step` lists of a user's batch sampler, one after the other.

    The sampler is drawn once an epoch under generators that all ranks agree on, as `SampledOrder` does. Its length is
    only believed until it is drawn: an epoch ends with its last list.

    Args:
        batch_sampler: what yields lists of rows, of any size.
        batches_per_step: n, the ranks with which the training began.
        batch_size: rows of a usual list.
    """

    batch_sampler: Iterable[Sequence[Any]]
    batches_per_step: int
    batch_size: int

    @property
    def short_rows(self) -> None:
        return None

    @property
    def global_batch_size(self) -> int:
        return self.batch_size * self.batches_per_step

    def __len__(self) -> int:
        lists = length_of(self.batch_sampler)
        if lists is None:
            raise TypeError(f"{name_of(self.batch_sampler)} has no length")
        return -(-lists // self.batches_per_step)

    def draw(self, seed: int, epoch: int) -> DrawnEpoch:
        """The rows of an epoch.

        Raises:
            LoaderError: the sampler yields something else than lists with rows.
        """
        set_epoch(self.batch_sampler, epoch)
        with agreed_randomness(seed, epoch, self.batch_sampler):
            most = max(MOST_UNSIZED, 2 * (length_of(self.batch_sampler) or 0))
            lists = [self._rows_of(rows) for rows in islice(self.batch_sampler, most + 1)]
        if len(lists) > most:
            raise LoaderError(
                f"expected {name_of(self.batch_sampler)} to end, got more than {most} batches in an epoch. Let it"
                " end, or give it a __len__."
            )
        ends = np.cumsum([0, *map(len, lists)])
        step_ends = [*ends[: -1 : self.batches_per_step].tolist(), int(ends[-1])]
        return _ListedEpoch(as_indices(chain.from_iterable(lists)), tuple(step_ends))

    def _rows_of(self, rows: Any) -> Sequence[Any]:
        if isinstance(rows, (str, bytes)) or not hasattr(rows, "__len__") or len(rows) == 0:
            raise LoaderError(
                f"expected {name_of(self.batch_sampler)} to yield lists of rows, got {rows!r}. Yield at least one row"
                " at a time, in a list; or split the data yourself with Trainer(use_distributed_sampler=False)."
            )
        return rows.tolist() if hasattr(rows, "tolist") else list(rows)


@dataclass(frozen=True)
class _ListedEpoch:
    indices: Indices
    ends: tuple[int, ...]

    @property
    def steps(self) -> int:
        return len(self.ends) - 1

    def bounds(self, step: int) -> tuple[int, int]:
        return self.ends[step], self.ends[step + 1]
