"""Policies that decide on rows and reduce gradients in a ring: what each does, step by step."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import settings as limits
from hypothesis import strategies as st

from lightning_boa.errors import OptionError
from lightning_boa.planning import InPasses, LinearTime, TableTime
from lightning_boa.simulation import (
    Asynchronous,
    BackupWorkers,
    Boa,
    Cluster,
    EqualSplit,
    FixedShares,
    LbBsp,
    Links,
    ParameterServer,
    Proportional,
    compare,
    simulate,
)
from lightning_boa.simulation.disturbances import Disturbances

MIXED = (LinearTime(0.01, 0.003), LinearTime(0.01, 0.012), LinearTime(0.05, 0.006))

lines = st.builds(LinearTime, st.floats(0.0, 0.1), st.floats(0.001, 0.02))
tables = st.builds(lambda slope: TableTime((1, 40), (0.01, 0.01 + slope)), st.floats(0.1, 1.0))
models = st.lists(
    lines | tables | st.builds(InPasses, lines, st.integers(3, 9)), min_size=1, max_size=6
)
policies = st.sampled_from(
    [
        EqualSplit(),
        Proportional(),
        LbBsp(2),
        Boa(),
        ParameterServer(),
        BackupWorkers(0),
        Asynchronous(),
        Asynchronous(1),
    ]
)


def seconds_of(cluster, rows, step, seed):
    factors = Disturbances(cluster, seed).of_all(step)
    each = [
        float(model.seconds(size)) for model, size in zip(cluster.time_models, rows, strict=True)
    ]
    return [seconds * factor for seconds, factor in zip(each, factors, strict=True)]


def replayed(cluster, steps, seed, rows, change):
    """Plans and periods step by step, where ``change`` makes the next rows of a step's rows and seconds."""
    plans, periods = [], []
    for step in range(steps):
        seconds = seconds_of(cluster, rows, step, seed)
        plans.append(tuple(rows))
        periods.append(max(seconds))
        rows = change(step, list(rows), seconds)
    return plans, periods


def plans_of(simulated):
    return [simulated.plan_at(step) for step in range(len(simulated.step_seconds))]


def test_the_equal_split_lasts_as_long_as_the_slowest():
    cluster = Cluster(MIXED, noise=0.2)
    simulated = simulate(cluster, EqualSplit(), global_batch_size=49, steps=30, seed=3)
    plans, periods = replayed(cluster, 30, 3, (17, 16, 16), lambda step, rows, seconds: rows)
    assert plans_of(simulated) == plans
    assert simulated.step_seconds == pytest.approx(periods)
    assert simulated.rows_used == (49,) * 30
    computed = [sum(seconds_of(cluster, (17, 16, 16), step, 3)[1] for step in range(30))]
    assert simulated.idle_share[1] == pytest.approx(1 - computed[0] / sum(periods))


def test_fixed_shares_are_kept():
    cluster = Cluster(MIXED)
    simulated = simulate(cluster, FixedShares((30, 0, 18)), global_batch_size=48, steps=4)
    assert simulated.step_seconds == pytest.approx((0.05 + 18 * 0.006,) * 4)
    assert simulated.plans == ((0, (30, 0, 18)),)
    assert simulated.gradients_used == (4, 0, 4)
    assert simulated.idle_share[1] == 1.0


@pytest.mark.parametrize("sizes", [(30, 18), (30, 0, 17), (-1, 30, 19), (0, 0, 0)])
def test_shares_that_do_not_fit_are_refused(sizes):
    with pytest.raises(OptionError, match=r"^batch_sizes: expected"):
        simulate(Cluster(MIXED), FixedShares(sizes), global_batch_size=48, steps=4)


def test_proportional_shares_follow_one_measurement_under_the_equal_split():
    """Speeds under 20 rows each: 20 / 0.07, 20 / 0.25 and 20 / 0.17 rows per second, of 60 rows 35.4, 9.9 and 14.6."""
    simulated = simulate(Cluster(MIXED), Proportional(3), global_batch_size=60, steps=8)
    assert simulated.plans == ((0, (20, 20, 20)), (3, (35, 10, 15)))
    assert simulated.step_seconds == pytest.approx((0.25,) * 3 + (0.14,) * 5)


