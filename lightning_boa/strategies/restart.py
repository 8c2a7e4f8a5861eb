"""What a checkpoint tells a training that goes on from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightning_boa.errors import OptionError, UnsupportedError

STATE_VERSION = 1


@dataclass(frozen=True)
class Restart:
    """The state of an earlier training, in plain values.

    `rows_of_loaders` are each training loader's rows of a full step over all ranks, `batches_per_step` is the number of
    ranks with which the training began, `made_for` says for which devices and which model the plan was made.
    """

    rows_of_loaders: tuple[int, ...]
    batches_per_step: int
    seed: int
    orchestration: Mapping[str, Any] | None
    made_for: Mapping[str, Any]
    inside_epoch: bool = False

    @classmethod
    def of(cls, state: Mapping[str, Any], inside_epoch: bool) -> Restart:
        """Read what `to_dict` gave.

        Raises:
            UnsupportedError: the state was written by a newer version.
        """
        if state["version"] > STATE_VERSION:
            raise UnsupportedError(
                f"Expected a checkpoint whose boa state has version {STATE_VERSION} or older, got"
                f" {state['version']}. Update lightning-boa."
            )
        return cls(
            rows_of_loaders=tuple(int(rows) for rows in state["rows_of_loaders"]),
            batches_per_step=int(state["batches_per_step"]),
            seed=int(state["seed"]),
            orchestration=state["orchestration"],
            made_for=state["made_for"],
            inside_epoch=inside_epoch,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values that a checkpoint can hold."""
        return {
            "version": STATE_VERSION,
            "rows_of_loaders": list(self.rows_of_loaders),
            "batches_per_step": self.batches_per_step,
            "seed": self.seed,
            "orchestration": self.orchestration,
            "made_for": dict(self.made_for),
        }

    @property
    def global_batch_size(self) -> int:
        """Rows of a full step of all loaders and ranks."""
        return sum(self.rows_of_loaders)

    def agreed_rows(self, loader: int, asked: int | None) -> int | None:
        """A loader's rows of a full step as in the checkpoint, unless an epoch begins and the user asks for others.

        None for a loader that the checkpoint does not know.

        Raises:
            OptionError: others are asked for in the middle of an epoch.
        """
        if loader >= len(self.rows_of_loaders):
            return None
        known = self.rows_of_loaders[loader]
        if asked in (None, known):
            return known
        if self.inside_epoch:
            raise OptionError(
                f"global_batch_size: expected the checkpoint's {known}, got {asked}. In the middle of"
                " an epoch the global batch cannot change; leave the option out, or resume from an epoch's end."
            )
        return asked
