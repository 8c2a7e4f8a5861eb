"""What the watch does when devices change their speed, and that it does nothing when they do not."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from lightning_boa.planning import (
    BLOCK_STEPS,
    Block,
    LinearTime,
    Orchestration,
    OrchestrationSettings,
    TableTime,
    block_of,
    watching,
)
from lightning_boa.planning.rounds import cautious, hopeful
from lightning_boa.planning.watching import Bounds, Watch
from tests.planning.watched_training import WatchedTraining

TWO = [LinearTime(0.1, 0.01), LinearTime(0.1, 0.02)]
FOUR = [
    LinearTime(0.1, 0.01),
    LinearTime(0.3, 0.04),
    LinearTime(0.05, 0.02),
    LinearTime(0.1, 0.01),
]
EIGHT = [
    *[LinearTime(0.1, 0.01)] * 3,
    *[LinearTime(0.05, 0.02)] * 3,
    *[LinearTime(0.2, 0.035)] * 2,
]
EQUAL = [LinearTime(0.1, 0.01)] * 4
PROPORTIONAL = [LinearTime(0.0, 0.01)] * 4
CLUSTERS = {"two": TWO, "four": FOUR, "eight": EIGHT, "equal": EQUAL, "proportional": PROPORTIONAL}

MOST_STEPS_TO_A_CHANGE = 20


def from_step(begin, factor, victim, *, until=10**9):
    return lambda step, rank: factor if rank == victim and begin <= step < until else 1.0


def toggling(victim, since):
    return lambda step, rank: (
        2.0 if rank == victim and step >= since and (step - since) // 30 % 2 == 0 else 1.0
    )


def changes_since(step, training):
    """Those but the one refinement of the warm-up's plan."""
    assert sum(change.step <= step for change in training.changes) <= 1
    return [change for change in training.changes if change.step > step]


def wishes_since(step, training):
    return [wished for wished in training.wished_at if wished >= step]


def varying_batches(since, seed=0):
    factors = np.random.default_rng(seed).uniform(1, 10, 5000)
    return lambda step: float(factors[step]) if step >= since else 1.0


# A device slows down


@pytest.mark.parametrize(
    ("read_ahead", "phase", "noise"),
    [(0, 0, 0.0), (0, 4, 0.01), (2, 1, 0.01), (2, 3, 0.0), (8, 2, 0.01)],
)
@pytest.mark.parametrize("victim", ["fast", "slow"])
@pytest.mark.parametrize("devices", CLUSTERS.values(), ids=CLUSTERS)
def test_a_device_at_half_speed_leads_to_one_new_plan_soon(
    devices, victim, read_ahead, phase, noise
):
    slowed = 0 if victim == "fast" else len(devices) - 1
    training = WatchedTraining(
        devices,
        slower=from_step(200, 2.0, slowed),
        noise=noise,
        seed=phase,
        read_ahead=read_ahead,
        first_block=phase,
    ).run(400)
    (change,) = changes_since(200, training)
    assert change.step <= 200 + MOST_STEPS_TO_A_CHANGE + read_ahead
    assert training.efficiency(200) < 0.9
    assert training.efficiency(change.step - 1) < 0.9
    assert min(training.efficiency(step) for step in range(change.step, 400)) > 0.97
    assert change.batch_sizes[slowed] < change.batch_sizes_before[slowed]


def test_a_latency_floor_fitted_to_noise_does_not_hide_a_slow_device():
    training = WatchedTraining(
        TWO, slower=from_step(200, 2.0, 1), noise=0.01, seed=3, read_ahead=0, first_block=3
    ).run(500)
    assert len(changes_since(200, training)) <= 3
    assert training.efficiency(499) > 0.97


@pytest.mark.parametrize("victim", [0, 3])
@pytest.mark.parametrize("phase", [0, 3])
def test_where_times_are_proportional_to_rows_one_change_is_enough(phase, victim):
    training = WatchedTraining(
        PROPORTIONAL, slower=from_step(200, 2.0, victim), noise=0.01, first_block=phase, seed=phase
    ).run(500)
    (change,) = training.changes
    assert change.step <= 200 + MOST_STEPS_TO_A_CHANGE + training.read_ahead
    assert training.efficiency(499) > 0.99


