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

    `made_for` says for which devices and which model the plan was made.
    """

    global_batch_size: int
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
            global_batch_size=int(state["global_batch_size"]),
            seed=int(state["seed"]),
            orchestration=state["orchestration"],
            made_for=state["made_for"],
            inside_epoch=inside_epoch,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values that a checkpoint can hold."""
        return {
            "version": STATE_VERSION,
            "global_batch_size": self.global_batch_size,
            "seed": self.seed,
            "orchestration": self.orchestration,
            "made_for": dict(self.made_for),
        }

    def agreed_global_batch_size(self, asked: int | None) -> int:
        """The checkpoint's global batch, unless an epoch begins and the user asks for another.

        Raises:
            OptionError: another one is asked for in the middle of an epoch.
        """
        if asked in (None, self.global_batch_size):
            return self.global_batch_size
        if self.inside_epoch:
            raise OptionError(
                f"global_batch_size: expected the checkpoint's {self.global_batch_size}, got {asked}. In the middle of"
                " an epoch the global batch cannot change; leave the option out, or resume from an epoch's end."
            )
        assert asked is not None
        return asked
