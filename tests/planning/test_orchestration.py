"""The whole loop on simulated devices: what it finds, and what it keeps to on the way."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_boa.planning import LinearTime, TableTime

KINDS = [1 / 4.9] * 4 + [1 / 2.4] * 3 + [1.0]


def devices(overheads=(0.0,) * 8, floors=(0.0,) * 8, ranks=8):
    values = list(zip(overheads, KINDS, floors, strict=True))
    return [LinearTime(*values[index]) for index in range(8 - ranks, 8)]


CLUSTERS = {
    "proportional": (devices(), 512),
    "seven ranks": (devices(ranks=7), 256),
    "three ranks, odd rows": (devices(ranks=3), 101),
    "two ranks": (devices(ranks=2), 57),
    "fixed costs": (devices(overheads=(2, 2, 5, 10, 20, 1, 3, 30)), 512),
    "a slow fast device": ([LinearTime(40, 0.2), LinearTime(0, 1.0), LinearTime(10, 0.4)], 300),
    "latency floors": (devices(floors=(24,) * 4 + (16,) * 3 + (20,)), 512),
    "floors near the optimum": (devices(overheads=(2,) * 8, floors=(20,) * 4 + (10,) * 4), 512),
    "far latency floors": ([LinearTime(0, 0.02, 20)] * 2 + [LinearTime(0, 1)] * 2, 512),
    "curves": ([TableTime([8, 64, 512], [9, 20, 300]), TableTime([8, 64], [12, 90])], 200),
    "faster than rows": ([TableTime([8, 64, 512], [1, 20, 400]), LinearTime(0, 1)], 200),
    "one row each": (devices(), 8),
    "one row more": (devices()[::-1], 9),
    "two rows each": (devices()[::-1], 16),
}


def keeps_to_its_limits(state, row_caps=None):
    given_ = state.settings
    caps = row_caps or given_.upper
    for first_step, plan in state.schedule.entries:
        assert plan.global_batch_size == given_.global_batch_size
        for size, low, high, cap in zip(
            plan.batch_sizes, given_.lower, given_.upper, caps, strict=True
        ):
            assert low <= size <= high
            assert size <= cap or first_step == 0
    for rank in range(given_.world_size):
        assert len({plan.batch_sizes[rank] for _, plan in state.schedule.entries}) <= 8
    assert state.exchange_after is None
    assert state.phase == "planned"
    assert state.round <= 5


@pytest.mark.parametrize("noise", [0.0, 0.02])
@pytest.mark.parametrize("read_ahead", [0, (0, 8, 3, 1, 0, 2, 5, 8)])
@pytest.mark.parametrize("name", CLUSTERS)
def test_reaches_the_optimum_of_the_true_devices(cluster, name, read_ahead, noise):
    models, batch = CLUSTERS[name]
    for seed in range(6 if noise else 1):
        trained = cluster(models, batch, read_ahead=read_ahead, noise=noise, seed=seed)
        state = trained.train(trained.settings())
        keeps_to_its_limits(state)
        best = trained.optimum(state.settings)
        assert trained.true_step(state.plan.batch_sizes) <= 1.03 * best, state.reason


@pytest.mark.parametrize("name", ["proportional", "fixed costs", "two ranks"])
def test_reaches_one_percent_without_noise(cluster, name):
    trained = cluster(*CLUSTERS[name])
    state = trained.train(trained.settings())
    assert trained.true_step(state.plan.batch_sizes) <= 1.01 * trained.optimum(state.settings)


@pytest.mark.parametrize("step", [1, 2, 4, 8, 10, 13])
@pytest.mark.parametrize("rank", [0, 4, 7])
def test_one_outlier_changes_nothing(cluster, step, rank):
    models, batch = CLUSTERS["fixed costs"]
    trained = cluster(models, batch, noise=0.005, outliers={(step, rank): 50.0})
    state = trained.train(trained.settings())
    assert trained.true_step(state.plan.batch_sizes) <= 1.03 * trained.optimum(state.settings)


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.03])
@pytest.mark.parametrize(("ranks", "batch"), [(1, 32), (2, 64), (3, 97), (4, 8), (8, 300)])
def test_equal_devices_keep_the_equal_split(cluster, ranks, batch, noise):
    for seed in range(10):
        trained = cluster([LinearTime(2.0, 0.5)] * ranks, batch, noise=noise, seed=seed)
        state = trained.train(trained.settings())
        assert state.plan.batch_sizes == state.settings.equal_batch_sizes
        keeps_to_its_limits(state)


def test_the_reason_is_a_sentence_with_the_noise(cluster):
    trained = cluster([LinearTime(2.0, 0.5)] * 2, 64)
    assert trained.train(trained.settings()).reason == (
        "the devices are equally fast within the noise of the measurement (1.0%), so the equal split stays; a few"
        " steps measure a second size, in case a device becomes slower"
    )
    alone = cluster([LinearTime(2.0, 0.5)], 64)
    assert alone.train(alone.settings()).reason == "there is one device and nothing to balance"


def splits_of(state):
    return [(first, plan.batch_sizes) for first, plan in state.schedule.entries]


@pytest.mark.parametrize(
    ("ranks", "batch", "granularity", "second"),
    [
        pytest.param(2, 64, 1, (40, 24), id="a quarter"),
        pytest.param(3, 96, 1, (40, 40, 16), id="three"),
        pytest.param(2, 64, 8, (40, 24), id="whole grains"),
        pytest.param(2, 4, 1, (3, 1), id="at least one row"),
    ],
)
def test_equal_devices_are_measured_at_a_second_size_for_a_few_steps(
    cluster, ranks, batch, granularity, second
):
    trained = cluster([LinearTime(2.0, 0.5)] * ranks, batch)
    state = trained.train(trained.settings(granularity=granularity))
    equal = state.settings.equal_batch_sizes
    assert splits_of(state) == [(0, equal), (8, second), (13, equal)]
    for fit in state.fits:
        assert fit.model.overhead == pytest.approx(2)
        assert fit.model.seconds_per_sample == pytest.approx(0.5)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"rebalance": "off"}, id="not to be changed"),
        pytest.param({"upper": (32, 32)}, id="no more rows allowed"),
        pytest.param({"granularity": 32, "lower": (0, 0)}, id="a rank would have no rows"),
        pytest.param({"warmup": 10}, id="too few steps of a given warm-up"),
    ],
)
def test_equal_devices_are_measured_at_one_size_where_another_is_not_wanted(cluster, options):
    trained = cluster([LinearTime(2.0, 0.5)] * 2, 64)
    state = trained.train(trained.settings(**options))
    assert {plan.batch_sizes for _, plan in state.schedule.entries} == {(32, 32)}
    assert "second size" not in state.reason


def test_the_memory_bounds_the_second_size_of_equal_devices(cluster):
    trained = cluster([LinearTime(2.0, 0.5)] * 2, 64, row_caps=(34, 64))
    state = trained.train(trained.settings())
    assert [split for _, split in splits_of(state)] == [(32, 32), (24, 40), (32, 32)]
    trained.row_caps = (34, 34)
    assert {split for _, split in splits_of(trained.train(trained.settings()))} == {(32, 32)}


def test_the_second_size_of_equal_devices_lies_within_a_given_warm_up(cluster):
    trained = cluster([LinearTime(2.0, 0.5)] * 2, 64)
    state = trained.train(trained.settings(warmup=30))
    splits = splits_of(state)
    assert splits[:3] == [(0, (32, 32)), (8, (40, 24)), (13, (32, 32))]
    assert {split for _, split in splits[2:]} == {(32, 32)}


times = st.builds(
    LinearTime,
    st.sampled_from([0.0, 1.0, 5.0, 20.0]),
    st.floats(0.1, 1.0),
    st.sampled_from([0.0, 0.0, 20.0]),
)


@given(st.lists(times, min_size=1, max_size=8), st.data())
@settings(max_examples=60)
def test_keeps_to_bounds_caps_and_granularity_for_any_devices(cluster, models, data):
    ranks = len(models)
    granularity = data.draw(st.sampled_from([1, 1, 1, 2, 4]))
    batch = granularity * data.draw(st.integers(ranks, 40 * ranks))
    equal = -(-batch // ranks)
    lower = tuple(granularity * data.draw(st.integers(0, 1)) for _ in models)
    slack = granularity * (1 + equal // granularity)
    upper = tuple(slack + data.draw(st.integers(0, batch)) for _ in models)
    row_caps = data.draw(st.none() | st.just(tuple(slack + equal // 2 for _ in models)))
    trained = cluster(
        models,
        batch,
        read_ahead=data.draw(st.integers(0, 8)),
        noise=data.draw(st.sampled_from([0.0, 0.02])),
        seed=data.draw(st.integers(0, 100)),
        row_caps=row_caps,
    )
    options = {"lower": lower, "upper": upper, "granularity": granularity}
    state = trained.train(trained.settings(**options))
    keeps_to_its_limits(state, row_caps)
    for step in range(state.schedule.entries[-1][0] + 1):
        plan = state.schedule.plan_at(step)
        assert sum(plan.rows_of(batch)) == batch
        assert sum(plan.rows_of(1 + step % batch)) == 1 + step % batch


def test_memory_limits_bend_the_plan(cluster):
    models, batch = CLUSTERS["proportional"]
    caps = (70,) * 4 + (512,) * 4
    trained = cluster(models, batch, row_caps=caps)
    state = trained.train(trained.settings())
    keeps_to_its_limits(state, caps)
    assert state.plan.batch_sizes[:4] == (70,) * 4


def test_memory_limits_below_the_equal_split_take_rows_away(cluster):
    caps = (50, 512, 512, 512)
    trained = cluster([LinearTime(1.0, 0.5)] * 4, 256, row_caps=caps)
    state = trained.train(trained.settings())
    assert state.plan.batch_sizes == (50, 69, 69, 68)


def test_memory_limits_that_cannot_hold_the_batch_leave_the_equal_split(cluster):
    trained = cluster(CLUSTERS["proportional"][0], 512, row_caps=(40,) * 8)
    state = trained.train(trained.settings())
    assert state.plan.batch_sizes == (64,) * 8


def test_ranks_without_rows_are_permitted_where_asked(cluster):
    trained = cluster([LinearTime(0.0, 1.0)] * 3 + [LinearTime(0.0, 0.2)], 3)
    state = trained.train(trained.settings(lower=(0,) * 4))
    assert sum(state.plan.batch_sizes) == 3
    assert state.phase == "planned"


def test_the_plan_is_measured_beside_the_equal_split(cluster):
    models, batch = CLUSTERS["proportional"]
    trained = cluster(models, batch)
    state = trained.train(trained.settings())
    assert state.equal_measurement.step_compute == pytest.approx(64.0)
    assert state.equal_step_seconds == pytest.approx(64.013)
    expected = trained.true_step(state.plan.batch_sizes)
    assert state.planned_measurement.step_compute == pytest.approx(expected)
    assert state.planned_step_seconds == pytest.approx(expected + 0.013)
    assert state.plan.step_seconds == pytest.approx(expected)
    assert state.plan.equal_step_seconds == pytest.approx(64.0)
    assert state.equal_measurement.idle_share[7] == 0
    assert state.equal_measurement.idle_share[0] == pytest.approx(1 - 1 / 4.9)
    assert max(state.planned_measurement.idle_share) < 0.05
    assert state.plan.linear_ceiling == pytest.approx(3.475, rel=1e-3)
