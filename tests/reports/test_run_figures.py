from __future__ import annotations

import json
from dataclasses import replace

import pytest

from lightning_boa.planning import StepRecord
from lightning_boa.reports.run_figures import RunFigures
from tests.reports.runs import (
    BLOCK,
    PAIR,
    THESIS,
    THROTTLED,
    Device,
    a_run,
    many,
    unmeasured,
)


def _step(step: int, rank: int, rows: int, compute: float, communication: float) -> StepRecord:
    return StepRecord(step, rank, rows, 64, compute, 0.01, communication, 0.02, 0.5)


def test_a_step_is_told_apart_into_what_each_rank_does() -> None:
    steps = [
        _step(step, rank, 32, compute, communication)
        for step in range(4)
        for rank, compute, communication in ((0, 0.1, 0.33), (1, 0.4, 0.03))
    ]
    step = RunFigures(a_run(PAIR, 64, steps=tuple(steps))).equal_step
    assert step is not None
    fast, slow = step.ranks
    assert fast.named() == pytest.approx(
        {
            "loader_wait": 0.01,
            "compute": 0.1,
            "waiting": 0.3,
            "communication": 0.03,
            "optimizer": 0.02,
            "rest": 0.04,
        }
    )
    assert (slow.waiting, slow.communication) == (0, pytest.approx(0.03))
    assert step.seconds == pytest.approx(0.5)
    assert step.communication_share == pytest.approx(0.06)
    assert step.loader_share == pytest.approx(0.02)


def test_a_rank_without_rows_does_not_tell_what_communication_costs() -> None:
    steps = tuple(
        _step(step, *rank) for step in range(4) for rank in ((0, 64, 0.1, 0.33), (1, 0, 0.001, 0.0))
    )
    record = a_run(PAIR, 64, steps=steps)
    ranks = tuple(
        replace(rank, boa_rows=rows) for rank, rows in zip(record.plan.ranks, (64, 0), strict=True)
    )
    step = RunFigures(replace(record, plan=replace(record.plan, ranks=ranks))).planned_step
    assert step is not None
    assert step.ranks[0].communication == pytest.approx(0.33)
    assert step.ranks[1].communication == 0


def test_steps_in_which_a_device_settles_do_not_count() -> None:
    figures = RunFigures(a_run(PAIR, 64))
    assert figures.equal_step is not None
    assert figures.equal_step.ranks[1].compute == pytest.approx(PAIR[1].compute(32, 0), rel=0.03)
    assert figures.points[0].period > 2.5 * figures.points[2].period


def test_the_gain_is_that_of_the_whole_training_else_of_the_warm_up() -> None:
    record = a_run(PAIR, 64)
    assert record.saving is not None
    assert RunFigures(record).gain == record.saving.gain
    equal, boa = RunFigures(record).step_seconds or (0, 1)
    assert equal / boa == pytest.approx(record.saving.gain)
    alone = RunFigures(replace(record, saving=None))
    assert alone.gain == record.plan.gain
    assert alone.step_seconds == (record.plan.equal_step_seconds, record.plan.boa_step_seconds)
    assert RunFigures(unmeasured(["cpu"], 8)).step_seconds is None


def test_the_warm_up_s_splits_end_with_its_plan() -> None:
    record = a_run(THROTTLED, 128, blocks=40)
    splits = RunFigures(record).splits
    assert [split.step for split in splits] == [0]
    assert record.rebalancings[0].step == 150 + 3 * BLOCK
    splits = RunFigures(a_run(THESIS, 256)).splits
    assert [split.step for split in splits] == [0, 6, 10]
    assert [split.measured.steps for split in splits if split.measured] == [4, 3, 9]


def test_a_split_that_came_back_is_told_twice_each_with_its_own_steps() -> None:
    record = a_run(PAIR, 64)
    (_, equal), (_, plan), _ = record.plans
    steps = tuple(
        _step(step, rank, sizes[rank], 0.1 + 0.01 * step, 0.0)
        for step, sizes in enumerate([equal] * 5 + [plan] * 4 + [equal] * 3)
        for rank in range(2)
    )
    again = replace(record, steps=steps, plans=((0, equal), (5, plan), (9, equal)))
    splits = RunFigures(again).splits
    assert [split.measured.steps for split in splits if split.measured] == [3, 3, 3]
    seconds = [split.measured.step_compute for split in splits if split.measured]
    assert seconds == pytest.approx([0.13, 0.17, 0.2])


