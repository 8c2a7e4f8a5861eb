"""How the warm-up runs: its rounds, its ends, and its state between processes."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import pytest

from lightning_boa.errors import MeasurementError, OptionError, PlanError
from lightning_boa.planning import (
    LinearTime,
    Orchestration,
    OrchestrationSettings,
    StepRecord,
)

THREE_KINDS = [LinearTime(0.1, 0.2), LinearTime(0.3, 0.4), LinearTime(0.0, 1.0)]


FIXED_COSTS = [LinearTime(5.0, 0.2), LinearTime(20.0, 0.4), LinearTime(0.0, 1.0)]


def records(state, steps, *, models=THREE_KINDS, step_rows=None):
    step_rows = step_rows or state.settings.global_batch_size
    for step in steps:
        rows = state.schedule.plan_at(step).rows_of(step_rows)
        for rank, (size, model) in enumerate(zip(rows, models, strict=True)):
            time = float(model.seconds(size))
            yield StepRecord(step, rank, size, step_rows, time, 0.01, 0.02, 0.03, 2 * time)


def begin(first_step=0, **options):
    values = {"lower": (1,) * 3, "upper": (96,) * 3, **options}
    return Orchestration.begin(OrchestrationSettings(3, 96, **values), first_step)


def observe(state, steps, *, models=THREE_KINDS, **options):
    return state.observe(list(records(state, steps, models=models)), **options)


def test_begins_with_the_equal_split_and_exchanges_after_six_steps():
    state = begin(first_step=100)
    assert state.phase == "warmup"
    assert state.plan.batch_sizes == (32, 32, 32)
    assert state.exchange_after == 105
    assert state.fits == (None, None, None)
    assert state.equal_step_seconds is None
    assert state.planned_step_seconds is None


def test_the_second_split_begins_at_the_first_free_step():
    state = observe(begin(), range(6), first_free_step=14)
    assert state.phase == "warmup"
    assert state.schedule.plan_at(13).batch_sizes == (32, 32, 32)
    second = state.schedule.plan_at(14).batch_sizes
    assert all(abs(size - 32) >= 4 and size <= 96 for size in second)
    assert state.exchange_after == 14 + 5 - 1
    assert state.planned_measurement is None


def test_an_observed_state_leaves_the_former_as_it_was():
    state = begin()
    after = observe(state, range(6), first_free_step=6)
    assert state == begin()
    assert after != state


def test_late_records_prolong_a_round():
    state = begin().observe([], first_free_step=6)
    assert (state.phase, state.round, state.exchange_after) == ("warmup", 0, 11)
    state = observe(state, range(6), first_free_step=12)
    assert state.round == 1


def test_without_any_records_the_equal_split_stays_in_the_end():
    state = begin()
    for _ in range(20):
        if state.phase == "planned":
            break
        state = state.observe([], first_free_step=state.exchange_after + 1)
    assert state.phase == "planned"
    assert state.plan.batch_sizes == (32, 32, 32)
    assert "could be measured" in state.reason


def test_short_steps_are_not_used():
    state = begin()
    short = list(records(state, range(6), step_rows=30))
    after = state.observe(short, first_free_step=6)
    assert after.records == ()
    assert after.round == 0


def test_after_the_plan_one_more_exchange_measures_it(cluster):
    states = []
    trained = cluster(THREE_KINDS, 96, after_exchange=lambda state: states.append(state) or state)
    trained.train(trained.settings())
    assert [state.phase for state in states[-2:]] == ["planned", "planned"]
    planned, measured = states[-2:]
    assert planned.exchange_after == planned.schedule.entries[-1][0] + 8
    assert measured.exchange_after is None
    assert measured.schedule == planned.schedule
    assert measured.planned_measurement.steps >= 8
    later = measured.observe([], first_free_step=1000)
    assert later == measured


def test_the_confirming_steps_may_lead_to_a_better_plan(cluster):
    floored = [LinearTime(2.0, 0.2, 20.0)] * 4 + [LinearTime(2.0, 0.4, 10.0)] * 3
    before, after = [], []
    for seed in range(20):
        trained = cluster([*floored, LinearTime(2.0, 1.0)], 512, noise=0.02, seed=seed)
        state = trained.train(trained.settings())
        if state.refined:
            (_, first), (_, second) = state.schedule.entries[-2:]
            before.append(trained.true_step(first.batch_sizes))
            after.append(trained.true_step(second.batch_sizes))
    assert len(after) >= 3
    assert sum(after) < sum(before)


def test_confirming_steps_as_predicted_change_nothing():
    state = observe(begin(), range(6), first_free_step=6)
    state = observe(state, range(6, 9), first_free_step=9, closing=True)
    done = observe(state, range(9, 18), first_free_step=20)
    assert done.exchange_after is None
    assert done.schedule == state.schedule


@pytest.mark.parametrize("warmup", [1, 2, 3, 4, 5, 6, 8, 9, 12, 13, 20, 40])
@pytest.mark.parametrize("read_ahead", [0, 2, 8])
def test_a_number_of_steps_is_the_length_of_the_warmup(cluster, warmup, read_ahead):
    ends = []

    def note(state):
        if state.phase == "planned" and not ends:
            ends.append(state.records[-1].step + 1)
        return state

    trained = cluster(THREE_KINDS, 96, read_ahead=read_ahead, after_exchange=note)
    state = trained.train(trained.settings(warmup=warmup))
    assert ends == [warmup]
    first_steps = [first for first, _ in state.schedule.entries]
    assert max(first_steps[:-1], default=0) < warmup
    assert first_steps[-1] == warmup + read_ahead
    assert trained.true_step(state.plan.batch_sizes) < trained.true_step((32, 32, 32))
    if warmup >= 12 and read_ahead == 0:
        assert trained.true_step(state.plan.batch_sizes) <= 1.03 * trained.optimum(state.settings)


def test_twelve_steps_are_three_rounds_of_four(cluster):
    ends = []
    trained = cluster(
        THREE_KINDS,
        96,
        read_ahead=0,
        after_exchange=lambda state: ends.append(state.records[-1].step + 1) or state,
    )
    trained.train(trained.settings(warmup=12))
    assert ends[:3] == [4, 8, 12]


def test_a_number_of_steps_goes_on_beyond_an_epoch(cluster):
    trained = cluster(THREE_KINDS, 96, steps_per_epoch=5)
    state = trained.train(trained.settings(warmup=12))
    assert trained.true_step(state.plan.batch_sizes) <= 1.03 * trained.optimum(state.settings)


@pytest.mark.parametrize(
    ("steps_per_epoch", "short_last"),
    [(1, 0), (2, 0), (3, 0), (4, 0), (7, 0), (10, 0), (2, 20), (3, 20), (4, 20), (7, 20)],
)
def test_short_epochs_end_up_planned(cluster, steps_per_epoch, short_last):
    trained = cluster(THREE_KINDS, 96, steps_per_epoch=steps_per_epoch, short_last=short_last)
    state = trained.train(trained.settings(), most_steps=20 * steps_per_epoch + 20)
    assert state.phase == "planned"
    assert trained.true_step(state.plan.batch_sizes) <= 1.03 * trained.optimum(state.settings)


def test_an_epoch_that_ends_in_the_first_round_keeps_the_warmup():
    state = observe(begin(), range(3), first_free_step=3, closing=True)
    assert state.phase == "warmup"
    assert state.plan.batch_sizes != (32, 32, 32)
    state = observe(begin(), range(2), first_free_step=2, closing=True)
    assert state == replace(begin(), records=state.records)


def test_an_epoch_that_ends_after_two_sizes_ends_the_warmup():
    state = observe(begin(), range(6), first_free_step=6)
    state = observe(state, range(6, 9), first_free_step=9, closing=True)
    assert state.phase == "planned"
    assert state.schedule.entries[-1][0] == 9


def test_an_epoch_that_ends_before_the_next_split_begins_goes_on():
    state = observe(begin(), range(6), first_free_step=8)
    after = observe(state, range(6, 8), first_free_step=8, closing=True)
    assert after.phase == "warmup"
    assert after.schedule == state.schedule
    assert after.exchange_after == state.exchange_after


def test_an_epoch_that_ends_before_a_later_split_begins_takes_it_as_the_plan():
    state = observe(begin(), range(6), first_free_step=6, models=FIXED_COSTS)
    state = observe(state, range(6, 11), first_free_step=13, models=FIXED_COSTS)
    assert state.phase == "warmup"
    after = observe(state, range(11, 13), first_free_step=13, closing=True, models=FIXED_COSTS)
    assert after.phase == "planned"
    assert after.plan == state.plan
    assert "before the latest split began" in after.reason


def test_the_state_survives_pickle_and_plain_values_at_every_exchange(cluster):
    def through_storage(state):
        plain = state.to_dict()
        assert only_plain(plain)
        assert Orchestration.from_dict(json.loads(json.dumps(plain))) == state
        assert pickle.loads(pickle.dumps(state)) == state
        return Orchestration.from_dict(plain)

    common = {"devices": THREE_KINDS, "batch": 96, "noise": 0.02, "row_caps": (90, 90, 90)}
    stored = cluster(**common, after_exchange=through_storage)
    plain = cluster(**common)
    assert stored.train(stored.settings()) == plain.train(plain.settings())


def only_plain(value):
    if isinstance(value, dict):
        return all(type(key) is str and only_plain(item) for key, item in value.items())
    if isinstance(value, list):
        return all(only_plain(item) for item in value)
    return value is None or type(value) in (str, int, float)


def test_a_resume_goes_on_with_the_plan(cluster):
    trained = cluster(THREE_KINDS, 96)
    done = trained.train(trained.settings())
    state = Orchestration.resume(done.settings, done.to_dict(), 500)
    assert state.phase == "planned"
    assert state.schedule.entries == ((500, done.plan),)
    assert state.exchange_after is None
    assert state.equal_step_seconds == done.equal_step_seconds
    assert state.planned_step_seconds == done.planned_step_seconds


def test_a_resume_measures_a_plan_that_was_not_yet_measured():
    state = observe(begin(), range(6), first_free_step=6, models=FIXED_COSTS)
    state = observe(state, range(6, 9), first_free_step=9, closing=True, models=FIXED_COSTS)
    resumed = Orchestration.resume(state.settings, state.to_dict(), 9)
    assert resumed.phase == "planned"
    assert resumed.exchange_after == 9 + 9 - 1


@pytest.mark.parametrize(
    "settings",
    [
        OrchestrationSettings(4, 96, (1,) * 4, (96,) * 4),
        OrchestrationSettings(3, 90, (1,) * 3, (90,) * 3),
        OrchestrationSettings(3, 96, (1,) * 3, (40,) * 3),
        OrchestrationSettings(3, 96, (1,) * 3, (96,) * 3, granularity=32),
    ],
)
def test_a_resume_in_other_circumstances_begins_anew(cluster, settings):
    trained = cluster(THREE_KINDS, 96)
    done = trained.train(trained.settings())
    assert Orchestration.resume(settings, done.to_dict(), 7) == Orchestration.begin(settings, 7)


def test_a_resume_within_the_warmup_begins_anew():
    state = observe(begin(), range(6), first_free_step=6)
    resumed = Orchestration.resume(state.settings, state.to_dict(), 8)
    assert resumed == Orchestration.begin(state.settings, 8)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"warmup": 0}, OptionError, "^warmup"),
        ({"warmup": "long"}, OptionError, "^warmup"),
        ({"granularity": 0}, OptionError, "^granularity"),
        ({"lower": (1, 1)}, OptionError, "^lower"),
        ({"upper": (96,)}, OptionError, "^upper"),
        ({"lower": (40, 40, 40)}, PlanError, "lower bounds"),
    ],
)
def test_wrong_settings_are_refused(options, error, words):
    with pytest.raises(error, match=words):
        begin(**options)


def test_records_of_unknown_ranks_are_refused():
    record = StepRecord(0, 3, 1, 96, 1.0, 0.0, 0.0, 0.0, 1.0)
    with pytest.raises(MeasurementError, match="rank 3 at step 0; expected ranks 0 to 2"):
        begin().observe([record], first_free_step=6)


def test_row_caps_of_the_wrong_length_are_refused():
    with pytest.raises(MeasurementError, match="row_caps"):
        begin().observe([], first_free_step=6, row_caps=[1, 2])


@pytest.mark.parametrize("seed", range(6))
def test_noise_is_answered_by_more_steps(cluster, seed):
    devices = [LinearTime(0.0, 1.0), LinearTime(0.0, 1.0), LinearTime(0.0, 1.6)]
    noisy = cluster(devices, 128, noise=0.2, seed=seed)
    settings = noisy.settings()
    state = noisy.train(settings)
    assert noisy.true_step(state.plan.batch_sizes) < 1.1 * noisy.optimum(settings)
    assert len(state.records) > 2 * len(cluster(devices, 128).train(settings).records)


def test_a_round_whose_noise_hides_everything_is_prolonged(cluster):
    devices = [LinearTime(0.0, 1.0), LinearTime(0.0, 1.1)]
    noisy = cluster(devices, 128, noise=0.3, seed=1)
    assert noisy.train(noisy.settings()).prolongations == 3


def test_clear_measurements_prolong_nothing(cluster):
    for devices in ([LinearTime(0.0, 1.0)] * 2, THREE_KINDS):
        clear = cluster(devices, 96, noise=0.005)
        assert clear.train(clear.settings()).prolongations == 0


def test_a_plan_that_does_not_shorten_the_measured_step_is_withdrawn():
    """Rank 2 was slow in the warm-up only: its device is as fast as the others."""
    state = begin()
    now = 0
    equal = [LinearTime(0.0, 1.0)] * 3
    while state.phase == "warmup":
        end = state.exchange_after
        steps = range(now, end + 1)
        slow = [LinearTime(0.0, 1.0), LinearTime(0.0, 1.0), LinearTime(0.0, 2.0)]
        state = observe(state, steps, models=slow, first_free_step=end + 1)
        now = end + 1
    assert state.plan.batch_sizes != (32, 32, 32)
    planned = list(records(state, range(now, state.exchange_after + 1), models=equal))
    whole = [replace(record, period=130.0) for record in planned]
    state = state.observe(whole, first_free_step=state.exchange_after + 1)
    assert state.plan.batch_sizes == (32, 32, 32)
    assert (state.phase, state.exchange_after) == ("planned", None)
    assert "no shorter" in state.reason
