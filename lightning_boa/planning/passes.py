"""Shares that run in several passes, because memory holds fewer rows at once, and ranks that may be parked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_boa.planning.bounds import positive_integer
from lightning_boa.planning.time_models import TimeModel


def pass_sizes(rows: int, most: int | None) -> tuple[int, ...]:
    """``rows`` cut evenly into as few passes of at most ``most`` rows as will do, larger ones first.

    One pass of all rows where ``most`` is None.
    """
    return even_cut(rows, passes_needed(rows, most))


def passes_needed(rows: int, most: int | None) -> int:
    """In how many passes of at most ``most`` rows ``rows`` run; 1 where ``most`` is None."""
    return 1 if most is None or rows <= most else -(-rows // most)


def even_cut(rows: int, passes: int) -> tuple[int, ...]:
    """``rows`` in so many parts that differ by at most one row, larger ones first."""
    size, larger = divmod(rows, passes)
    return (size + 1,) * larger + (size,) * (passes - larger)


def usual_pass(rows: int, passes: int) -> int:
    """The rows of a typical pass of a share of ``rows`` rows, at least one where there are any."""
    return max(min(rows, 1), round(rows / passes))


@dataclass(frozen=True)
class InPasses:
    """A worker that runs ``rows_per_pass`` rows at once: the seconds of a share are those of its passes together.

    ``model`` tells the seconds of one pass. The share is cut evenly, see `pass_sizes`.
    """

    model: TimeModel
    rows_per_pass: int

    def __post_init__(self) -> None:
        positive_integer("rows_per_pass", self.rows_per_pass)

    def seconds(self, rows: ArrayLike) -> NDArray[np.float64]:
        """Seconds for ``rows`` (any shape)."""
        at = np.asarray(rows, dtype=np.float64)
        passes = np.maximum(np.ceil(at / self.rows_per_pass), 1.0)
        full = (passes - 1.0) * self.model.seconds(self.rows_per_pass)
        return np.maximum(seconds_in_passes(self.model, at, passes), full)


def seconds_in_passes(model: TimeModel, rows: ArrayLike, passes: ArrayLike) -> NDArray[np.float64]:
    """Seconds of ``rows`` cut evenly into so many passes, each of which takes what ``model`` says."""
    count = np.asarray(passes, dtype=np.float64)
    size, larger = np.divmod(np.asarray(rows, dtype=np.float64), count)
    return larger * model.seconds(size + 1.0) + (count - larger) * model.seconds(size)


@dataclass(frozen=True)
class Parkable:
    """A worker that takes no time where it has no rows, because it does not run the model then."""

    model: TimeModel

    def seconds(self, rows: ArrayLike) -> NDArray[np.float64]:
        """Seconds for ``rows`` (any shape)."""
        at = np.asarray(rows, dtype=np.float64)
        return np.where(at > 0, self.model.seconds(at), 0.0)


def share_models(
    models: Sequence[TimeModel], row_caps: Sequence[int | None] | None, *, parks: bool
) -> tuple[TimeModel, ...]:
    """The models of whole shares, from those of single passes.

    Args:
        row_caps: most rows of a pass on each rank; None: any number.
        parks: a rank without rows takes no time.
    """
    caps = row_caps or (None,) * len(models)
    shares = [
        model if cap is None else InPasses(model, cap)
        for model, cap in zip(models, caps, strict=True)
    ]
    return tuple(map(Parkable, shares)) if parks else tuple(shares)
