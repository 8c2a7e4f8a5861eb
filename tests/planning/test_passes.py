"""Shares that run in several passes: how they are cut, what they take, and what the loop makes of them."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_boa.errors import MeasurementError, OptionError, PlanError
from lightning_boa.planning import (
    BatchPlan,
    InPasses,
    KnownPlan,
    LinearTime,
    Orchestration,
    OrchestrationSettings,
    Profile,
    StepRecord,
    TableTime,
    pass_sizes,
    plan_batches,
    watching,
)
from lightning_boa.planning.rank_fits import rank_fits, share_fits
from lightning_boa.planning.records import counted
from lightning_boa.planning.rounds import Evidence
from lightning_boa.planning.varying import as_usual_steps
from lightning_boa.planning.watching import Bounds, Watch
from tests.planning.test_profile import made_for
from tests.planning.watched_training import WatchedTraining

lines = st.builds(
    LinearTime, st.sampled_from([0.0, 1.0, 9.0]), st.floats(0.05, 2.0), st.sampled_from([0.0, 5.0])
)
tables = st.lists(st.tuples(st.integers(1, 60), st.floats(0.1, 50.0)), min_size=1, max_size=5).map(
    lambda points: TableTime(*zip(*sorted(dict(points).items()), strict=True))
)


# The cut


@given(st.integers(0, 500), st.none() | st.integers(1, 120))
def test_the_cut_is_even_and_as_coarse_as_may_be(rows, most):
    sizes = pass_sizes(rows, most)
    assert sum(sizes) == rows
    assert max(sizes) - min(sizes) <= 1
    assert list(sizes) == sorted(sizes, reverse=True)
    assert most is None or max(sizes) <= most
    assert len(sizes) == (1 if most is None else max(1, -(-rows // most)))


def test_cuts():
    assert pass_sizes(0, 4) == (0,)
    assert pass_sizes(4, 4) == (4,)
    assert pass_sizes(9, 4) == (3, 3, 3)
    assert pass_sizes(11, 4) == (4, 4, 3)
    assert pass_sizes(11, None) == (11,)


# Time


def brute_force_seconds(model, most, rows):
    whole = sum(float(model.seconds(size)) for size in pass_sizes(rows, most))
    return max(whole, (len(pass_sizes(rows, most)) - 1) * float(model.seconds(most)))


@given(lines | tables, st.integers(1, 50))
def test_seconds_are_those_of_the_passes_and_never_fall(model, most):
    rows = np.arange(0, 130)
    seconds = InPasses(model, most).seconds(rows)
    expected = [brute_force_seconds(model, most, each) for each in rows.tolist()]
    np.testing.assert_allclose(seconds, expected, rtol=1e-12, atol=1e-12)
    assert (np.diff(seconds) >= -1e-9 * seconds[1:]).all()
    within = np.arange(0, most + 1)
    np.testing.assert_array_equal(InPasses(model, most).seconds(within), model.seconds(within))


def test_seconds_keep_the_shape_of_the_rows():
    model = InPasses(LinearTime(1.0, 0.5), 4)
    assert model.seconds(9) == pytest.approx(3 * 2.5)
    assert model.seconds([[4, 5], [8, 9]]) == pytest.approx(np.asarray([[3.0, 4.5], [6.0, 7.5]]))


@pytest.mark.parametrize("most", [0, -1, 1.5, True])
def test_impossible_passes_are_refused(most):
    with pytest.raises(OptionError, match=r"^rows_per_pass: expected a whole number >= 1"):
        InPasses(LinearTime(1.0, 0.5), most)


def brute_force_step(models, rows, lower=1):
    return min(
        max(float(model.seconds(share)) for model, share in zip(models, shares, strict=True))
        for shares in product(range(lower, rows + 1), repeat=len(models))
        if sum(shares) == rows
    )


@given(
    st.lists(st.tuples(lines | tables, st.integers(1, 12)), min_size=1, max_size=3),
    st.integers(3, 16),
)
@settings(max_examples=60)
def test_shares_in_passes_are_allocated_exactly(devices, rows):
    models = [InPasses(*device) for device in devices]
    plan = plan_batches(models, rows)
    assert plan.step_seconds == pytest.approx(brute_force_step(models, rows), rel=1e-9)
    for rank, (share, (_, most)) in enumerate(zip(plan.batch_sizes, devices, strict=True)):
        assert plan.passes_of(rank, share) == pass_sizes(share, most)


def test_a_small_memory_bounds_a_share_or_makes_it_run_in_passes():
    device = LinearTime(0.1, 1.0)
    assert plan_batches([device] * 3, 4, max_batch_size=(4, 1, 1)).batch_sizes == (2, 1, 1)
    plan = plan_batches([device, InPasses(device, 1), InPasses(device, 1)], 4)
    assert plan.batch_sizes == (2, 1, 1)
    assert not plan.has_passes


def test_a_fast_device_with_a_small_memory_is_better_used_in_passes():
    fast, slow = LinearTime(0.2, 0.1), LinearTime(0.2, 1.0)
    bounded = plan_batches([fast, slow], 40, max_batch_size=(12, 40))
    models = [InPasses(fast, 12), slow]
    plan = plan_batches(models, 40)
    assert plan.step_seconds < 0.2 * bounded.step_seconds
    assert plan.step_seconds == pytest.approx(brute_force_step(models, 40))
    assert plan.batch_sizes == (36, 4)
    assert plan.rows_per_pass == (12, None)


# The plan


def test_a_plan_tells_the_passes():
    plan = BatchPlan((40, 24), rows_per_pass=(None, 10))
    assert plan.has_passes
    assert plan.passes_of(0, 40) == (40,)
    assert plan.passes_of(1, 24) == (8, 8, 8)
    assert plan.passes_of(1, 9) == (9,)
    assert not BatchPlan((40, 10), rows_per_pass=(None, 10)).has_passes
    assert not BatchPlan((40, 10)).has_passes
    assert BatchPlan((40, 10)).passes_of(1, 10) == (10,)


def test_passes_come_back_from_plain_values_and_show_in_the_digest():
    plan = BatchPlan((40, 24), rows_per_pass=(None, 10))
    assert BatchPlan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    old = {name: value for name, value in plan.to_dict().items() if name != "rows_per_pass"}
    assert BatchPlan.from_dict(old) == BatchPlan((40, 24))
    digests = {
        BatchPlan((40, 24), rows_per_pass=each).digest
        for each in (None, (None, 10), (None, 11), (10, None), (10, 10))
    }
    assert len(digests) == 5
    assert plan.digest != BatchPlan((40, 24, 0, 10)).digest
    assert BatchPlan((40, 24), rows_per_pass=(None, None)) == BatchPlan((40, 24))


@pytest.mark.parametrize("most", [(10,), (10, 0), (10, 1.5), (10, True), (1, 2, 3)])
def test_impossible_passes_of_a_plan_are_refused(most):
    with pytest.raises(PlanError, match="rows_per_pass: expected"):
        BatchPlan((40, 24), rows_per_pass=most)


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=5).filter(any),
    st.data(),
)
def test_a_plan_gets_the_passes_that_memory_asks_for_and_no_others(sizes, data):
    caps = [data.draw(st.none() | st.integers(1, 70)) for _ in sizes]
    plan = BatchPlan(tuple(sizes))
    most = data.draw(st.none() | st.integers(1, 3 * sum(sizes)))
    told = plan.in_passes(caps, most)
    assert told.batch_sizes == plan.batch_sizes
    assert told.in_passes(caps, most) == told
    largest = plan.rows_of(max(most or 0, plan.global_batch_size))
    for rank, cap in enumerate(caps):
        for rows in (sizes[rank], largest[rank]):
            assert told.passes_of(rank, rows) == pass_sizes(rows, cap)
        for rows in range(largest[rank]):
            assert cap is None or max(told.passes_of(rank, rows)) <= cap
    if all(cap is None or rows <= cap for cap, rows in zip(caps, largest, strict=True)):
        assert told == plan


# What was measured


def record(step, rank, rows, compute, passes=1, step_rows=64):
    return StepRecord(step, rank, rows, step_rows, compute, 0.0, 0.0, 0.0, compute, passes)


def test_records_without_passes_are_still_read():
    assert StepRecord(*record(3, 1, 4, 1.0).to_list()[:-1]) == record(3, 1, 4, 1.0)
    assert StepRecord(*record(3, 1, 4, 1.0, 2).to_list()).passes == 2


@pytest.mark.parametrize("passes", [0, -1, 1.5])
def test_impossible_passes_of_a_record_are_refused(passes):
    with pytest.raises(MeasurementError, match="passes of rank 1 at step 3"):
        record(3, 1, 4, 1.0, passes)


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 20)), min_size=2, max_size=6),
    st.floats(0.0, 3.0),
    st.floats(0.1, 1.0),
)
def test_fits_are_those_of_a_pass_however_many_there_were(shares, overhead, slope):
    device = LinearTime(overhead, slope)
    records = [
        record(
            step, 0, rows, float(InPasses(device, most).seconds(rows)), len(pass_sizes(rows, most))
        )
        for step, (rows, most) in enumerate(shares)
    ]
    (fit,) = rank_fits(records, 1)
    if len(fit.batch_sizes) == 1:
        return
    sizes = np.asarray(fit.batch_sizes)
    uneven = any(each.rows % each.passes for each in records)
    np.testing.assert_allclose(
        fit.model.seconds(sizes), device.seconds(sizes), rtol=0.05 if uneven else 0.003
    )


def test_the_rows_of_an_uneven_pass_are_rounded_and_its_seconds_with_them():
    device = LinearTime(2.0, 1.0)
    records = [
        record(0, 0, 5, float(InPasses(device, 3).seconds(5)), 2),
        record(1, 0, 8, 10.0),
    ]
    (fit,) = rank_fits(records, 1)
    assert fit.batch_sizes == (2, 8)
    assert fit.seconds == pytest.approx((4.0, 10.0), rel=0.02)
    (whole,) = share_fits(records, 1)
    assert whole.seconds == pytest.approx((9.0, 10.0))


def test_more_passes_of_the_same_rows_settle_anew():
    steps = [record(step, 0, 32, 1.0) for step in range(4)]
    steps += [record(step, 0, 32, 2.0, 2) for step in range(4, 8)]
    kept = counted(steps, first_settling=2, settling=1)
    assert [each.step for each in kept] == [2, 3, 5, 6, 7]


def test_usual_steps_have_as_many_passes_as_their_rows_need():
    plan = BatchPlan((30, 30))
    steps = [
        record(0, 0, 40, 8.0, passes=4, step_rows=80),
        record(0, 1, 40, 4.0, step_rows=80),
    ]
    first, second = as_usual_steps(steps, lambda step: plan, 60)
    assert (first.rows, first.passes) == (30, 3)
    assert (second.rows, second.passes) == (30, 1)
    assert first.compute / first.passes == pytest.approx(8.0 / 4 * second.compute / 3.0)


# The loop

DEVICES = [LinearTime(2.0, 0.2), LinearTime(3.0, 0.5), LinearTime(1.0, 1.0)]


def when_it_was_too_small(memory):
    """Nothing bounds a rank until its memory was too small once, which then is known."""
    return lambda largest, too_small: tuple(
        most if was else 10_000 for most, was in zip(memory, too_small, strict=True)
    )


def growing(memory):
    """What the largest pass promises: a third more, as far as memory goes, which even passes may leave unknown."""
    return lambda largest, too_small: tuple(
        most if was else min(most, 4 * rows // 3 + 1)
        for most, rows, was in zip(memory, largest, too_small, strict=True)
    )


@pytest.mark.parametrize("known", [tuple, when_it_was_too_small, growing])
@pytest.mark.parametrize("memory", [(64, 64, 64), (20, 96, 96), (96, 10, 40), (13, 15, 9)])
@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_reaches_the_optimum_in_passes(cluster, memory, known, noise):
    trained = cluster(DEVICES, 96, memory=memory, row_caps=known(memory), noise=noise)
    state = trained.train(trained.settings(in_passes=True))
    caps = [min(most, cap) for most, cap in zip(memory, state.row_caps, strict=True)]
    best = plan_batches(list(map(InPasses, DEVICES, caps)), 96).step_seconds
    assert state.phase == "planned"
    seconds = []
    for rank, rows in enumerate(state.plan.batch_sizes):
        passes = state.plan.passes_of(rank, rows)
        assert passes == pass_sizes(rows, caps[rank])
        seconds.append(DEVICES[rank].seconds(passes).sum())
    assert max(seconds) <= 1.03 * best, state.reason


def test_an_out_of_memory_error_in_the_equal_split_is_no_end(cluster):
    """Rank 0 holds 20 rows: its 32 of the equal split run in two passes, as the first exchange tells."""
    memory = (20, 96, 96)
    states = []
    trained = cluster(
        DEVICES,
        96,
        memory=memory,
        row_caps=when_it_was_too_small(memory),
        read_ahead=0,
        after_exchange=lambda state: states.append(state) or state,
    )
    state = trained.train(trained.settings(in_passes=True))
    assert {each.passes for each in state.records if each.rank == 0 and each.step < 6} == {2}
    assert states[0].round == 1
    for first, plan in state.schedule.entries[1:]:
        rows = plan.batch_sizes[0]
        assert plan.passes_of(0, rows) == pass_sizes(rows, 20), first
        assert plan.rows_per_pass[1:] == (None, None)
    rows = state.plan.batch_sizes[0]
    assert rows > 40
    passes = len(pass_sizes(rows, 20))
    assert state.reason.endswith(f"; rank 0 runs its {rows} rows in {passes} passes")


def test_caps_above_all_shares_change_nothing(cluster):
    for models, noise in ((DEVICES, 0.0), (DEVICES, 0.02), ([LinearTime(1.0, 0.2)] * 3, 0.01)):
        plain = cluster(models, 96, noise=noise)
        roomy = cluster(models, 96, noise=noise, row_caps=(96, 100, 10_000))
        expected = plain.train(plain.settings())
        state = roomy.train(roomy.settings(in_passes=True))
        assert state.schedule == expected.schedule
        assert state.schedule.digest == expected.schedule.digest
        assert replace(state, settings=expected.settings, row_caps=None) == expected


def test_equal_devices_with_equal_memories_keep_the_equal_split(cluster):
    trained = cluster([LinearTime(2.0, 0.5)] * 4, 128, memory=(9,) * 4, row_caps=(9,) * 4)
    state = trained.train(trained.settings(in_passes=True))
    assert state.plan.batch_sizes == (32,) * 4
    assert state.plan.rows_per_pass == (8,) * 4
    assert state.reason.endswith("; ranks 0, 1, 2, 3 run their rows in several passes")


def test_equal_devices_in_passes_share_what_they_show_of_a_pass(cluster):
    device = LinearTime(2.0, 0.5)
    trained = cluster([device] * 4, 128, memory=(20,) * 4, row_caps=(20,) * 4, noise=0.01)
    state = trained.train(trained.settings(in_passes=True))
    assert state.plan.batch_sizes == (32,) * 4
    assert {len(fit.batch_sizes) for fit in state.fits} == {2}
    for rank, model in enumerate(state.watch.models):
        assert model.seconds([12, 16, 20]) == pytest.approx(device.seconds([12, 16, 20]), rel=0.02)
        assert state.watch.ratios(rank, [32], [20.0], [2]) == pytest.approx([1.0], rel=0.02)


def observed(state, steps, *, caps, first_free_step, passes=(1, 1, 1), devices=DEVICES):
    records = []
    for step in steps:
        for rank, rows in enumerate(state.schedule.plan_at(step).batch_sizes):
            most = -(-rows // passes[rank])
            seconds = float(InPasses(devices[rank], most).seconds(rows))
            records.append(record(step, rank, rows, seconds, passes[rank], 96))
    return state.observe(records, first_free_step=first_free_step, row_caps=caps)


def begin(**options):
    values = {"lower": (1,) * 3, "upper": (96,) * 3, "in_passes": True, **options}
    return Orchestration.begin(OrchestrationSettings(3, 96, **values), 0)


def test_a_split_that_ran_in_other_passes_than_it_would_now_is_measured_again():
    state = observed(begin(), range(6), caps=(20, 96, 96), first_free_step=8)
    (first, _), (second, plan) = state.schedule.entries
    assert (first, second) == (0, 8)
    assert plan.batch_sizes == (32, 32, 32)
    assert plan.rows_per_pass == (16, None, None)
    assert state.round == 0
    state = observed(
        state,
        range(6, state.exchange_after + 1),
        caps=(20, 96, 96),
        passes=(2, 1, 1),
        first_free_step=30,
    )
    assert state.round == 1
    assert state.plan.batch_sizes != (32, 32, 32)


def test_only_shares_in_as_many_passes_as_now_are_compared():
    steps = [record(at, 0, 32, 1.0 if at < 3 else 1.5, 1 if at < 3 else 2) for at in range(5)]
    evidence = Evidence(BatchPlan((32, 32)), (32, 32), (1, 1), (64, 64), 1, tuple(steps))
    for cap, seconds in ((None, 1.0), (20, 1.5)):
        now = replace(evidence, row_caps=(cap, None))
        assert now.share_fit(0, 32).median(32) == pytest.approx(seconds)
    assert replace(evidence, row_caps=(10, None)).share_fit(0, 32) is None
    assert evidence.fits[0].batch_sizes == (16, 32)


def test_the_same_plan_in_the_same_passes_is_no_new_entry(cluster):
    memory = (20, 96, 96)
    trained = cluster(DEVICES, 96, memory=memory, row_caps=memory)
    state = trained.train(trained.settings(in_passes=True))
    assert state.plan.has_passes
    assert state._schedule_with(replace(state.plan, rows_per_pass=None), 1000) == state.schedule


def test_a_cap_that_falls_under_the_plan_gives_the_same_split_more_passes(cluster):
    trained = cluster(DEVICES, 96, row_caps=(96,) * 3)
    state = trained.train(trained.settings(in_passes=True))
    rows = state.plan.batch_sizes[0]
    assert not state.plan.has_passes
    later = state.observe([], first_free_step=500, row_caps=(rows - 1, 96, 96))
    assert later.schedule.entries[:-1] == state.schedule.entries
    first, plan = later.schedule.entries[-1]
    assert first == 500
    assert plan.batch_sizes == state.plan.batch_sizes
    assert plan.passes_of(0, rows) == pass_sizes(rows, rows - 1)
    assert (later.phase, later.round, later.exchange_after) == ("planned", state.round, None)
    assert later.rebalancings == ()
    assert later.reason == (
        f"rank 0 runs its {rows} rows in 2 passes, since memory holds fewer at once"
    )
    assert later.watch.bounds.row_caps == (rows - 1, None, None)
    assert later.observe([], first_free_step=600).schedule == later.schedule
    slightly = later.observe([], first_free_step=600, row_caps=(rows - 3, 96, 96))
    assert slightly.schedule == later.schedule
    again = later.observe([], first_free_step=600, row_caps=(rows, 96, 96))
    assert again.plan == state.plan


def test_plans_that_have_not_begun_are_changed_where_they_stand():
    state = observed(begin(), range(6), caps=(96,) * 3, first_free_step=20)
    (_, second), waiting = state.schedule.entries[-1], state.exchange_after
    later = state.observe([], first_free_step=12, row_caps=(8, 96, 96), closing=True)
    assert [first for first, _ in later.schedule.entries] == [0, 12, 20]
    assert later.schedule.plan_at(12).batch_sizes == (32, 32, 32)
    assert later.schedule.plan_at(12).rows_per_pass == (8, None, None)
    assert later.schedule.plan_at(20).batch_sizes == second.batch_sizes
    rows = second.batch_sizes[0]
    assert later.schedule.plan_at(20).passes_of(0, rows) == pass_sizes(rows, 8)
    assert later.exchange_after == waiting


def test_large_steps_of_varying_size_run_in_passes_though_usual_ones_do_not():
    settings_ = OrchestrationSettings(
        2, 40, (1, 1), (40, 40), varying=True, in_passes=True, rebalance="off"
    )
    state = Orchestration.begin(settings_, 0)
    for step in range(200):
        step_rows = 120 if step % 4 == 3 else 40
        plan = state.schedule.plan_at(step)
        records = [
            record(
                step,
                rank,
                rows,
                sum(0.1 + 0.01 * (rank + 1) * each for each in pass_sizes(rows, (48, 120)[rank])),
                len(pass_sizes(rows, (48, 120)[rank])),
                step_rows,
            )
            for rank, rows in enumerate(plan.rows_of(step_rows))
        ]
        free = step + 1 if step == state.exchange_after else 10**6
        if state.exchange_after is None:
            break
        state = (
            state.observe(
                records,
                first_free_step=free,
                row_caps=(48, 120),
                closing=step != state.exchange_after,
            )
            if step == state.exchange_after
            else replace(state, records=(*state.records, *records))
        )
    assert state.exchange_after is None
    usual = state.plan.batch_sizes[0]
    assert usual <= 48
    assert state.plan.passes_of(0, usual) == (usual,)
    large = state.plan.rows_of(120)[0]
    assert state.plan.passes_of(0, large) == pass_sizes(large, 48)
    assert len(state.plan.passes_of(0, large)) == 2


def test_growth_is_that_of_shares(cluster):
    devices = [LinearTime(0.0, 0.001), *[LinearTime(0.0, 1.0)] * 3]
    trained = cluster(devices, 400, memory=(25, 400, 400, 400), row_caps=(25, 400, 400, 400))
    state = trained.train(trained.settings(in_passes=True))
    shares = [plan.batch_sizes[0] for _, plan in state.schedule.entries]
    assert shares[0] == 100
    assert 100 < shares[1] <= 300
    assert trained.true_step(state.plan.batch_sizes) <= 1.03 * trained.optimum(state.settings)


def through_storage(state):
    plain = json.loads(json.dumps(state.to_dict()))
    assert Orchestration.from_dict(plain) == state
    return Orchestration.from_dict(plain)


def test_the_state_goes_through_plain_values(cluster):
    common = {"memory": (13, 15, 9), "row_caps": when_it_was_too_small((13, 15, 9)), "noise": 0.01}
    stored = cluster(DEVICES, 96, after_exchange=through_storage, **common)
    plain = cluster(DEVICES, 96, **common)
    options = {"in_passes": True, "parks": True, "lower": (0, 0, 0)}
    state = stored.train(stored.settings(**options))
    assert state == plain.train(plain.settings(**options))
    resumed = Orchestration.resume(state.settings, state.to_dict(), 500)
    assert resumed.plan == state.plan
    assert resumed.watch.bounds == state.watch.bounds
    assert resumed.settings == state.settings
    bounded = replace(state.settings, in_passes=False)
    assert state.plan.has_passes
    assert Orchestration.resume(bounded, state.to_dict(), 500).phase == "warmup"


def test_old_settings_are_read():
    settings_ = OrchestrationSettings(2, 8, (1, 1), (8, 8))
    old = settings_.to_dict()
    for name in ("in_passes", "parks", "least_rows"):
        del old[name]
    assert OrchestrationSettings.from_dict(old) == settings_
    told = replace(settings_, in_passes=True, parks=True, least_rows=2)
    assert OrchestrationSettings.from_dict(json.loads(json.dumps(told.to_dict()))) == told


# The watch


def test_a_throttled_device_in_passes_gets_fewer_of_them():
    training = WatchedTraining(
        [LinearTime(0.1, 0.01), LinearTime(0.1, 0.02)],
        slower=lambda step, rank: 3.0 if rank == 0 and step >= 200 else 1.0,
        memory=(40, 256),
        row_caps=(40, 256),
        options={"in_passes": True},
    ).run(400)
    before = training.state.schedule.plan_at(199)
    change = training.changes[-1]
    assert change.step > 200
    assert training.efficiency(199) > 0.97
    assert training.efficiency(399) > 0.97
    passes = [len(plan.passes_of(0, plan.batch_sizes[0])) for plan in (before, training.state.plan)]
    assert passes[0] > passes[1] > 1
    assert not [each for each in training.changes if 60 < each.step <= 200]


def test_a_steady_training_in_passes_is_left_alone():
    training = WatchedTraining(
        [LinearTime(0.1, 0.01), LinearTime(0.1, 0.02), LinearTime(0.3, 0.01)],
        noise=0.01,
        memory=(30, 256, 50),
        row_caps=(30, 256, 50),
        options={"in_passes": True},
    ).run(1500)
    assert len(training.changes) <= 1
    assert training.efficiency(1499) > 0.97


def test_rows_that_move_in_passes_of_the_same_size_are_in_no_doubt():
    models = (LinearTime(0.1, 0.01), LinearTime(0.1, 0.02))
    bounds = Bounds((1, 1), (148, 148), 1, row_caps=(16, None))
    watch = Watch(models, bounds, doubt=0.01, spans=(2, 100))
    finding = watching.Finding((64, 84), 0.1, 0.1, 1, (1.0, 1.0))

    def doubt(of):
        return watching._Search(of, (48, 100), every_window=True)._doubt(finding)

    assert doubt(watch) == pytest.approx(2 * np.sqrt(2) * 0.01 * 16 / 100)
    unbounded = replace(watch, bounds=replace(bounds, row_caps=None))
    assert doubt(unbounded) == pytest.approx(2 * np.sqrt(2) * 0.01 * 16 / 2)


def test_ratios_are_against_the_passes_that_ran():
    training = WatchedTraining(
        [LinearTime(0.1, 0.01), LinearTime(0.1, 0.02)],
        memory=(40, 256),
        row_caps=(40, 256),
        options={"in_passes": True},
    ).run(100)
    watch = training.state.watch
    two, three = 0.2 + 0.01 * 80, 0.3 + 0.01 * 80
    assert watch.ratios(0, [80, 80], [two, three], [2, 3]) == pytest.approx([1, 1], rel=0.01)
    (ratio,), _ = watch.ratios_of_all([(80, 176)], np.asarray([[two, 1.0]]))
    assert ratio == pytest.approx(1, rel=0.01)


# Profiles


def test_a_plan_in_passes_is_written_read_and_checked(cluster):
    memory = (20, 96, 96)
    trained = cluster(DEVICES, 96, memory=memory, row_caps=memory)
    state = trained.train(trained.settings(in_passes=True))
    assert state.plan.has_passes
    facts = made_for(state.settings)
    profile = Profile.of(state, facts)
    read = Profile.from_json(profile.to_json())
    assert read == profile
    again = trained.train(state.settings, state=KnownPlan.of(read, state.settings, 0))
    assert again.schedule.entries == ((0, state.plan),)
    assert again.reason.startswith("the first steps took as long as the profile says")
    slower = cluster([LinearTime(4.0, 0.4), *DEVICES[1:]], 96, memory=memory, row_caps=memory)
    reasons = []
    slower.after_exchange = lambda state: reasons.append(state.reason) or state
    slower.train(state.settings, state=KnownPlan.of(read, state.settings, 0))
    assert reasons[0].startswith("rank 0 takes ")
    bounded = replace(facts, in_passes=False)
    assert facts.difference(bounded) == (
        "the leave to run several passes was True, and here it is False"
    )


def test_a_profile_of_an_earlier_release_is_read(cluster):
    trained = cluster(DEVICES, 96)
    state = trained.train(trained.settings())
    facts = made_for(state.settings)
    profile = Profile.of(state, facts)
    values = json.loads(profile.to_json())
    del (
        values["plan"]["rows_per_pass"],
        values["made_for"]["in_passes"],
        values["made_for"]["parks"],
    )
    assert Profile.from_json(json.dumps(values)) == profile
