"""A loader whose rows go to whichever rank comes for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from lightning_boa.data import RowSource, as_list, loader_of
from lightning_boa.errors import UnsupportedError


class Chunks:
    """One batch for each update of an epoch: rows of this rank's own if it is to compute, else whatever it had last.

    The rows of an epoch, in the global order, are cut into chunks of the user's batch size; a rank claims the next one
    when it needs rows. Together the ranks use each row once.

    Args:
        source: the user's loader.
        seed: of the order.
        epoch: the present one.
        claim: the number of the next chunk of an epoch that has so many, None where none is left.
        is_behind: whether this rank has updates to go through before it computes.
    """

    def __init__(
        self,
        source: RowSource,
        *,
        workers: int,
        seed: int,
        epoch: Callable[[], int],
        claim: Callable[[int, int], int | None],
        is_behind: Callable[[], bool],
    ) -> None:
        self._source = source
        self._seed = seed
        self._epoch = epoch
        self._claim = claim
        self._is_behind = is_behind
        self._claimed: deque[int] = deque()
        self._batch: Any = None
        self._rows: int | None = None
        self._loader = loader_of(source.loader, _Lists(self._lists))
        if len(self) < workers:
            raise UnsupportedError(
                f"Expected at least a batch for each of {workers} ranks in an epoch, got {len(self)} of"
                f" {source.batch_size} rows. Take fewer ranks or smaller batches."
            )

    @property
    def rows(self) -> int | None:
        """Rows of the batch that this rank is to compute; None where it has none."""
        return self._rows

    @property
    def batch_size(self) -> int:
        """Rows of a full chunk."""
        return self._source.batch_size

    def take(self) -> int:
        """This rank computes the present batch; its rows."""
        assert self._rows is not None
        rows, self._rows = self._rows, None
        return rows

    def __len__(self) -> int:
        full, rest = divmod(self._source.length, self._source.batch_size)
        return full + (rest > 0 and not self._source.drop_last)

    def __iter__(self) -> Iterator[Any]:
        self._claimed.clear()
        self._rows = None
        batches = iter(self._loader)
        for update in range(len(self)):
            if self._rows is None and (update == 0 or not self._is_behind()):
                self._fetch(batches)
            yield self._batch

    def _fetch(self, batches: Iterator[Any]) -> None:
        for batch in batches:
            self._batch, self._rows = batch, self._claimed.popleft()
            return

    def _lists(self) -> Iterator[list[Any]]:
        epoch, size = self._epoch(), self._source.batch_size
        order = self._source.order.draw(self._seed, epoch)
        while (chunk := self._claim(epoch, len(self))) is not None:
            rows = as_list(order[chunk * size : (chunk + 1) * size])
            self._claimed.append(len(rows))
            yield rows


class _Lists:
    def __init__(self, lists: Callable[[], Iterator[list[Any]]]) -> None:
        self._lists = lists

    def __iter__(self) -> Iterator[list[Any]]:
        return self._lists()
