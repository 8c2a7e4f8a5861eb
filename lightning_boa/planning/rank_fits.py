"""Each rank's fit of its computation: of single passes, and of whole shares."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lightning_boa.planning.fitting import TimeFit, fit_time
from lightning_boa.planning.passes import seconds_in_passes, usual_pass
from lightning_boa.planning.records import StepRecord
from lightning_boa.planning.time_models import LinearTime, TimeModel

_FITS_OF_UNEVEN_PASSES = 3


def rank_fits(records: Sequence[StepRecord], world_size: int) -> tuple[TimeFit | None, ...]:
    """Each rank's fit of the seconds of a pass: through the origin from one size, None from none."""
    return _per_rank(records, world_size, _fit_of_passes)


def share_fits(records: Sequence[StepRecord], world_size: int) -> tuple[TimeFit | None, ...]:
    """Each rank's fit of the seconds of whole shares, however many passes they took."""
    return _per_rank(records, world_size, _fit_of_shares)


def _per_rank(
    records: Sequence[StepRecord],
    world_size: int,
    fit: Callable[[Sequence[StepRecord]], TimeFit],
) -> tuple[TimeFit | None, ...]:
    mine: list[list[StepRecord]] = [[] for _ in range(world_size)]
    for record in records:
        if record.rows > 0:
            mine[record.rank].append(record)
    return tuple(fit(each) if each else None for each in mine)


def _fit_of_shares(records: Sequence[StepRecord]) -> TimeFit:
    return _fit([record.rows for record in records], [record.compute for record in records])


def _fit_of_passes(records: Sequence[StepRecord]) -> TimeFit:
    """Where passes are uneven, what one of the usual size takes depends on the fit itself, from which it is told."""
    rows = [usual_pass(record.rows, record.passes) for record in records]
    is_uneven = any(record.rows % record.passes for record in records)
    model: TimeModel = LinearTime(0.0, 1.0)
    for _ in range(_FITS_OF_UNEVEN_PASSES if is_uneven else 1):
        fit = _fit(rows, [_seconds_of_a_pass(record, model) for record in records])
        model = fit.model
    return fit


def _seconds_of_a_pass(record: StepRecord, model: TimeModel) -> float:
    """The usual pass's part of the seconds of all passes."""
    if record.rows % record.passes == 0:
        return record.compute / record.passes
    usual = model.seconds(usual_pass(record.rows, record.passes))
    return record.compute * float(usual / seconds_in_passes(model, record.rows, record.passes))


def _fit(rows: Sequence[int], seconds: Sequence[float]) -> TimeFit:
    return fit_time(rows, seconds, through_origin=len(set(rows)) == 1)