def test_one_outlier_does_not_deceive_the_measurement():
    cluster = Cluster(MIXED, throttle={0: {1: 50.0, 2: 1.0}})
    simulated = simulate(cluster, Proportional(3), global_batch_size=60, steps=4)
    assert simulated.plan_at(3) == (35, 10, 15)


@pytest.mark.parametrize("moved", [1, 4])
def test_lb_bsp_moves_rows_from_the_slowest_to_the_fastest(moved):
    def change(step, rows, seconds):
        slowest, fastest = seconds.index(max(seconds)), seconds.index(min(seconds))
        step_of_rows = min(moved, rows[slowest] - 1)
        rows[slowest] -= step_of_rows
        rows[fastest] += step_of_rows
        return rows

    cluster = Cluster(MIXED, noise=0.05, throttle={0: {20: 3.0}})
    simulated = simulate(cluster, LbBsp(moved), global_batch_size=60, steps=50, seed=5)
    plans, periods = replayed(cluster, 50, 5, (20, 20, 20), change)
    assert plans_of(simulated) == plans
    assert simulated.step_seconds == pytest.approx(periods)


def test_lb_bsp_leaves_a_row():
    cluster = Cluster((LinearTime(0.0, 0.001), LinearTime(9.0, 0.001)))
    simulated = simulate(cluster, LbBsp(4), global_batch_size=12, steps=9)
    assert simulated.plans == ((0, (6, 6)), (1, (10, 2)), (2, (11, 1)))


def test_the_ring_is_as_slow_as_its_slowest_hop():
    """Three workers exchange four messages each of a third of 3 MB over 1e7 bytes per second after 0.25 s."""
    links = Links(gradient_bytes=3e6, bandwidth=(1e9, 1e7, 1e9), latency=(0.02, 0.0, 0.0))
    simulated = simulate(Cluster(MIXED, links=links), EqualSplit(), global_batch_size=60, steps=2)
    assert simulated.step_seconds == pytest.approx((0.25 + 4 * 0.1,) * 2)
    slow_to_begin = Links(gradient_bytes=3e6, bandwidth=1e9, latency=(0.3, 0.0, 0.0))
    late = simulate(
        Cluster(MIXED, links=slow_to_begin), EqualSplit(), global_batch_size=60, steps=2
    )
    assert late.step_seconds == pytest.approx((0.25 + 4 * 0.301,) * 2)


def test_buckets_are_reduced_beside_the_backward():
    """Slowest worker: forward until 0.1 s, backward until 0.3 s. Two buckets of 0.15 s each in a ring of two, ready at
    0.2 s and 0.3 s: the second waits for the first until 0.35 s.
    """
    whole = Links(gradient_bytes=3e6, bandwidth=1e7)
    halves = Links(gradient_bytes=3e6, bandwidth=1e7, ready=(0.5, 1.0))
    times = (LinearTime(0.0, 0.03), LinearTime(0.0, 0.01))
    for links, seconds in ((whole, 0.6), (halves, 0.5)):
        simulated = simulate(
            Cluster(times, links=links), EqualSplit(), global_batch_size=20, steps=1
        )
        assert simulated.step_seconds == pytest.approx((seconds,))


def test_who_fails_leaves_its_rows_to_the_others():
    cluster = Cluster(MIXED, failures={1: 4}, restart_seconds=3.0)
    equal, fixed, measured = compare(
        cluster,
        [EqualSplit(), FixedShares((30, 10, 20)), Proportional(2)],
        global_batch_size=60,
        steps=8,
    )
    assert equal.plans == ((0, (20, 20, 20)), (4, (30, 0, 30)))
    assert equal.step_seconds == pytest.approx((0.25,) * 4 + (3.23,) + (0.23,) * 3)
    assert equal.present_seconds == pytest.approx((4.92, 1.0, 4.92))
    assert equal.gradients_used == (8, 4, 8)
    assert fixed.plan_at(4) == (36, 0, 24)
    assert [first for first, _ in measured.plans] == [0, 2, 4, 6]
    assert measured.plan_at(5) == (30, 0, 30)
    for simulated in (equal, fixed, measured):
        assert simulated.rows_used == (60,) * 8


