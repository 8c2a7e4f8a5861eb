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
    `batch_sizes_of_loaders` are the loaders' own; empty in a checkpoint of an older version.
    """

    rows_of_loaders: tuple[int, ...]
    batches_per_step: int
    seed: int
    orchestration: Mapping[str, Any] | None
    made_for: Mapping[str, Any]
    inside_epoch: bool = False
    batch_sizes_of_loaders: tuple[int, ...] = ()

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
            batch_sizes_of_loaders=tuple(map(int, state.get("batch_sizes_of_loaders", ()))),
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
            "batch_sizes_of_loaders": list(self.batch_sizes_of_loaders),
        }

    @property
    def global_batch_size(self) -> int:
        """Rows of a full step of all loaders and ranks."""
        return sum(self.rows_of_loaders)

    def check_number_of_loaders(self, number: int) -> bool:
        """Whether there are as many training loaders as in the checkpoint; an epoch may begin with others.

        Raises:
            UnsupportedError: another number in the middle of an epoch.
        """
        known = len(self.rows_of_loaders)
        if number != known and self.inside_epoch:
            raise UnsupportedError(
                f"Expected as many training loaders as in the checkpoint, {known}, got {number}. In the middle of an"
                " epoch they cannot change; give the same loaders, or resume from an epoch's end."
            )
        return number == known

    def has_other_batch_size(self, loader: int, batch_size: int) -> bool:
        """Whether a loader's own batch size is known to have been another one."""
        known = self.batch_sizes_of_loaders[loader : loader + 1]
        return known not in ((), (batch_size,))

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
