"""Which ranks had better have no rows: as few as will do, and none where it gains next to nothing."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_boa.errors import PlanError
from lightning_boa.planning.allocation import WorkerTimes, allocate
from lightning_boa.planning.time_models import TimeModel


def allocate_or_park(
    time_models: Sequence[TimeModel] | WorkerTimes,
    rows: int,
    *,
    lower: Sequence[int],
    upper: Sequence[int],
    seats: Sequence[int] | None,
    least_gain: float,
    granularity: int = 1,
    prefer: ArrayLike | None = None,
) -> NDArray[np.int64]:
    """The fastest split in which every rank has rows, or one in which ranks whose ``lower`` is 0 have none.

    As few ranks are left out as will do: a step would be faster by less than ``least_gain`` (relative, in steps per
    second) without further ones.

    Args:
        time_models: seconds of each rank; where ranks may be parked, 0 for no rows.
        seats: the fewest rows of a rank that has any; None: no rank is parked, `allocate` finds the split.

    Raises:
        PlanError: no split keeps the bounds and the granularity.
    """

    times = WorkerTimes.of(time_models)

    def split(low: Sequence[int], high: Sequence[int]) -> NDArray[np.int64]:
        return allocate(times, rows, lower=low, upper=high, granularity=granularity, prefer=prefer)

    def seconds(shares: NDArray[np.int64]) -> float:
        return float(times.seconds(shares).max())

    fastest = split(lower, upper)
    if seats is None:
        return fastest
    limit = seconds(fastest)
    few = times.seconds(np.maximum(seats, np.minimum(granularity, upper))).tolist()
    at_few = {rank: few[rank] for rank, seat in enumerate(seats) if lower[rank] < seat}
    by_cost = sorted(at_few, key=lambda rank: (-at_few[rank], rank))

    def without(number: int) -> NDArray[np.int64] | None:
        parked = set(by_cost[:number])
        low = [0 if rank in parked else seat for rank, seat in enumerate(seats)]
        high = [0 if rank in parked else top for rank, top in enumerate(upper)]
        try:
            return split(low, high)
        except PlanError:
            return None

    too_slow = sum(each > limit for each in at_few.values())
    fast = without(too_slow)
    if fast is None:
        return fastest
    enough = (1 + least_gain) * seconds(fast)

    def is_enough(number: int) -> bool:
        shares = without(number)
        return shares is not None and seconds(shares) < enough

    shares = without(bisect_left(range(too_slow), True, key=is_enough))
    return fast if shares is None else shares