def test_exact_policies_are_equally_fast_on_equal_devices():
    cluster = Cluster((LinearTime(0.02, 0.005),) * 4)
    exact = [EqualSplit(), FixedShares((8,) * 4), Proportional(), LbBsp(), ParameterServer()]
    exact += [Boa(options={"rebalance": "off"}), BackupWorkers(0), Asynchronous(0)]
    outcomes = compare(cluster, exact, global_batch_size=32, steps=60)
    assert [each.policy for each in outcomes] == [policy.name for policy in exact]
    for simulated in outcomes:
        assert simulated.step_seconds == pytest.approx((0.06,) * 60), simulated.policy
        assert simulated.idle_share == pytest.approx((0.0,) * 4)


@given(models, policies, st.integers(0, 40), st.integers(0, 2**64 - 1))
@limits(max_examples=80)
def test_rows_are_conserved_and_seeds_repeat(times, policy, more_rows, seed):
    rows = len(times) + more_rows
    cluster = Cluster(tuple(times), noise=0.1)
    simulated = simulate(cluster, policy, global_batch_size=rows, steps=12, seed=seed)
    assert simulated == simulate(cluster, policy, global_batch_size=rows, steps=12, seed=seed)
    assert all(sum(split) == rows for _, split in simulated.plans)
    if isinstance(policy, Asynchronous):
        (_, split), *_ = simulated.plans
        by_worker = zip(split, simulated.gradients_used, strict=True)
        assert sum(simulated.rows_used) == sum(size * count for size, count in by_worker)
    else:
        assert simulated.rows_used == (rows,) * 12
    assert sum(simulated.staleness.values()) == sum(simulated.gradients_used)
    assert sum(simulated.step_seconds) == pytest.approx(max(simulated.present_seconds))


@given(st.lists(lines, min_size=2, max_size=6), st.integers(0, 5), st.integers(0, 9))
@limits(max_examples=50)
def test_dropped_rows_are_those_whose_gradients_did_not_enter(times, backups, more_rows):
    backups, rows = min(backups, len(times) - 1), len(times) + more_rows
    cluster = Cluster(tuple(times), noise=0.3)
    simulated = simulate(cluster, BackupWorkers(backups), global_batch_size=rows, steps=20)
    (_, split), *_ = simulated.plans
    by_worker = zip(split, simulated.gradients_used, strict=True)
    assert sum(simulated.rows_used) == sum(size * count for size, count in by_worker)
    for used, dropped in zip(simulated.rows_used, simulated.rows_dropped, strict=True):
        assert used + dropped == rows
    assert sum(simulated.gradients_used) == 20 * (len(times) - backups)


@given(st.lists(lines, min_size=1, max_size=6), st.data(), st.floats(0.1, 1.0))
@limits(max_examples=60)
def test_a_faster_worker_never_makes_the_equal_split_slower(times, data, factor):
    worker = data.draw(st.integers(0, len(times) - 1))
    line = times[worker]
    assume(line.overhead + line.seconds_per_sample > 0)
    faster = list(times)
    faster[worker] = LinearTime(line.overhead * factor, line.seconds_per_sample * factor)
    before, after = (
        simulate(Cluster(tuple(each), noise=0.2), EqualSplit(), global_batch_size=30, steps=10)
        for each in (times, faster)
    )
    pairs = zip(after.step_seconds, before.step_seconds, strict=True)
    assert all(now <= then for now, then in pairs)
    if factor < 1 and len(times) == 1:
        assert after.seconds < before.seconds