@pytest.mark.parametrize("phase", [0, 3])
def test_where_one_size_is_known_a_second_small_change_finds_the_overhead(phase):
    training = WatchedTraining(
        EQUAL, slower=from_step(200, 2.0, 3), first_block=phase, options={"warmup": 8}
    ).run(500)
    first, second = training.changes
    assert first.step <= 200 + MOST_STEPS_TO_A_CHANGE + training.read_ahead
    assert second.step <= first.step + MOST_STEPS_TO_A_CHANGE
    moved = np.abs(np.subtract(second.batch_sizes, first.batch_sizes)).max()
    assert moved <= 0.25 * np.abs(np.subtract(first.batch_sizes, first.batch_sizes_before)).max()
    assert training.efficiency(499) > 0.97


@pytest.mark.parametrize(
    ("devices", "victim", "factor"),
    [
        pytest.param(TWO, 0, 2.0, id="two-fast"),
        pytest.param(TWO, 1, 4.0, id="two-slow"),
        pytest.param(FOUR, 0, 4.0, id="four-fast"),
        pytest.param(FOUR, 1, 2.0, id="four-slow"),
        pytest.param(EIGHT, 0, 4.0, id="eight-fast"),
        pytest.param(EIGHT, 7, 2.0, id="eight-slow"),
    ],
)
def test_a_device_that_recovers_gets_its_rows_back(devices, victim, factor):
    training = WatchedTraining(devices, slower=from_step(200, factor, victim, until=1000)).run(1200)
    planned = training.state.schedule.entries[-3][1].batch_sizes
    slowed, recovered = training.changes
    assert slowed.step <= 200 + MOST_STEPS_TO_A_CHANGE + training.read_ahead
    assert 1000 < recovered.step <= 1000 + 2 * MOST_STEPS_TO_A_CHANGE
    assert slowed.batch_sizes_before == planned
    assert np.abs(np.subtract(recovered.batch_sizes, planned)).max() <= 1
    assert training.efficiency(1199) > 0.99


@pytest.mark.parametrize("victim", [0, 1])
def test_a_device_that_becomes_faster_gets_more_rows(victim):
    training = WatchedTraining(FOUR, slower=from_step(200, 0.5, victim), noise=0.01).run(500)
    (change,) = changes_since(200, training)
    assert change.batch_sizes[victim] > change.batch_sizes_before[victim]
    assert training.efficiency(499) > 0.97


# Nothing has changed


@pytest.mark.parametrize("devices", [EQUAL, [LinearTime(0.02, 0.01)] * 2], ids=["four", "two"])
def test_noise_of_a_tenth_never_moves_equal_devices(devices):
    training = WatchedTraining(devices, noise=0.1, seed=2).run(5000)
    assert training.changes == ()
    assert len(set(training.state.plan.batch_sizes)) == 1


@pytest.mark.parametrize(("devices", "seed"), [(TWO, 0), (FOUR, 0)], ids=["two", "four"])
def test_noise_of_a_tenth_leads_to_no_more_than_one_refinement(devices, seed):
    training = WatchedTraining(devices, noise=0.1, seed=seed).run(5000)
    assert len(training.changes) <= 1
    for change in training.changes:
        assert training.efficiency(change.step) > 1 / 1.01
        assert training.efficiency(change.step) >= training.efficiency(change.step - 1)


def test_single_steps_that_take_fifty_times_as_long_do_nothing():
    outliers = {(300, 0): 50.0, (380, 1): 50.0, (381, 1): 50.0, (402, 0): 50.0, (403, 1): 50.0}
    training = WatchedTraining(TWO, noise=0.01, outliers=outliers).run(600)
    assert {300, 380, 381, 402, 403} <= set(training.measured)
    assert wishes_since(300, training) == []


