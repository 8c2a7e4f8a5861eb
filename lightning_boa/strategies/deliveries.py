"""The shares of the batches that loaders deliver, each for one step."""

from __future__ import annotations

from lightning_boa.data import Share
from lightning_boa.errors import UnsupportedError


class Deliveries:
    """Holds the share of the batch that has arrived until its step takes it, and for the rest of that step."""

    def __init__(self) -> None:
        self.present: Share | None = None
        self.arrived: Share | None = None

    def receive(self, share: Share) -> None:
        """A batch has arrived.

        Raises:
            UnsupportedError: the batch before it has not been used.
        """
        if self.arrived is not None:
            raise UnsupportedError(
                "Expected one batch for each step, got a second one before the first was used. Combine loaders in the"
                ' mode "sequential", keep IterableDataset apart from other loaders, or use strategy="ddp".'
            )
        self.arrived = share

    def take(self) -> Share | None:
        """The share of the step that begins now; None if its batch comes from a loader of another kind."""
        self.present, self.arrived = self.arrived, None
        return self.present

    def forget(self) -> None:
        """Whatever arrived will not be used."""
        self.present = self.arrived = None
