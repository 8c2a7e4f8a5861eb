from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_boa.planning import BatchPlan, Schedule

FIRST, SECOND = BatchPlan((4, 4)), BatchPlan((6, 2), step_seconds=0.5, rank_seconds=(0.5, 0.4))


def test_a_plan_holds_until_the_next_begins():
    schedule = Schedule.starting_with(FIRST, 3).then(10, SECOND)
    assert schedule.plan_at(3) == schedule.plan_at(9) == FIRST
    assert schedule.plan_at(10) == schedule.plan_at(10**9) == SECOND
    assert schedule.latest == SECOND


@given(st.lists(st.integers(0, 100), min_size=1, max_size=10, unique=True), st.integers(0, 120))
def test_agrees_with_a_search_through_all_entries(first_steps, step):
    first_steps.sort()
    schedule = Schedule(tuple((first, BatchPlan((first + 1, 1))) for first in first_steps))
    begun = [first for first in first_steps if first <= step]
    if begun:
        assert schedule.plan_at(step).batch_sizes == (begun[-1] + 1, 1)
    else:
        with pytest.raises(ValueError, match="begins at step"):
            schedule.plan_at(step)


def test_the_past_cannot_be_planned():
    schedule = Schedule.starting_with(FIRST, 3)
    with pytest.raises(ValueError, match="after step 3, got 3"):
        schedule.then(3, SECOND)


def test_what_has_ended_is_forgotten():
    schedule = Schedule.starting_with(FIRST, 3).then(10, SECOND).then(20, FIRST)
    assert schedule.since(9) == schedule.since(0) == schedule
    assert schedule.since(10).entries == schedule.since(19).entries == schedule.entries[1:]
    assert schedule.since(20).entries == ((20, FIRST),)


@pytest.mark.parametrize("entries", [(), ((3, FIRST), (3, SECOND)), ((4, FIRST), (3, SECOND))])
def test_entries_must_rise(entries):
    with pytest.raises(ValueError, match="rising first steps"):
        Schedule(entries)


def test_the_digest_tells_steps_and_rows_apart():
    schedules = [
        Schedule.starting_with(FIRST),
        Schedule.starting_with(FIRST, 1),
        Schedule.starting_with(FIRST).then(5, SECOND),
        Schedule.starting_with(FIRST).then(6, SECOND),
    ]
    assert len({schedule.digest for schedule in schedules}) == 4
    assert Schedule.starting_with(BatchPlan((6, 2))).digest == Schedule.starting_with(SECOND).digest


def test_comes_back_from_plain_values_and_pickles():
    schedule = Schedule.starting_with(FIRST, 3).then(10, SECOND)
    assert Schedule.from_dict(json.loads(json.dumps(schedule.to_dict()))) == schedule
    assert pickle.loads(pickle.dumps(schedule)) == schedule
    assert pickle.loads(pickle.dumps(schedule)).plan_at(10) == SECOND
