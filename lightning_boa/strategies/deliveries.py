"""The shares of the batches that loaders deliver, each for one step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable
from functools import partial

from lightning_boa.data import Share
from lightning_boa.errors import UnsupportedError


class Deliveries:
    """Holds the shares of batches that have arrived until their step takes them.

    Several loaders may deliver to one step, each one batch. A loader whose end is not known in advance, or that stands
    beside one, may be one step ahead of the others' turn.

    Args:
        together: whether several loaders may deliver to one step.
        most_ahead: how many steps may wait to be taken.

    Attributes:
        most_ahead: the same.
    """

    def __init__(self, *, together: bool = False, most_ahead: int = 1) -> None:
        self.most_ahead = most_ahead
        self._together = together
        self._waiting: deque[dict[Hashable, Share]] = deque()
        self._rows = 0

    @property
    def next(self) -> Share | None:
        """The share of the step that is to be taken next; None where nothing has arrived."""
        if not self._waiting:
            return None
        shares = self._waiting[0]
        return _combined(shares.values()) if len(shares) > 1 else next(iter(shares.values()))

    def from_loader(self, loader: Hashable) -> Callable[[Share], None]:
        """What a loader calls for each batch that arrives."""
        return partial(self._receive, loader)

    def take(self) -> Share | None:
        """The share of the step that begins now; None if its batch comes from a loader of another kind."""
        share = self.next
        if share is not None:
            self._waiting.popleft()
            self._rows += share.rows
        return share

    def pop_rows(self) -> int:
        """Rows of this rank in the steps that were taken since the last call."""
        rows, self._rows = self._rows, 0
        return rows

    def forget(self) -> None:
        """Whatever arrived will not be used."""
        self._waiting.clear()
        self._rows = 0

    def _receive(self, loader: Hashable, share: Share) -> None:
        if self._together and self._waiting and loader not in self._waiting[-1]:
            self._waiting[-1][loader] = share
            return
        if len(self._waiting) >= self.most_ahead:
            raise UnsupportedError(
                "Expected one batch for each step, got a second one before the first was used. Combine loaders in the"
                ' mode "sequential", keep IterableDataset apart from other loaders, or use strategy="ddp".'
            )
        self._waiting.append({loader: share})


def _combined(shares: Collection[Share]) -> Share:
    return Share(
        step=max(share.step for share in shares),
        rows=sum(share.rows for share in shares),
        step_rows=sum(share.step_rows for share in shares),
        fetched=sum(share.fetched for share in shares),
        wait=sum(share.wait for share in shares),
    )
