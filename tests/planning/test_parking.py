"""Ranks that are left without rows: only where that gains, and not for ever."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_boa.planning import (
    BatchPlan,
    Block,
    InPasses,
    LinearTime,
    Orchestration,
    OrchestrationSettings,
    Parkable,
    Profile,
    Rebalancing,
    StepRecord,
)
from lightning_boa.planning.parking import allocate_or_park
from lightning_boa.planning.records import StepCost, measure_split, step_costs
from lightning_boa.planning.rounds import LEAST_GAIN, Evidence
from lightning_boa.planning.varying import as_usual_steps
from lightning_boa.planning.watching import Bounds, Watch
from tests.planning.test_profile import made_for
from tests.planning.watched_training import WatchedTraining

GAIN = 0.01

times = st.builds(
    LinearTime,
    st.sampled_from([0.0, 1.0, 5.0, 20.0]),
    st.floats(0.1, 2.0),
    st.sampled_from([0.0, 4.0]),
)
devices = times | st.builds(InPasses, times, st.integers(1, 6))


def step(models, split):
    return max(float(model.seconds(rows)) for model, rows in zip(models, split, strict=True))


def best_by_parked(models, rows, seat):
    """Seconds of the fastest split for each number of ranks without rows."""
    best = {}
    for split in product([0, *range(seat, rows + 1)], repeat=len(models)):
        if sum(split) == rows:
            parked = split.count(0)
            best[parked] = min(best.get(parked, float("inf")), step(models, split))
    return best


@given(st.lists(devices, min_size=1, max_size=4), st.integers(4, 12))
@settings(max_examples=80)
def test_as_few_ranks_are_parked_as_will_do(models, rows):
    models = [Parkable(model) for model in models]
    ranks = len(models)
    split = allocate_or_park(
        models, rows, lower=[0] * ranks, upper=[rows] * ranks, seats=[1] * ranks, least_gain=GAIN
    ).tolist()
    assert sum(split) == rows
    best = best_by_parked(models, rows, 1)
    fastest = min(best.values())
    assert step(models, split) <= (1 + GAIN) * fastest * (1 + 1e-9)
    fewest = min(parked for parked, seconds in best.items() if seconds < (1 + GAIN) * fastest)
    assert split.count(0) == fewest
    assert step(models, split) == pytest.approx(best[fewest], rel=1e-9)


@given(st.lists(devices, min_size=2, max_size=3), st.integers(6, 12))
@settings(max_examples=40)
def test_a_rank_has_no_rows_or_as_many_as_its_seat(models, rows):
    models = [Parkable(model) for model in models]
    ranks = len(models)
    split = allocate_or_park(
        models, rows, lower=[0] * ranks, upper=[rows] * ranks, seats=[2] * ranks, least_gain=GAIN
    ).tolist()
    assert sum(split) == rows
    assert 1 not in split
    everybody = best_by_parked(models, rows, 2)[0]
    assert step(models, split) <= everybody * (1 + 1e-9)


def test_a_rank_is_parked_for_a_hundredth_and_not_for_less():
    def with_overhead(overhead):
        models = [Parkable(LinearTime(0.0, 1.0)), Parkable(LinearTime(overhead, 0.001))]
        bounds = {"lower": [0, 0], "upper": [100, 100], "seats": [1, 1], "least_gain": GAIN}
        return allocate_or_park(models, 100, **bounds).tolist()

    assert 0 not in with_overhead(100.9)
    assert with_overhead(101.1) == [100, 0]


def test_without_seats_nobody_is_parked_for_gain():
    models = [LinearTime(0.0, 1.0), LinearTime(50.0, 1.0)]
    bounds = {"lower": [1, 1], "upper": [10, 10], "seats": None, "least_gain": GAIN}
    assert allocate_or_park(models, 10, **bounds).tolist() == [9, 1]


def test_fewer_rows_than_ranks_leave_some_without():
    models = [Parkable(LinearTime(overhead, 1.0)) for overhead in (3.0, 1.0, 2.0)]
    bounds = {"lower": [0] * 3, "upper": [2] * 3, "seats": [1] * 3, "least_gain": GAIN}
    assert allocate_or_park(models, 2, **bounds).tolist() == [0, 1, 1]


def test_a_parked_worker_takes_no_time():
    model = Parkable(LinearTime(3.0, 1.0, 9.0))
    assert model.seconds([0, 1, 10]).tolist() == [0.0, 9.0, 13.0]
    assert float(model.seconds(0)) == 0


# The loop


def parking(cluster, models, batch, **options):
    trained = cluster(models, batch, **options)
    ranks = len(models)
    return trained, trained.settings(parks=True, lower=(0,) * ranks)


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.03])
@pytest.mark.parametrize(
    "device", [LinearTime(2.0, 0.5), LinearTime(30.0, 0.01), LinearTime(0.0, 1.0, 40.0)]
)
@pytest.mark.parametrize(("ranks", "batch"), [(2, 64), (3, 97), (4, 8), (8, 300)])
def test_equal_devices_are_never_parked(cluster, ranks, batch, device, noise):
    for seed in range(3):
        trained, options = parking(cluster, [device] * ranks, batch, noise=noise, seed=seed)
        state = trained.train(options)
        assert state.plan.batch_sizes == state.settings.equal_batch_sizes
        assert all(0 not in plan.batch_sizes for _, plan in state.schedule.entries)


@pytest.mark.parametrize("noise", [0.0, 0.01])
@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_rank_whose_fixed_time_is_long_is_parked_once_it_has_been_measured(
    cluster, victim, noise
):
    models = [LinearTime(0.1, 0.1)] * 3
    models[victim] = LinearTime(20.0, 0.1)
    trained, options = parking(cluster, models, 96, noise=noise)
    state = trained.train(options)
    assert state.plan.batch_sizes[victim] == 0
    assert sorted(state.plan.batch_sizes) == pytest.approx([0, 48, 48], abs=2 if noise else 0)
    assert 0 not in state.schedule.entries[0][1].batch_sizes
    assert 0 not in state.schedule.entries[1][1].batch_sizes
    assert (
        f"without rows for rank {victim}, whose fixed time costs more than it brings"
        in state.reason
    )
    assert state.plan.rank_seconds[victim] == 0
    assert state.planned_step_seconds < 0.4 * state.equal_step_seconds


def test_every_rank_is_measured_at_a_second_size_before_one_is_parked(cluster):
    models = [LinearTime(0.0, slope) for slope in (0.1, 0.2, 1.0, 0.1)]
    trained, options = parking(cluster, models, 5)
    state = trained.train(options)
    assert all(0 not in plan.batch_sizes for _, plan in state.schedule.entries[:2])


def test_a_rank_that_brings_something_is_not_parked(cluster):
    models = [LinearTime(0.1, 0.1), LinearTime(0.1, 0.1), LinearTime(3.0, 0.1)]
    trained, options = parking(cluster, models, 96)
    state = trained.train(options)
    assert 0 < state.plan.batch_sizes[2] < 32
    assert "without rows" not in state.reason


def test_without_leave_nobody_is_parked(cluster):
    models = [LinearTime(0.1, 0.1), LinearTime(0.1, 0.1), LinearTime(20.0, 0.1)]
    trained = cluster(models, 96)
    assert trained.train(trained.settings()).plan.batch_sizes[2] == 1


def test_a_rank_that_was_never_measured_is_never_parked():
    records = tuple(
        StepRecord(number, rank, 32, 96, 1.0 + rank, 0.0, 0.0, 0.0, 2.0)
        for number in range(4)
        for rank in range(2)
    )
    evidence = Evidence(
        BatchPlan((32,) * 3), (32,) * 3, (0,) * 3, (96,) * 3, 1, records, parks=True
    )
    assert evidence.least == (0, 0, 1)
    assert evidence.seats == (1, 1, 1)
    assert evidence.refit[2] >= 1
    assert replace(evidence, parks=False).least == (0, 0, 0)
    assert replace(evidence, least_rows=2).least == (0, 0, 2)


def test_a_seat_of_two_rows_is_kept_in_every_split(cluster):
    models = [LinearTime(0.1, 0.1), LinearTime(4.0, 2.0), LinearTime(20.0, 0.1)]
    trained = cluster(models, 96)
    state = trained.train(trained.settings(parks=True, lower=(0,) * 3, least_rows=2))
    assert state.plan.batch_sizes[2] == 0
    assert all(1 not in plan.batch_sizes for _, plan in state.schedule.entries)


def test_steps_without_records_of_parked_ranks_are_whole():
    records = [
        StepRecord(number, rank, 5 - rank, 9, 1.0 + rank, 0.1, 0.0, 0.0, 2.0)
        for number in range(3)
        for rank in range(2)
    ]
    measured = measure_split(records, (5, 4, 0))
    assert measured.steps == 3
    assert measured.rank_compute == (1.0, 2.0, 0.0)
    assert measured.step_period == 2.0
    assert step_costs(records, (5, 4, 0)) == [StepCost(exposed=0.0, period=2.0)] * 3
    assert measure_split(records[:-1], (5, 4, 0)).steps == 2
    assert measure_split(records, (5, 3, 1)) is None


def test_batches_of_varying_size_are_told_apart_by_the_ranks_that_always_run():
    plans = [BatchPlan((10, 10, 10)), BatchPlan((15, 15, 0))]
    speeds = (0.1, 0.2, 9.0)
    records = [
        StepRecord(at, rank, rows, 60, cost * speeds[rank] * rows, 0.0, 0.0, 0.0, 1.0)
        for at, (plan, cost) in enumerate(zip(plans, (1.0, 3.0), strict=True))
        for rank, rows in enumerate(plan.rows_of(60))
        if rows
    ]
    usual = as_usual_steps(records, lambda at: plans[at], 30)
    per_row = {(each.step, each.rank): each.compute / each.rows for each in usual}
    assert len(usual) == 5
    assert per_row[1, 0] == pytest.approx(per_row[0, 0])
    assert per_row[1, 1] == pytest.approx(per_row[0, 1])


def test_varying_batches_may_lead_to_a_plan_without_a_rank():
    models = [LinearTime(0.01, 0.01), LinearTime(0.01, 0.01), LinearTime(5.0, 0.01)]
    state = Orchestration.begin(
        OrchestrationSettings(3, 90, (0,) * 3, (90,) * 3, varying=True, parks=True), 0
    )
    pending = []
    for at in range(400):
        step_rows = 90 + 10 * (at % 3)
        rows = state.schedule.plan_at(at).rows_of(step_rows)
        seconds = [
            float(Parkable(model).seconds(each)) for model, each in zip(models, rows, strict=True)
        ]
        pending += [
            StepRecord(at, rank, each, step_rows, max(time, 1e-9), 0.0, 0.0, 0.0, max(seconds))
            for rank, (each, time) in enumerate(zip(rows, seconds, strict=True))
        ]
        if at == state.exchange_after:
            state, pending = state.observe(pending, first_free_step=at + 3), []
        if state.exchange_after is None:
            break
    assert state.exchange_after is None
    assert state.plan.batch_sizes[2] == 0
    assert state.planned_measurement is not None
    assert len(state.records) < 3 * 60


def test_a_profile_keeps_who_is_parked(cluster):
    models = [LinearTime(0.1, 0.1), LinearTime(20.0, 0.1), LinearTime(0.1, 0.1)]
    trained, options = parking(cluster, models, 96)
    state = trained.train(options)
    facts = made_for(state.settings)
    profile = Profile.of(state, facts)
    read = Profile.from_json(profile.to_json())
    assert read == profile
    assert read.plan.batch_sizes[1] == 0
    assert read.fits[1].model == state.fits[1].model
    assert facts.difference(replace(facts, parks=False)) is not None


# The watch


def throttled(victim, factor, since, until=10**9):
    return lambda step, rank: factor if rank == victim and since <= step < until else 1.0


def watched(models, **options):
    parks = {"parks": True, "lower": (0,) * len(models)}
    return WatchedTraining(models, options=parks, **options)


@pytest.mark.parametrize("parked", [0, 1, 2])
@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_a_parked_rank_comes_back_when_another_becomes_slow(parked, noise):
    models = [LinearTime(0.1, 0.02)] * 3
    models[parked] = LinearTime(3.5, 0.01)
    slow = (parked + 1) % 3
    training = watched(models, slower=throttled(slow, 10.0, 200), noise=noise).run(500)
    before = training.state.schedule.plan_at(199)
    assert before.batch_sizes[parked] == 0
    assert training.state.plan.batch_sizes[parked] > 0
    assert training.efficiency(199) > 0.97
    assert training.efficiency(499) > 0.97
    back = next(change for change in training.changes if change.batch_sizes[parked])
    assert 200 < back.step < 260
    assert f"with rows for rank {parked} again" in back.reason
    assert json.loads(json.dumps(training.state.to_dict()))["watch"]["bounds"][-1] == [1, 1, 1]
    saved = Orchestration.from_dict(json.loads(json.dumps(training.state.to_dict())))
    assert saved == training.state


def test_a_parked_rank_comes_back_for_as_long_as_another_is_slow():
    models = [LinearTime(0.1, 0.02), LinearTime(3.5, 0.01), LinearTime(0.1, 0.02)]
    training = watched(models, slower=throttled(0, 10.0, 200, until=900), noise=0.005).run(1300)
    rows = [training.state.schedule.plan_at(at).batch_sizes[1] for at in (199, 899, 1299)]
    assert rows[0] == rows[2] == 0 < rows[1]
    assert training.efficiency(899) > 0.97
    assert training.efficiency(1299) > 0.97
    assert len([change for change in training.changes if change.step > 200]) <= 4


def test_a_rank_that_became_slow_is_parked():
    models = [LinearTime(0.5, 0.01), LinearTime(0.1, 0.02), LinearTime(0.1, 0.02)]
    training = watched(models, slower=throttled(0, 10.0, 200)).run(500)
    assert 0 not in training.state.schedule.plan_at(199).batch_sizes
    assert training.state.plan.batch_sizes[0] == 0
    assert training.efficiency(499) > 0.97
    assert "without rows for rank 0" in training.changes[-1].reason


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_the_watch_parks_no_equal_devices(noise):
    training = watched([LinearTime(0.3, 0.002)] * 4, noise=noise).run(3000)
    assert training.changes == ()
    assert set(training.state.plan.batch_sizes) == {64}


def test_the_watch_parks_nobody_for_less_than_a_hundredth():
    def found(overhead):
        bounds = Bounds((0, 0), (128, 128), 1, seats=(1, 1))
        models = (LinearTime(0.0, 0.02), LinearTime(overhead, 0.001))
        watch = Watch(models, bounds).with_block(Block((1.0, 1.0), 0.0, 1.0, 0.0))
        return watch.search((60, 68)).batch_sizes

    assert found(2.57) == (127, 1)
    assert found(2.60) == (128, 0)


def test_parking_is_as_calm_as_any_other_change():
    """A rank that is worth next to nothing neither comes nor goes."""
    models = [LinearTime(0.1, 0.02), LinearTime(0.1, 0.02), LinearTime(2.63, 0.01)]
    training = watched(models, noise=0.02).run(3000)
    assert len(training.changes) <= 1


def test_a_change_says_who_comes_and_goes():
    change = Rebalancing(9, (4, 4, 0, 4), (0, 6, 6, 0), (1.0,) * 4, 0.5, 1.0)
    assert change.reason.endswith(", without rows for ranks 0, 3, with rows for rank 2 again")


def test_the_least_gain_of_parking_is_that_of_any_plan():
    assert LEAST_GAIN == GAIN
