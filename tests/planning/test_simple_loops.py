"""The loops of proportional shares and of LB-BSP: when they exchange, what they plan, what they keep."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from lightning_boa.errors import OptionError, UnsupportedError
from lightning_boa.planning import (
    BatchPlan,
    LbBspPlanning,
    LinearTime,
    Orchestration,
    ProportionalPlanning,
    StepRecord,
    moved_shares,
)

MIXED = (LinearTime(0.01, 0.003), LinearTime(0.01, 0.012), LinearTime(0.05, 0.006))
ROWS = 60
SPEEDS_UNDER_20_ROWS = (35, 10, 15)


def settings(cluster, **options):
    return cluster(MIXED, ROWS).settings(**options)


def played(state, steps, *, ahead=0, models=MIXED, short=()):
    """The state after each step, and the rows of each step; the loop gets records only when it asks for them."""
    states, splits, pending, handed_out = [], [], [], []
    for step in range(steps):
        while len(handed_out) <= step + ahead:
            handed_out.append(state.schedule.plan_at(len(handed_out)))
        rows = handed_out[step].rows_of(ROWS // 2 if step in short else ROWS)
        splits.append(rows)
        pending += [
            StepRecord(step, rank, size, sum(rows), float(model.seconds(size)), 0, 0, 0, 1.0)
            for rank, (size, model) in enumerate(zip(rows, models, strict=True))
        ]
        if step == state.exchange_after:
            state = state.observe(pending, first_free_step=len(handed_out))
            pending = []
        states.append(state)
    return states, splits


def test_proportional_shares_follow_one_measurement(cluster):
    outliers = {(2, 1): 50.0}
    training = cluster(MIXED, ROWS, outliers=outliers, read_ahead=3)
    begun = ProportionalPlanning(5).begin(training.settings(), 7)
    assert begun.exchange_after == 12
    state = training.train(
        training.settings(), state=ProportionalPlanning(5).begin(training.settings(), 0)
    )
    assert [(first, plan.batch_sizes) for first, plan in state.schedule.entries] == [
        (0, (20, 20, 20)),
        (9, SPEEDS_UNDER_20_ROWS),
    ]
    assert state.is_settled
    assert {record.step for record in state.records} == set(range(6))
    assert state.observe([], first_free_step=40) is state


def test_the_first_step_does_not_count(cluster):
    begun = ProportionalPlanning(1).begin(settings(cluster), 0)
    records = [
        StepRecord(step, rank, 20, ROWS, seconds, 0, 0, 0, 9.0)
        for step, times in ((0, (9.0, 1.0, 1.0)), (1, (1.0, 1.0, 2.0)))
        for rank, seconds in enumerate(times)
    ]
    state = begun.observe(records, first_free_step=2)
    assert state.plan.batch_sizes == (24, 24, 12)


def test_short_and_unmeasured_steps_prolong_the_measurement(cluster):
    states, splits = played(ProportionalPlanning(3).begin(settings(cluster), 0), 8, short=(1, 3))
    assert [state.exchange_after for state in states[2:5]] == [3, 5, 5]
    assert states[5].phase == "planned"
    assert splits[6] == SPEEDS_UNDER_20_ROWS


def test_each_rank_gets_its_least_share(cluster):
    bounds = settings(cluster, lower=(1, 16, 1))
    states, _ = played(ProportionalPlanning(1).begin(bounds, 0), 3)
    assert states[-1].plan.batch_sizes == (31, 16, 13)
    states, _ = played(LbBspPlanning(3).begin(bounds, 0), 9)
    assert states[-1].plan.batch_sizes[1] == 16


def test_an_epoch_that_ends_leaves_the_measurement_as_it_is(cluster):
    training = cluster(MIXED, ROWS, steps_per_epoch=4, read_ahead=0)
    state = training.train(
        training.settings(), state=ProportionalPlanning(5).begin(training.settings(), 0)
    )
    assert state.schedule.entries[1] == (6, BatchPlan(SPEEDS_UNDER_20_ROWS))


@pytest.mark.parametrize("rows_moved", [1, 4])
def test_lb_bsp_moves_rows_after_every_step(cluster, rows_moved):
    states, splits = played(LbBspPlanning(rows_moved).begin(settings(cluster), 0), 60)
    rows = (20, 20, 20)
    for split in splits:
        assert split == rows
        seconds = [float(model.seconds(size)) for model, size in zip(MIXED, rows, strict=True)]
        rows = moved_shares(rows, seconds, rows_moved)
    for step, state in enumerate(states):
        assert state.exchange_after == step + 1
        assert not state.is_settled
        assert state.records == ()
        assert len(state.schedule.entries) <= 2
    slowest = max(float(m.seconds(size)) for m, size in zip(MIXED, splits[-1], strict=True))
    assert slowest < 0.17 + 0.012 * rows_moved


def test_lb_bsp_moves_again_once_the_last_move_has_run(cluster):
    _, at_once = played(LbBspPlanning().begin(settings(cluster), 0), 10)
    states, late = played(LbBspPlanning().begin(settings(cluster), 0), 40, ahead=3)
    assert late[:4] == [at_once[0]] * 4
    assert late[4::4] == at_once[1:]
    assert all(late[step] == late[step - step % 4] for step in range(40))
    assert [state.exchange_after for state in states[:8]] == [4] * 4 + [8] * 4
    assert max(len(state.schedule.entries) for state in states) <= 2


def test_lb_bsp_goes_by_the_last_step_alone(cluster):
    def records(step, *seconds):
        return [
            StepRecord(step, rank, 20, ROWS, each, 0, 0, 0, 9.0)
            for rank, each in enumerate(seconds)
        ]

    begun = LbBspPlanning().begin(settings(cluster), 0)
    still = begun.observe(records(0, 1.0, 1.0, 1.0), first_free_step=3)
    assert still.schedule == begun.schedule
    earlier = records(1, 9.0, 2.0, 1.0) + records(2, 9.0, 2.0, 1.0)
    state = still.observe(earlier + records(3, 1.0, 2.0, 3.0), first_free_step=4)
    assert state.plan.batch_sizes == (21, 20, 19)


def test_lb_bsp_learns_nothing_from_a_short_step(cluster):
    _, splits = played(LbBspPlanning().begin(settings(cluster), 0), 5, short=(1,))
    assert splits[2] == (21, 19, 20)
    assert splits[3] == (22, 18, 20)


times = st.lists(
    st.builds(LinearTime, st.floats(0.0, 0.1), st.floats(0.001, 0.02)), min_size=3, max_size=3
)
rules = st.sampled_from([ProportionalPlanning(2), LbBspPlanning(1), LbBspPlanning(7)])


@given(times, rules, st.integers(0, 3), st.lists(st.integers(1, 10), min_size=3, max_size=3))
@limits(max_examples=50)
def test_rows_are_kept_and_each_rank_has_its_least(cluster, models, rule, ahead, lower):
    begun = rule.begin(settings(cluster, lower=tuple(lower)), 0)
    _, splits = played(begun, 30, ahead=ahead, models=models)
    for split in splits:
        assert sum(split) == ROWS
        assert all(rows >= least for rows, least in zip(split, lower, strict=True))


@pytest.mark.parametrize("rule", [ProportionalPlanning(2), LbBspPlanning()])
def test_a_plan_is_kept_over_a_resume(cluster, rule):
    states, _ = played(rule.begin(settings(cluster), 0), 9)
    saved = json.loads(json.dumps(states[-1].to_dict()))
    resumed = rule.resume(settings(cluster), saved, 9)
    assert resumed.plan == states[-1].plan != states[0].plan
    assert resumed.schedule.entries == ((9, states[-1].plan),)
    assert resumed.phase == "planned"
    assert resumed.exchange_after == (9 if isinstance(rule, LbBspPlanning) else None)
    for others in (
        {"lower": (25, 1, 25)},
        {"granularity": 2},
        {"upper": (60, 60, 12)},
    ):
        anew = rule.resume(settings(cluster, **others), saved, 9)
        assert anew == rule.begin(settings(cluster, **others), 9)


def test_a_measurement_that_was_cut_off_begins_anew(cluster):
    rule = ProportionalPlanning(5)
    states, _ = played(rule.begin(settings(cluster), 0), 4)
    assert rule.resume(settings(cluster), states[-1].to_dict(), 4) == rule.begin(
        settings(cluster), 4
    )


@pytest.mark.parametrize("rule", [ProportionalPlanning(), LbBspPlanning()])
def test_batches_of_any_size_are_refused(cluster, rule):
    unknown = replace(settings(cluster), global_batch_size=3, varying=True, upper=(3,) * 3)
    with pytest.raises(UnsupportedError, match=r"batches of any size.*batch_size"):
        rule.begin(unknown, 0)


@pytest.mark.parametrize(
    ("rule", "option"), [(ProportionalPlanning, "measured_steps"), (LbBspPlanning, "rows_moved")]
)
@pytest.mark.parametrize("value", [0, -1, 1.5, True, None])
def test_a_rule_checks_its_option(rule, option, value):
    with pytest.raises(OptionError, match=f"^{option}: "):
        rule(value)


def test_only_lb_bsp_says_nothing_of_its_plans(cluster):
    assert LbBspPlanning().begin(settings(cluster), 0).changes_always
    assert not ProportionalPlanning().begin(settings(cluster), 0).changes_always
    assert not Orchestration.begin(settings(cluster), 0).changes_always
