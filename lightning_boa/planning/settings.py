"""What the planning loop keeps to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from lightning_boa.errors import OptionError
from lightning_boa.planning.bounds import check_feasible, positive_integer
from lightning_boa.planning.rounds import equal_within


@dataclass(frozen=True)
class OrchestrationSettings:
    """What the loop keeps to: ranks, global batch, rows per rank, length of the warm-up.

    ``warmup`` is ``"auto"`` (it ends when the fits are good, at the latest with an epoch) or a
    number of steps. ``rebalance`` tells whether the plan may change after it: ``"auto"`` at any
    step, ``"epoch"`` at an epoch's end, ``"off"`` never. ``varying`` tells that steps may have any
    number of rows; a global batch of one row per rank then means that nothing is known of them.
    ``in_passes`` tells that a rank may run its rows in several passes, so that its memory does not
    bound them. ``parks`` tells that a rank whose ``lower`` is 0 may be left without rows where that
    is faster, once it has been measured, and takes no time then; else it has at least ``least_rows``.
    """

    world_size: int
    global_batch_size: int
    lower: tuple[int, ...]
    upper: tuple[int, ...]
    granularity: int = 1
    warmup: int | Literal["auto"] = "auto"
    rebalance: Literal["auto", "epoch", "off"] = "auto"
    varying: bool = False
    in_passes: bool = False
    parks: bool = False
    least_rows: int = 1

    def __post_init__(self) -> None:
        positive_integer("world_size", self.world_size)
        positive_integer("global_batch_size", self.global_batch_size)
        positive_integer("granularity", self.granularity)
        positive_integer("least_rows", self.least_rows)
        if self.warmup != "auto":
            positive_integer("warmup", self.warmup)
        for name in ("lower", "upper"):
            values = tuple(int(value) for value in getattr(self, name))
            if len(values) != self.world_size:
                raise OptionError(
                    f"{name}: expected one number for each of {self.world_size} ranks, "
                    f"got {list(values)}"
                )
            object.__setattr__(self, name, values)
        check_feasible(
            self.global_batch_size,
            np.asarray(self.lower, dtype=np.int64),
            np.asarray(self.upper, dtype=np.int64),
            self.granularity,
        )

    @property
    def equal_batch_sizes(self) -> tuple[int, ...]:
        """The split with which the warm-up begins: the equal one, as the bounds permit it."""
        return equal_within(self.global_batch_size, self.lower, self.upper, self.granularity)

    def to_dict(self) -> dict[str, Any]:
        """Plain values that `from_dict` reads."""
        return {
            "world_size": self.world_size,
            "global_batch_size": self.global_batch_size,
            "lower": list(self.lower),
            "upper": list(self.upper),
            "granularity": self.granularity,
            "warmup": self.warmup,
            "rebalance": self.rebalance,
            "varying": int(self.varying),
            "in_passes": int(self.in_passes),
            "parks": int(self.parks),
            "least_rows": self.least_rows,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> OrchestrationSettings:
        """The settings whose `to_dict` gave ``values``."""
        return cls(
            **{
                **values,
                "lower": tuple(values["lower"]),
                "upper": tuple(values["upper"]),
                **{
                    name: bool(values.get(name, False))
                    for name in ("varying", "in_passes", "parks")
                },
            }
        )

    @property
    def has_unknown_rows(self) -> bool:
        """Whether nothing is known of the rows of a step."""
        return self.varying and self.global_batch_size == self.world_size

    def for_rows(self, global_batch_size: int) -> OrchestrationSettings:
        """The same for another global batch, without bounds."""
        return replace(
            self,
            global_batch_size=global_batch_size,
            lower=(int(not self.parks),) * self.world_size,
            upper=(global_batch_size,) * self.world_size,
        )