def test_batches_of_varying_length_do_nothing():
    training = WatchedTraining(FOUR, common=varying_batches(60), noise=0.01).run(1500)
    assert len(training.state.watch.blocks) > 200
    assert wishes_since(60, training) == []


def test_a_slow_device_is_told_from_batches_of_varying_length():
    training = WatchedTraining(
        FOUR, common=varying_batches(60), slower=from_step(300, 2.0, 0), noise=0.01
    ).run(600)
    (change,) = changes_since(300, training)
    assert change.step <= 300 + MOST_STEPS_TO_A_CHANGE + training.read_ahead
    assert change.scales[0] == pytest.approx(2, rel=0.02)
    assert training.efficiency(599) > 0.99


def test_a_slow_loader_changes_nothing_and_is_told_once():
    training = WatchedTraining(TWO, loader_waits=(0.0, 1.0), noise=0.01).run(600)
    assert changes_since(60, training) == []
    told = [slow for at, slow in training.slow_loaders if at == 0]
    ((rank, share),) = told
    assert rank == 1
    assert share == pytest.approx(1 / (1 + training.beside + training.seconds[-1]), rel=0.03)


def test_a_loader_that_takes_little_is_not_told():
    training = WatchedTraining(TWO, loader_waits=(0.1, 0.3), noise=0.01).run(200)
    assert len(training.state.watch.blocks) > 10
    assert training.slow_loaders == []


# A device that keeps toggling


@pytest.mark.parametrize(
    ("devices", "victim", "since", "noise", "limit"),
    [
        pytest.param(TWO, 0, 300, 0.01, 1.01, id="two"),
        pytest.param(TWO, 1, 0, 0.01, 1.01, id="two-from-the-beginning"),
        pytest.param(FOUR, 3, 300, 0.01, 1.01, id="four"),
        pytest.param(FOUR, 3, 300, 0.02, 1.01, id="four-with-more-noise"),
        pytest.param(PROPORTIONAL, 0, 300, 0.01, 1.01, id="proportional"),
        pytest.param(EQUAL, 0, 300, 0.0, 1.01, id="equal-without-noise"),
        pytest.param(EQUAL, 0, 300, 0.01, 1.01, id="equal"),
        pytest.param(EQUAL, 3, 300, 0.02, 1.01, id="equal-with-more-noise"),
    ],
)
def test_a_toggling_device_costs_little(devices, victim, since, noise, limit):
    training = WatchedTraining(devices, slower=toggling(victim, since), noise=noise).run(5000)
    steps = range(max(since, training.watched_from), 5000)
    best = training.seconds_of_best_constant(victim, steps)
    assert sum(training.seconds[steps.start :]) <= limit * best
    assert len(training.changes) <= 6


# Which steps are measured


