"""Steps that differ in rows, and in what a row costs, told as if all had the same."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp, fsum, log
from statistics import median

from lightning_boa.planning.plan import BatchPlan
from lightning_boa.planning.records import StepRecord


def usual_rows(records: Sequence[StepRecord]) -> int:
    """The median of the steps' rows, each step counted once."""
    rows = {record.step: record.step_rows for record in records}
    return int(median(rows.values()))


def as_usual_steps(
    records: Sequence[StepRecord], plan_at: Callable[[int], BatchPlan], step_rows: int
) -> tuple[StepRecord, ...]:
    """The records as if each step had had ``step_rows`` rows, split by its plan, and rows of the usual cost.

    What a row costs in a step is the geometric mean over the ranks of their seconds per row; the usual cost is the
    median over the steps. What remains is how much slower or faster a rank is than the others. Steps of which a rank's
    record is missing, or in which a rank had no rows, are left out.
    """
    by_step: defaultdict[int, list[StepRecord]] = defaultdict(list)
    for record in records:
        by_step[record.step].append(record)
    whole = [
        sorted(ranks, key=lambda record: record.rank)
        for step, ranks in by_step.items()
        if len(ranks) == plan_at(step).world_size and all(record.rows for record in ranks)
    ]
    costs = [_cost_of_a_row(ranks) for ranks in whole]
    usual = median(costs) if costs else 1.0
    return tuple(
        usual_record
        for ranks, cost in zip(whole, costs, strict=True)
        for usual_record in _as_usual(ranks, plan_at(ranks[0].step), step_rows, usual / cost)
    )


def _cost_of_a_row(ranks: Sequence[StepRecord]) -> float:
    return exp(fsum(log(record.compute / record.rows) for record in ranks) / len(ranks))


def _as_usual(
    ranks: Sequence[StepRecord], plan: BatchPlan, step_rows: int, cheaper: float
) -> list[StepRecord]:
    whole = cheaper * step_rows / ranks[0].step_rows
    return [
        replace(
            record,
            rows=rows,
            step_rows=step_rows,
            compute=record.compute * cheaper * rows / record.rows,
            period=record.period * whole,
        )
        for record, rows in zip(ranks, plan.rows_of(step_rows), strict=True)
        if rows
    ]
