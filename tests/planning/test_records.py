from __future__ import annotations

import math

import pytest

from lightning_boa.errors import MeasurementError
from lightning_boa.planning import StepRecord
from lightning_boa.planning.records import counted, measure_split


def record(step, rank, rows, *, compute=1.0, period=2.0, **others):
    values = {"loader_wait": 0.1, "communication": 0.2, "optimizer": 0.3, **others}
    return StepRecord(step, rank, rows, 8, compute=compute, period=period, **values)


@pytest.mark.parametrize("name", ["compute", "period", "loader_wait", "communication", "optimizer"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_impossible_times_name_the_figure_the_rank_and_the_step(name, value):
    with pytest.raises(MeasurementError, match=f"{name} of rank 2 at step 7"):
        record(7, 2, 4, **{name: value})


def test_a_step_that_took_no_time_is_refused():
    with pytest.raises(MeasurementError, match="compute of rank 0"):
        record(0, 0, 4, compute=0.0)


def test_more_rows_than_the_step_has():
    with pytest.raises(MeasurementError, match="9 of 8 rows"):
        record(0, 0, 9)


def test_records_come_back_from_plain_values():
    assert StepRecord(*record(3, 1, 4).to_list()) == record(3, 1, 4)


def test_the_first_steps_and_those_of_a_new_size_settle():
    rows = [4, 4, 4, 4, 6, 6, 4, 6, 2, 2]
    kept = counted(
        [record(step, 0, size) for step, size in enumerate(rows)], first_settling=2, settling=1
    )
    assert [one.step for one in kept] == [2, 3, 5, 6, 7, 9]


def test_ranks_settle_apart_and_order_does_not_matter():
    records = [record(step, rank, 4) for step in range(4) for rank in range(2)]
    kept = counted(list(reversed(records)), first_settling=2, settling=1)
    assert [(one.step, one.rank) for one in kept] == [(2, 0), (2, 1), (3, 0), (3, 1)]


def test_a_split_is_measured_where_all_ranks_ran_it():
    records = [
        record(0, 0, 6, compute=1.0, period=3.0),
        record(0, 1, 2, compute=2.0, period=3.1),
        record(1, 0, 6, compute=1.2),
        record(1, 1, 3, compute=9.0),
        record(2, 0, 6, compute=2.0, period=4.0),
        record(2, 1, 2, compute=4.0, period=4.0),
        record(3, 0, 6, compute=99.0),
    ]
    split = measure_split(records, (6, 2))
    assert split.steps == 2
    assert split.rank_compute == (1.5, 3.0)
    assert split.step_compute == 3.0
    assert split.step_period == 3.55
    assert split.idle_share == (0.5, 0.0)
    assert split.rank_loader_wait == (0.1, 0.1)
    assert measure_split(records, (4, 4)) is None