def test_of_steps_of_12_milliseconds_five_in_two_seconds_are_measured():
    devices = [LinearTime(0.0005, 0.00006), LinearTime(0.0005, 0.00012)]
    training = WatchedTraining(devices, beside=0.012 - 0.0107).run(1500)
    assert training.state.watch.blocks[-1].period == pytest.approx(0.012, rel=0.03)
    firsts = training.measured[::BLOCK_STEPS]
    assert set(np.diff(firsts[1:]).tolist()) <= set(range(168, 181))
    blocks = np.reshape(training.measured[: len(firsts) // 2 * BLOCK_STEPS], (-1, BLOCK_STEPS))
    assert (np.diff(blocks, axis=1) == 1).all()


def test_of_long_steps_every_one_is_measured():
    training = WatchedTraining([LinearTime(0.1, 0.011), LinearTime(0.1, 0.022)]).run(200)
    assert training.seconds[-1] == pytest.approx(2, rel=0.05)
    assert training.measured == list(range(training.measured[0], 200))
    assert len(training.state.watch.blocks) >= len(training.measured) // BLOCK_STEPS - 1


# When the plan may change


def test_without_rebalancing_there_is_no_watch():
    training = WatchedTraining(
        TWO, slower=from_step(200, 2.0, 0), options={"rebalance": "off"}
    ).run(400)
    assert training.state.is_settled
    assert training.measured == []
    assert training.changes == ()


def test_where_wanted_the_plan_changes_at_the_end_of_an_epoch_only():
    training = WatchedTraining(
        TWO, slower=from_step(200, 2.0, 0), steps_per_epoch=150, options={"rebalance": "epoch"}
    ).run(500)
    assert training.decided_at == [299]
    assert 200 < training.wished_at[0] < 220
    assert [first for first, _ in training.state.schedule.entries][-1] == 300 + training.read_ahead
    assert training.efficiency(499) > 0.99


# State


def as_saved(state):
    return Orchestration.from_dict(json.loads(json.dumps(state.to_dict())))


def test_a_state_that_is_saved_after_every_block_goes_on_as_if_it_had_not_been():
    warmed_up = WatchedTraining(FOUR, noise=0.01, seed=1).run(60)
    assert warmed_up.changes == ()
    random = np.random.default_rng(0)
    kept = saved = warmed_up.state
    assert as_saved(kept) == kept
    for number in range(100):
        slowness = np.where(np.arange(4) == 0, 2.0 if 20 <= number < 60 else 1.0, 1.0)
        ratios = slowness[:, None] * random.normal(1, 0.01, (4, BLOCK_STEPS))
        block = block_of(ratios, period=2.0, loader_wait=0.0)
        kept, saved = kept.with_block(block), as_saved(saved.with_block(block))
        assert kept.wants_change == saved.wants_change
        if kept.wants_change:
            step = 100 + BLOCK_STEPS * number
            kept, saved = kept.rebalanced(step), as_saved(saved.rebalanced(step))
        assert saved == kept
    assert len(kept.rebalancings) == 2
    assert saved.schedule.digest == kept.schedule.digest


def resumed(training, first_step, **options):
    settings = replace(training.settings, **options)
    saved = json.loads(json.dumps(training.state.to_dict()))
    return Orchestration.resume(settings, saved, first_step)


def goes_on(training, state, slower, until):
    training.states, training.slower = [state] * len(training.devices), slower
    training.restart_watches(len(training.seconds))
    training.run(until)


def test_resuming_on_the_same_devices_keeps_the_watch():
    training = WatchedTraining(TWO, slower=from_step(200, 2.0, 0)).run(300)
    state = resumed(training, 300)
    assert state.watch == replace(training.state.watch, blocks=())
    assert state.watch.least == 2
    assert state.rebalancings == training.state.rebalancings
    assert state.plan.batch_sizes == training.state.plan.batch_sizes
    assert state.exchange_after is None

    goes_on(training, state, from_step(0, 1.0, 0), 400)
    assert [change.step > 300 for change in training.changes] == [False, True]
    assert training.efficiency(399) > 0.99


def test_a_device_that_was_slow_before_the_stop_only_changes_nothing():
    training = WatchedTraining(FOUR, slower=from_step(200, 2.0, 0), noise=0.01).run(210)
    assert training.state.wants_change
    assert changes_since(200, training) == []
    state = resumed(training, 210)
    assert not state.wants_change
    goes_on(training, state, from_step(0, 1.0, 0), 400)
    assert changes_since(200, training) == []


def test_resuming_before_a_second_size_of_equal_devices_measures_it():
    begun = WatchedTraining(EQUAL)
    begun.run(next(step for step in range(100) if begun.run(step).state.phase == "planned"))
    assert not any(len(fit.batch_sizes) > 1 for fit in begun.state.fits)
    state = resumed(begun, len(begun.seconds))
    first, second, third = [plan.batch_sizes for _, plan in state.schedule.entries]
    assert first == third == (64,) * 4
    assert second == (80, 80, 48, 48)
    assert state.reason == begun.state.reason
    training = WatchedTraining(EQUAL, slower=from_step(200, 2.0, 3))
    training.seconds, training.states = begun.seconds, [state] * 4
    training.run(400)
    (change,) = training.changes
    assert training.efficiency(change.step) > 0.97


def test_resuming_with_other_bounds_changes_what_the_watch_may_do():
    training = WatchedTraining(TWO).run(100)
    state = resumed(training, 100, upper=(200, 100), lower=(3, 2))
    assert state.watch.models == training.state.watch.models
    assert state.watch.bounds == Bounds((3, 2), (200, 100), 1)


def test_resuming_on_other_ranks_begins_anew():
    training = WatchedTraining(TWO).run(100)
    state = resumed(training, 100, world_size=3, lower=(1,) * 3, upper=(256,) * 3)
    assert state.phase == "warmup"
    assert state.watch is None


def test_resuming_without_rebalancing_stops_the_watch():
    training = WatchedTraining(TWO).run(100)
    state = resumed(training, 100, rebalance="off")
    assert state.watch is None
    assert state.plan.batch_sizes == training.state.plan.batch_sizes


# Limits


@st.composite
def trainings(draw):
    ranks = draw(st.integers(2, 6))
    granularity = draw(st.sampled_from([1, 1, 4, 8]))
    per_rank = draw(st.integers(4, 24))
    batch = ranks * per_rank * granularity
    lower = [granularity * draw(st.integers(0, per_rank // 2)) for _ in range(ranks)]
    upper = [granularity * draw(st.integers(per_rank, 3 * per_rank)) for _ in range(ranks)]
    devices = [
        LinearTime(draw(st.floats(0, 0.5)), draw(st.floats(0.005, 0.05))) for _ in range(ranks)
    ]
    slowed = draw(st.lists(st.floats(0.3, 4), min_size=ranks, max_size=ranks))
    return WatchedTraining(
        devices,
        batch,
        slower=lambda step, rank: slowed[rank] if step >= 70 else 1.0,
        noise=draw(st.sampled_from([0.0, 0.02])),
        seed=draw(st.integers(0, 99)),
        read_ahead=draw(st.integers(0, 8)),
        row_caps=draw(st.none() | st.just([granularity * (per_rank + 2)] * ranks)),
        options={"lower": tuple(lower), "upper": tuple(upper), "granularity": granularity},
    )


changed = []


@given(trainings())
@hypothesis_settings(max_examples=30)
def check_plans(training):
    training.run(110)
    settings = training.settings
    changed.append(len(training.changes))
    for change in training.changes:
        assert sum(change.batch_sizes) == training.batch
        caps = training.row_caps or settings.upper
        for rows, low, high, cap in zip(
            change.batch_sizes, settings.lower, settings.upper, caps, strict=True
        ):
            assert low <= rows <= min(high, cap)
            assert rows % settings.granularity == 0
        assert training.state.schedule.plan_at(change.step).batch_sizes == change.batch_sizes


def test_every_plan_of_the_watch_keeps_batch_bounds_and_granularity():
    changed.clear()
    check_plans()
    assert sum(changed) >= 10


def planned_watch(models, split, blocks=()):
    bounds = Bounds((1,) * len(models), (sum(split),) * len(models), 1)
    return Watch(tuple(models), bounds, tuple(blocks))


def noisy_block(random, ranks, noise, slowness=1.0):
    ratios = random.normal(1, noise, (ranks, BLOCK_STEPS)) * np.reshape(slowness, (-1, 1))
    return block_of(ratios, period=1.0, loader_wait=0.0)


def test_a_thousand_calm_ranks_need_no_search_for_a_split(monkeypatch):
    calls = []
    search = watching.allocate_or_park
    monkeypatch.setattr(
        watching, "allocate_or_park", lambda *a, **k: calls.append(1) or search(*a, **k)
    )
    random = np.random.default_rng(0)
    ranks = 1000
    watch = replace(planned_watch([LinearTime(0.1, 0.01)] * ranks, [16] * ranks), is_refined=True)
    for _ in range(12):
        watch = watch.with_block(noisy_block(random, ranks, 0.005))
        assert watch.search([16] * ranks, every_window=False) is None
    assert calls == []

    slowness = np.where(np.arange(ranks) == 7, 2.0, 1.0)
    watch = watch.with_block(noisy_block(random, ranks, 0.005, slowness))
    finding = watch.search([16] * ranks)
    assert finding.batch_sizes[7] < 10
    assert 0 < len(calls) <= 3 * 7


# Blocks


def test_a_block_tells_how_the_ranks_stand_to_each_other_whatever_they_have_in_common():
    common = np.asarray([1.0, 3.0, 9.0, 0.5, 2.0])
    slowness = np.asarray([[1.0], [2.0], [4.0]])
    block = block_of(slowness * common, period=2.5, loader_wait=0.25)
    assert block.scales == pytest.approx((0.5, 1.0, 2.0))
    assert block.noise == pytest.approx(0, abs=1e-12)
    assert (block.period, block.loader_wait) == (2.5, 0.25)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_the_noise_of_blocks_is_that_of_a_step(ranks):
    random = np.random.default_rng(ranks)
    noises = [noisy_block(random, ranks, 0.02).noise for _ in range(400)]
    assert np.median(noises) == pytest.approx(0.02, rel=0.3)


def test_steps_that_a_rank_did_not_measure_are_left_out():
    ratios = np.asarray([[1.0, 1.0, 1.0, 1.0, np.nan], [2.0, 50.0, 2.0, 2.0, 2.0]])
    without = block_of(ratios[:, [0, 1, 2, 3]], period=1.0, loader_wait=0.0)
    assert block_of(ratios, period=1.0, loader_wait=0.0) == without
    assert without.scales[1] / without.scales[0] == pytest.approx(2)


@pytest.mark.parametrize("wrong", [np.nan, 0.0, -1.0, np.inf])
def test_fewer_than_three_whole_steps_are_no_block(wrong):
    ratios = np.ones((2, BLOCK_STEPS))
    ratios[0, :2] = wrong
    assert block_of(ratios, period=1.0, loader_wait=0.0) is not None
    ratios[1, 2] = wrong
    assert block_of(ratios, period=1.0, loader_wait=0.0) is None


def test_a_rank_without_rows_is_not_measured():
    watch = planned_watch(TWO, (128, 128))
    ratios = watch.ratios(1, [10, 0, 10], [0.6, 0.6, 0.3], [1, 1, 1])
    assert ratios == pytest.approx([2.0, np.nan, 1.0], nan_ok=True)


@given(st.integers(0, 2**32 - 1), st.booleans())
def test_the_ratios_of_all_ranks_are_those_of_each(seed, with_caps):
    random = np.random.default_rng(seed)
    models = [
        LinearTime(0.1, 0.013),
        TableTime((8, 32, 100), (0.2, 0.5, 2.1)),
        LinearTime(0.0, 0.007, floor=0.3),
        hopeful(cautious(LinearTime(0.3, 0.0), 20), (12, 20)),
    ]
    caps = (7, None, 30, 9) if with_caps else None
    watch = Watch(tuple(models), Bounds((0,) * 4, (90,) * 4, 1, caps, (1,) * 4))
    splits = [tuple(each) for each in random.integers(0, 90, (3, 4)).tolist()] * 2
    seconds = random.uniform(0.1, 2, (6, 4))
    of_all = watch.ratios_of_all(splits, seconds)
    for rank in range(4):
        rows = [split[rank] for split in splits]
        passes = [watch.bounds.passes(rank, each) for each in rows]
        of_each = watch.ratios(rank, rows, seconds[:, rank], passes)
        assert np.array_equal(of_all[rank], of_each, equal_nan=True)


def test_a_rank_without_rows_is_taken_to_be_as_fast_as_when_it_had_some():
    ratios = np.asarray([[1.0] * 5, [2.0] * 5, [4.0] * 5])
    watch = planned_watch([*TWO, TWO[0]], (170, 86, 0))
    watch = watch.with_block(block_of(ratios, period=1.0, loader_wait=0.0))
    ratios[1] *= 2
    ratios[2] = np.nan
    block = block_of(ratios, period=1.0, loader_wait=0.0)
    assert block.scales == pytest.approx((0.5, 2.0, np.nan), nan_ok=True)
    _, completed = watch.with_block(block).blocks
    assert np.prod(completed.scales) == pytest.approx(1)
    assert completed.scales[1] / completed.scales[0] == pytest.approx(4)
    assert completed.scales[2] / completed.scales[0] == pytest.approx(4)


def test_the_watch_forgets_the_oldest_blocks():
    watch = planned_watch(TWO, (170, 86))
    for number in range(600):
        watch = watch.with_block(Block((1.0, 1.0), 0.01, float(number), 0.0))
    assert len(watch.blocks) == 512
    assert (watch.blocks[0].period, watch.blocks[-1].period) == (88.0, 599.0)


def test_patience_grows_with_each_change_and_shrinks_with_a_long_calm():
    watch = planned_watch(TWO, (170, 86))
    block = Block((1.0, 1.0), 0.01, 1.0, 0.0)
    finding = watching.Finding((171, 85), 0.1, 0.1, 1, (1.0, 1.0))
    for _ in range(2):
        watch = watch.with_block(block).after(finding)
    assert (watch.least, watch.calm) == (4, 0)
    for _ in range(4 * 256 - 1):
        watch = watch.with_block(block)
    assert watch.least == 4
    assert watch.with_block(block).least == 2


def test_settings_without_several_ranks_have_no_watch():
    alone = WatchedTraining([LinearTime(0.1, 0.01)], 32).run(60)
    assert alone.settings == OrchestrationSettings(1, 32, (1,), (32,))
    assert alone.state.phase == "planned"
    assert alone.state.watch is None


def parked_watch(*scales, overhead=0.5):
    logs = np.log(scales)
    block = Block(tuple(np.exp(logs - logs.mean()).tolist()), 0.01, 1.0, 0.0)
    ranks = len(scales)
    return Watch(
        models=(*[LinearTime(0.5, 0.1)] * (ranks - 1), LinearTime(overhead, 0.1)),
        bounds=Bounds((0,) * ranks, (60,) * ranks, 1, seats=(1,) * ranks),
        blocks=(block,) * 4,
    )


def beside_the_others(watch, rank):
    scales = [np.delete(block.scales, rank) for block in watch.blocks]
    return [
        block.scales[rank] / sorted(others)[(len(others) - 1) // 2]
        for block, others in zip(watch.blocks, scales, strict=True)
    ]


ROWS_WITHOUT_THE_LAST = {3: (30, 30, 0), 2: (60, 0)}


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(("before", "slow", "overhead"), [(60.0, 1.0, 0.5), (1.0, 30.0, 7.0)])
def test_a_parked_rank_is_believed_when_two_steps_say_the_same(ranks, before, slow, overhead):
    """It has become faster, or all that run have become slower."""
    watch = parked_watch(*[1.0] * (ranks - 1), before, overhead=overhead)
    rows, ratios = ROWS_WITHOUT_THE_LAST[ranks], [*[slow] * (ranks - 1), 1.0]
    once = watch.heard(ratios, rows)
    assert once.blocks == watch.blocks
    assert once.search(rows) is None
    twice = once.heard([*ratios[:-1], 1.1], rows)
    assert beside_the_others(twice, ranks - 1) == pytest.approx([1.1 / slow] * 4)
    assert twice.search(rows).batch_sizes[-1] > 0


@pytest.mark.parametrize(
    "said",
    [
        [(1.0, 1.0, 1.0), (1.0, 1.0, 60.0)],
        [(1.0, 1.0, 55.0), (1.0, 1.0, 70.0)],
        [(1.0, None, 1.0)] * 2,
    ],
)
def test_a_step_alone_and_what_is_known_change_nothing(said):
    watch = parked_watch(1.0, 1.0, 60.0)
    heard = watch
    for ratios in said:
        heard = heard.heard(ratios, (30, 30, 0))
    assert heard.blocks == watch.blocks


def test_nothing_is_heard_where_all_have_rows():
    watch = parked_watch(1.0, 1.0, 60.0)
    assert watch.heard([1.0] * 3, (30, 30, 1)).heard([1.0] * 3, (30, 30, 1)) == watch