def test_devices_wait_as_they_do_under_the_last_plan() -> None:
    figures = RunFigures(a_run(THROTTLED, 128, blocks=40))
    assert figures.latest_step is not None
    assert figures.idle_now == figures.latest_step.idle_share < 0.03
    assert RunFigures(a_run(PAIR, 64)).idle_now == RunFigures(a_run(PAIR, 64)).idle[1]


def test_a_change_of_the_plan_has_a_typical_step_of_its_own() -> None:
    figures = RunFigures(a_run(THROTTLED, 128, blocks=40))
    step = figures.latest_step
    assert step is not None
    assert step.batch_sizes == figures.record.rebalancings[-1].batch_sizes
    assert step.ranks[1].compute == pytest.approx(
        THROTTLED[1].compute(step.batch_sizes[1], 150), rel=0.03
    )
    for rank in step.ranks:
        assert rank.seconds == pytest.approx(step.seconds)
    assert figures.latest_equal_seconds == pytest.approx(2 * THROTTLED[1].compute(32, 0) + 0.0075)
    assert RunFigures(a_run(PAIR, 64)).latest_step is None
    assert RunFigures(a_run(PAIR, 64)).latest_equal_seconds is None


def test_devices_of_one_name_are_one_kind_and_the_fastest_comes_first() -> None:
    kinds = RunFigures(a_run(THESIS, 256)).kinds
    assert [(kind.name, len(kind.ranks)) for kind in kinds] == [
        ("GTX 1080", 4),
        ("GTX 1060", 3),
        ("M2000", 1),
    ]
    assert sum(kind.share_of_rows for kind in kinds) == pytest.approx(1)


def test_devices_of_one_name_but_unlike_speed_or_rows_are_told_apart() -> None:
    devices = (Device("a", 0.001), Device("a", 0.003), Device("a", 0.00105), Device("b", 0.002))
    record = a_run(devices, 256)
    kinds = RunFigures(record).kinds
    assert [(kind.name, kind.ranks) for kind in kinds] == [("a", (0, 2)), ("b", (3,)), ("a", (1,))]
    least, most = kinds[0].least_and_most_rows_per_second or (0.0, 0.0)
    assert 1 < most / least < 1.1
    rows = [rank.boa_rows for rank in record.plan.ranks]
    assert kinds[0].least_and_most_rows == (rows[2], rows[0])
    given = unmeasured(["a"] * 3, 96)
    ranks = tuple(
        replace(rank, boa_rows=rows)
        for rank, rows in zip(given.plan.ranks, (48, 16, 32), strict=True)
    )
    kinds = RunFigures(replace(given, plan=replace(given.plan, ranks=ranks))).kinds
    assert [kind.ranks for kind in kinds] == [(0,), (2,), (1,)]
    assert [kind.least_and_most_rows_per_second for kind in kinds] == [None] * 3


def test_rows_that_differ_by_rounding_are_one_kind() -> None:
    given = unmeasured(["a"] * 3, 6)
    ranks = tuple(
        replace(rank, boa_rows=rows) for rank, rows in zip(given.plan.ranks, (1, 2, 3), strict=True)
    )
    figures = RunFigures(replace(given, plan=replace(given.plan, ranks=ranks)))
    assert [kind.ranks for kind in figures.kinds] == [(0, 1, 2)]


def test_of_many_ranks_a_few_are_shown_among_them_the_one_that_all_wait_for() -> None:
    record = a_run(many(1000), 32000, blocks=3)
    figures = RunFigures(record)
    shown = {lane.rank for lane in figures.lanes}
    slowest = max(record.plan.ranks, key=lambda rank: rank.equal_seconds or 0)
    assert slowest.rank in shown
    assert {record.devices[rank] for rank in shown} == set(record.devices)
    assert len(shown) == len(figures.lanes) <= 12
    assert len(RunFigures(a_run(THESIS, 256)).lanes) == len(THESIS)


def test_the_figures_are_plain_values() -> None:
    for record in (a_run(THROTTLED, 128, blocks=40), unmeasured(["cpu"], 8)):
        told = json.loads(json.dumps(RunFigures(record).to_dict(), allow_nan=False))
        assert told["devices"] == list(record.devices)
        assert "steps" not in told
    assert told["gain"] is None
