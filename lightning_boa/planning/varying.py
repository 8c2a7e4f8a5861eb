"""Steps that differ in rows, and in what a row costs, told as if all had the same."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp, fsum, log
from statistics import median

from lightning_boa.planning.passes import even_cut, pass_sizes
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
    record is missing, or in which a rank had no rows, are left out, unless the plan leaves it without rows; the cost is
    that of the ranks to which every plan gives some.
    """
    by_step: defaultdict[int, list[StepRecord]] = defaultdict(list)
    for record in records:
        by_step[record.step].append(record)
    whole = [
        with_rows
        for step, ranks in by_step.items()
        if (with_rows := _with_rows(ranks)) and _ranks(with_rows) == plan_at(step).ranks_with_rows
    ]
    always = frozenset.intersection(*map(_ranks, whole)) if whole else frozenset()
    costs = [
        _cost_of_a_row([record for record in ranks if record.rank in always] or ranks)
        for ranks in whole
    ]
    usual = median(costs) if costs else 1.0
    return tuple(
        usual_record
        for ranks, cost in zip(whole, costs, strict=True)
        for usual_record in _as_usual(ranks, plan_at(ranks[0].step), step_rows, usual / cost)
    )


def _with_rows(ranks: Sequence[StepRecord]) -> list[StepRecord]:
    return sorted((record for record in ranks if record.rows), key=lambda record: record.rank)


def _ranks(records: Sequence[StepRecord]) -> frozenset[int]:
    return frozenset(record.rank for record in records)


def _cost_of_a_row(ranks: Sequence[StepRecord]) -> float:
    return exp(fsum(log(record.compute / record.rows) for record in ranks) / len(ranks))


def _as_usual(
    ranks: Sequence[StepRecord], plan: BatchPlan, step_rows: int, cheaper: float
) -> list[StepRecord]:
    whole = cheaper * step_rows / ranks[0].step_rows
    shares = plan.rows_of(step_rows)
    return [
        replace(
            record,
            rows=rows,
            step_rows=step_rows,
            compute=record.compute * cheaper * rows / record.rows,
            period=record.period * whole,
            passes=_usual_passes(record, rows),
        )
        for record in ranks
        if (rows := shares[record.rank])
    ]


def _usual_passes(record: StepRecord, rows: int) -> int:
    """The passes of a share of ``rows`` rows in passes of the size that was measured."""
    if record.passes == 1:
        return 1
    return len(pass_sizes(rows, even_cut(record.rows, record.passes)[0]))
