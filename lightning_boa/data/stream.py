"""Loaders that give no rows by number: each rank iterates its own, and all ranks stop together.

An `IterableDataset`, any iterable of batches, or a loader whose rows the user has distributed already
(`use_distributed_sampler=False`). What each rank's batch holds is counted as it comes.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from itertools import count
from threading import Lock
from typing import Any, NamedTuple

from torch.utils.data import DataLoader, IterableDataset

from lightning_boa.data.loader import Twin, original_loader, twin_of
from lightning_boa.data.order import length_of, name_of
from lightning_boa.data.sampler import Share
from lightning_boa.errors import LoaderError


class Together(NamedTuple):
    """What all ranks know of a step: which of them have no batch any more, and the rows of all."""

    ended: tuple[int, ...]
    step_rows: int


def stream_loader(
    loader: Any,
    *,
    agree: Callable[[int | None], Together],
    next_step: Callable[[], int],
    deliver: Callable[[Share], object],
    begin: Callable[[], object],
    count_rows: Callable[[Any], int | None],
    needs_rows: bool = True,
    requests: RowRequests | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Any:
    """A loader like `loader` that ends on all ranks at the first end of any.

    It is an instance of the loader's own class where that is a DataLoader's, and keeps its attributes. Rows are counted
    where they are collated; where a user's class stands between, or nothing is collated, by `count_rows`.

    Args:
        loader: a DataLoader, or any iterable of batches.
        agree: (rows of this rank's next batch, None at its end) -> what all ranks know; a collective.
        next_step: the training step that the first batch of an iteration belongs to.
        deliver: is given the share of each batch.
        begin: is called when an iteration begins, before its first batch.
        count_rows: the rows that a batch shows, None if it shows none.
        needs_rows: refuse a batch that shows none. Else it counts as one row.
        requests: how many rows this rank fetches in each step, where `can_be_planned`. None: the loader's own batches.
        clock: seconds, for the time spent waiting for a batch.

    Raises:
        LoaderError: while iterating, a batch whose rows are needed and cannot be counted.
    """
    own = {
        "_boa_agree": agree,
        "_boa_next_step": next_step,
        "_boa_deliver": deliver,
        "_boa_begin": begin,
        "_boa_count_rows": count_rows,
        "_boa_needs_rows": needs_rows,
        "_boa_clock": clock,
        "_boa_counts": False,
    }
    if not isinstance(loader, DataLoader):
        kind = _SharedIterable if length_of(loader) is None else _SharedSized
        return kind(loader, own)
    user = original_loader(loader)
    if type(user).__iter__ is DataLoader.__iter__ and user.batch_sampler is not None:
        own.update(collate_fn=CountingCollate(user.collate_fn), _boa_counts=True)
    if requests is not None:
        own.update(batch_sampler=requests)
    return twin_of(user, own, _StreamTwin)


def can_be_planned(loader: Any) -> bool:
    """Whether each rank may fetch any number of rows: a stream of single rows that torch collates."""
    return (
        isinstance(loader, DataLoader)
        and isinstance(loader.dataset, IterableDataset)
        and loader.batch_sampler is not None
        and type(loader).__iter__ is DataLoader.__iter__
    )


class CountingCollate:
    """Collates as the user's function does, and gives the number of rows with the batch."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self.collate = collate

    def __call__(self, rows: list[Any]) -> tuple[int, Any]:
        return len(rows), self.collate(rows)


class RowRequests:
    """In place of a batch sampler: for each step a list as long as the rows that are wanted."""

    def __init__(self, rows_of_step: Callable[[int], int], next_step: Callable[[], int]) -> None:
        self.handed_out = -1
        self.lock = Lock()
        self._rows_of_step = rows_of_step
        self._next_step = next_step

    def __iter__(self) -> Iterator[list[None]]:
        for step in count(self._next_step()):
            with self.lock:
                rows = self._rows_of_step(step)
                self.handed_out = step
            yield [None] * rows


class _StopsTogether:
    """The iteration that a twin and a wrapped iterable have in common."""

    _boa_agree: Callable[[int | None], Together]
    _boa_next_step: Callable[[], int]
    _boa_deliver: Callable[[Share], object]
    _boa_begin: Callable[[], object]
    _boa_count_rows: Callable[[Any], int | None]
    _boa_needs_rows: bool
    _boa_clock: Callable[[], float]
    _boa_counts: bool

    def _shared(self, batches: Iterator[Any]) -> Iterator[Any]:
        self._boa_begin()
        first = self._boa_next_step()
        for step in count(first):
            asked = self._boa_clock()
            batch = next(batches, _END)
            wait = self._boa_clock() - asked
            rows, shown, batch = (None, 0, None) if batch is _END else self._counted(batch)
            together = self._boa_agree(rows)
            if rows is None or together.ended:
                self._check_end(together, step - first, has_more=rows is not None)
                return
            self._boa_deliver(Share(step, rows, together.step_rows, shown, wait))
            yield batch

    def _check_end(self, together: Together, delivered: int, *, has_more: bool) -> None:
        """Raises on every rank alike: one that went on would wait for the others."""
        ended = together.ended
        if together.step_rows and not delivered:
            raise LoaderError(
                f"expected a batch on every rank, got none on {list(ended)}: all ranks stop at the first end of any."
                " Give each rank a part of the stream."
            )
        if has_more:
            warnings.warn(
                f"boa: the streams of ranks {list(ended)} ended first, after {delivered} batches; what others had left"
                " is not used in this epoch.",
                stacklevel=2,
            )

    def _counted(self, batch: Any) -> tuple[int, int, Any]:
        """Rows to count, rows that the batch is known to hold (0: not known), and the batch."""
        if self._boa_counts:
            rows, batch = batch
            return rows, rows, batch
        shown = self._boa_count_rows(batch)
        if shown is not None:
            return shown, shown, batch
        if self._boa_needs_rows:
            raise LoaderError(
                f"expected batches whose tensors share one leading size, the number of rows, got {name_of(batch)}"
                " without it: a rank's loss is weighted by its rows. Let a DataLoader collate the rows (batch_size=n,"
                " collate_fn), give batch_weight a function of the batch that says what its loss is a mean over, or"
                ' train with strategy="ddp".'
            )
        return 1, 0, batch


_END = object()


class _StreamTwin(_StopsTogether, Twin):
    """Delivers this rank's own batches, or as many rows of its own stream as its share has."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        return self._shared(super().__iter__())


class _SharedIterable(_StopsTogether):
    """Any iterable of batches; everything but its iteration is the iterable's own."""

    def __init__(self, batches: Any, own: dict[str, Any]) -> None:
        self.__dict__.update(own, _boa_batches=batches)

    def __iter__(self) -> Iterator[Any]:
        return self._shared(iter(self._boa_batches))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.__dict__["_boa_batches"], name)


class _SharedSized(_SharedIterable):
    def __len__(self) -> int:
        return len(self._boa_batches)
