"""The figures of a few steps under the names by which loggers keep them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_boa.planning import SplitMeasurement
from lightning_boa.reports.run_record import BlockRecord, mean_idle_share

MOST_RANKS = 64


@dataclass(frozen=True)
class StepFigures:
    """A typical step, the same on every rank.

    Args:
        seconds: from one step to the next.
        loader_share: the part of it, 0 to 1, that the rank which waits longest waits for its batch.
        rows: of each rank.
        busy: each rank's seconds of computation as a share of the slowest rank's; 0 without rows.
    """

    seconds: float
    loader_share: float
    rows: tuple[int, ...]
    busy: tuple[float, ...]

    @classmethod
    def of_block(cls, block: BlockRecord) -> StepFigures:
        """Those of a block of watched steps."""
        share = block.loader_wait / block.period
        return cls(block.period, share, block.batch_sizes, block.busy)

    @classmethod
    def of_measurement(cls, measured: SplitMeasurement) -> StepFigures:
        """Those of measured steps of one split."""
        return cls(
            seconds=measured.step_period,
            loader_share=max(measured.rank_loader_wait) / measured.step_period,
            rows=measured.batch_sizes,
            busy=tuple(compute / measured.step_compute for compute in measured.rank_compute),
        )

    @property
    def idle_share(self) -> float:
        """The mean over ranks of the part of the slowest rank's computation in which a rank has none itself."""
        return mean_idle_share(self.busy)

    @property
    def logged(self) -> dict[str, float]:
        """What loggers get. Of more than 64 ranks only the extremes."""
        whole = {
            "boa/step_seconds": self.seconds,
            "boa/idle_share": self.idle_share,
            "boa/loader_share": self.loader_share,
        }
        idle = [1 - share for share in self.busy]
        if len(self.rows) > MOST_RANKS:
            return whole | _extremes("rows", self.rows) | _extremes("idle_share", idle)
        for rank, (rows, share) in enumerate(zip(self.rows, idle, strict=True)):
            whole |= {f"boa/rank{rank}/rows": float(rows), f"boa/rank{rank}/idle_share": share}
        return whole

    @property
    def in_bar(self) -> dict[str, float]:
        """What a progress bar shows."""
        return {"boa_ms": round(1000 * self.seconds, 1), "boa_idle": round(self.idle_share, 3)}


def _extremes(name: str, values: Sequence[float]) -> dict[str, float]:
    return {
        f"boa/ranks/least_{name}": float(min(values)),
        f"boa/ranks/most_{name}": float(max(values)),
    }
