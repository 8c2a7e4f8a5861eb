"""Lower and upper bounds of every rank's rows, and whether any split keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import TypeGuard

import numpy as np
from numpy.typing import NDArray

from lightning_boa.errors import OptionError, PlanError

MOST_ROWS = 10**12


def row_bounds(
    world_size: int,
    global_batch_size: int,
    *,
    min_batch_size: int | Sequence[int] = 1,
    max_batch_size: int | Sequence[int] | None = None,
    granularity: int = 1,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Lower and upper rows of each rank for options that are numbers or a list per rank.

    Raises:
        OptionError: an option of the wrong kind or length; the message begins with its name.
        PlanError: bounds that no split of ``global_batch_size`` keeps.
    """
    positive_integer("world_size", world_size)
    positive_integer("global_batch_size", global_batch_size)
    positive_integer("granularity", granularity)
    lower = least_rows("min_batch_size", min_batch_size, world_size)
    upper = (
        (global_batch_size,) * world_size
        if max_batch_size is None
        else most_rows("max_batch_size", max_batch_size, world_size, global_batch_size)
    )
    low = np.asarray(lower, dtype=np.int64)
    high = np.asarray(upper, dtype=np.int64)
    for rank in np.flatnonzero(low > global_batch_size)[:1].tolist():
        raise PlanError(
            f"min_batch_size is {lower[rank]} on rank {rank}, more than the {global_batch_size} rows of the global "
            "batch; lower the one or enlarge the other"
        )
    for rank in np.flatnonzero(low > high)[:1].tolist():
        raise PlanError(
            f"min_batch_size is {lower[rank]} on rank {rank}, above its max_batch_size "
            f"{upper[rank]}; lower the one or raise the other"
        )
    if low.min() >= 1 and global_batch_size < world_size:
        raise PlanError(
            f"a global batch of {global_batch_size} rows cannot give each of {world_size} ranks "
            "a row; enlarge the batch, use fewer ranks, or min_batch_size=0 permits ranks without rows"
        )
    check_feasible(global_batch_size, low, high, granularity)
    return lower, upper


def check_feasible(
    rows: int, lower: NDArray[np.int64], upper: NDArray[np.int64], granularity: int = 1
) -> None:
    """Raise PlanError unless some split of ``rows`` keeps the bounds and the granularity."""
    if np.any(lower < 0):
        rank = int(np.flatnonzero(lower < 0)[0])
        raise PlanError(f"rank {rank} has the lower bound {lower[rank]}; expected at least 0 rows")
    if np.any(lower > upper):
        rank = int(np.flatnonzero(lower > upper)[0])
        raise PlanError(
            f"rank {rank} has the lower bound {lower[rank]} above its upper bound {upper[rank]}"
        )
    least, most = int(lower.sum()), int(upper.sum())
    if least > rows:
        raise PlanError(
            f"the lower bounds add up to {least} rows, more than the {rows} rows to split; "
            "lower min_batch_size, enlarge the global batch or use fewer ranks"
        )
    if most < rows:
        raise PlanError(
            f"the upper bounds add up to {most} rows, fewer than the {rows} rows to split; "
            "raise max_batch_size, shrink the global batch or use more ranks"
        )
    if granularity > 1 and not Grid.of(rows, lower, upper, granularity).holders(upper).any():
        raise PlanError(
            f"no split of {rows} rows into multiples of granularity={granularity} (what is left "
            "over goes to one rank) keeps the bounds; lower the granularity or widen the bounds"
        )


class Grid:
    """Splits of ``rows`` into multiples of ``granularity``, one rank taking the rest besides.

    ``grains`` whole multiples and ``rest`` rows are to be handed out; ``lower`` are each rank's
    least grains and ``lower_with_rest`` its least grains where it also holds the rest.
    """

    def __init__(
        self,
        grains: int,
        rest: int,
        granularity: int,
        lower: NDArray[np.int64],
        lower_with_rest: NDArray[np.int64],
    ) -> None:
        self.grains = grains
        self.rest = rest
        self.granularity = granularity
        self.lower = lower
        self.lower_with_rest = lower_with_rest

    @classmethod
    def of(
        cls, rows: int, lower: NDArray[np.int64], upper: NDArray[np.int64], granularity: int
    ) -> Grid:
        grains, rest = divmod(rows, granularity)
        return cls(
            grains=grains,
            rest=rest,
            granularity=granularity,
            lower=-(-lower // granularity),
            lower_with_rest=np.maximum(-((rest - lower) // granularity), 0),
        )

    def reaches(self, most_rows: NDArray[np.int64]) -> bool:
        """Whether the rows can be handed out when no rank holds more than ``most_rows``."""
        if self.granularity == 1:
            return int(most_rows.sum()) >= self.grains
        return bool(self.holders(most_rows).any())

    def holders(self, most_rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """The ranks that can hold the rest (any rank where there is none) within ``most_rows``."""
        most = most_rows // self.granularity
        short = most < self.lower
        if self.rest == 0:
            possible = not short.any() and self.lower.sum() <= self.grains <= most.sum()
            return np.full(most.shape, possible)
        most_with_rest = (most_rows - self.rest) // self.granularity
        least = self.lower.sum() - self.lower + self.lower_with_rest
        greatest = most.sum() - most + most_with_rest
        alone_short = short.sum() - short == 0
        holds = most_with_rest >= self.lower_with_rest
        possible_ranks: NDArray[np.bool_] = (
            holds & alone_short & (least <= self.grains) & (greatest >= self.grains)
        )
        return possible_ranks


def positive_integer(name: str, value: object) -> int:
    """``value`` as an int, or OptionError naming it."""
    if not is_count(value) or value < 1:
        raise OptionError(f"{name}: expected a whole number >= 1, got {value!r}")
    if value > MOST_ROWS:
        raise OptionError(f"{name}: expected at most {MOST_ROWS:,}, got {value:,}")
    return int(value)


def least_rows(name: str, value: object, world_size: int) -> tuple[int, ...]:
    """Lower bounds of each rank, at most `MOST_ROWS`, or OptionError naming them."""
    rows = per_rank(name, value, world_size)
    if max(rows) > MOST_ROWS:
        raise OptionError(f"{name}: expected at most {MOST_ROWS:,}, got {max(rows):,}")
    return rows


def most_rows(name: str, value: object, world_size: int, whole: int) -> tuple[int, ...]:
    """Upper bounds of each rank, none above the ``whole`` batch, or OptionError naming them."""
    return tuple(min(most, whole) for most in per_rank(name, value, world_size))


def is_count(value: object) -> TypeGuard[int]:
    """Whether ``value`` is a whole number >= 0, of Python or numpy."""
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= 0


def per_rank(name: str, value: object, world_size: int) -> tuple[int, ...]:
    """``value`` for each rank: a whole number >= 0 or a list of them, or OptionError naming it."""
    values = [value] * world_size if isinstance(value, Integral) else value
    if not isinstance(values, Sequence | np.ndarray) or isinstance(values, str):
        raise OptionError(f"{name}: expected a number or a list with one per rank, got {value!r}")
    if len(values) != world_size:
        raise OptionError(
            f"{name}: expected one number for each of the {world_size} ranks, got {len(values)}: "
            f"{list(values)}"
        )
    for entry in values:
        if not is_count(entry):
            raise OptionError(f"{name}: expected whole numbers >= 0, got {entry!r}")
    return tuple(int(entry) for entry in values)
