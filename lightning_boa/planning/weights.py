"""The factor of a rank's loss that makes the averaged gradient that of the whole step."""

from __future__ import annotations

from lightning_boa.errors import OptionError

BATCH_WEIGHTS = ("samples", "sum", "none")


def gradient_weight(
    rows: int, step_rows: int, world_size: int, batch_weight: str = "samples"
) -> float:
    """The factor of the local loss before backward, for gradients averaged over all ranks.

    ``samples``: the loss is a mean over the rank's rows, ``rows * world_size / step_rows``.
    ``sum``: the loss is a sum over the rows, ``world_size``. ``none``: 1, the loss brings its own
    factor. A rank without rows weighs 0 always.
    """
    if batch_weight not in BATCH_WEIGHTS:
        raise OptionError(
            f"batch_weight: expected one of {', '.join(BATCH_WEIGHTS)} or a callable, "
            f"got {batch_weight!r}"
        )
    if not 0 <= rows <= step_rows or step_rows == 0 or world_size < 1:
        raise OptionError(
            f"batch_weight: {rows} of {step_rows} rows on one of {world_size} ranks is impossible"
        )
    if rows == 0:
        return 0.0
    if batch_weight == "samples":
        return rows * world_size / step_rows
    return float(world_size) if batch_weight == "sum" else 1.0
