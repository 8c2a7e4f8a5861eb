"""Rules for shares that look at measured seconds and nothing else; simulator and strategies run the same ones."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_boa.planning.allocation import apportion


def proportional_shares(
    rows: Sequence[int],
    seconds: Sequence[float],
    *,
    lower: Sequence[int] | None = None,
    granularity: int = 1,
) -> tuple[int, ...]:
    """The same sum in proportion to each worker's rows per second, at least ``lower`` (one row unless given) for each.

    Args:
        rows: of each worker in the measured steps, with a sum that is a multiple of ``granularity``.
        seconds: that each worker has computed for them, above 0.
        granularity: shares are multiples of this many rows.

    Raises:
        PlanError: the sum is too small for ``lower``.
    """
    speeds = [size / lasted for size, lasted in zip(rows, seconds, strict=True)]
    least = [-(-each // granularity) for each in lower or (1,) * len(rows)]
    grains = apportion(speeds, sum(rows) // granularity, lower=least)
    return tuple(each * granularity for each in grains)


def moved_shares(
    rows: Sequence[int],
    seconds: Sequence[float],
    rows_moved: int,
    *,
    lower: Sequence[int] | None = None,
    granularity: int = 1,
) -> tuple[int, ...]:
    """The rows of the next step, once ``rows_moved`` have gone from the slowest worker to the fastest one.

    Among equals it is the first. The slowest one keeps ``lower`` (one row unless given); rows go in multiples of
    ``granularity``, one at least, and none where all have taken the same time.

    Args:
        rows: of each worker in the last step.
        seconds: that each worker has computed in it.
    """
    workers = range(len(rows))
    straggler = max(workers, key=seconds.__getitem__)
    leader = min(workers, key=seconds.__getitem__)
    spare = rows[straggler] - (1 if lower is None else lower[straggler])
    moved = min(max(rows_moved, granularity), spare) // granularity * granularity
    if seconds[leader] == seconds[straggler] or moved <= 0:
        return tuple(rows)
    changed = list(rows)
    changed[straggler] -= moved
    changed[leader] += moved
    return tuple(changed)
