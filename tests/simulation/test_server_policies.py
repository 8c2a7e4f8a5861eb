"""Policies with a parameter server, held against a plain event loop."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from lightning_boa.planning import LinearTime
from lightning_boa.simulation import (
    Asynchronous,
    BackupWorkers,
    Cluster,
    EqualSplit,
    Links,
    ParameterServer,
    simulate,
)
from lightning_boa.simulation.disturbances import Disturbances
from tests.simulation.replay import Played, play_asynchronous, play_first_gradients

ROWS = 4
SEED = 7

seconds = st.floats(0.01, 0.2)
networks = st.builds(
    Links,
    gradient_bytes=st.sampled_from([0.0, 1e6]),
    bandwidth=st.sampled_from([3e7, 2.1e8]),
    latency=st.sampled_from([0.0, 0.0031]),
    server_bandwidth=st.sampled_from([2.3e7, 1.7e9]),
)
clusters = st.builds(
    lambda slopes, links: Cluster(
        tuple(LinearTime(0.011, slope) for slope in slopes), noise=0.4, links=links
    ),
    st.lists(seconds, min_size=2, max_size=5),
    networks,
)


def seconds_of(cluster: Cluster):
    factors = Disturbances(cluster, SEED)
    return lambda worker, step: (
        float(cluster.time_models[worker].seconds(ROWS)) * factors.of_all(step)[worker]
    )


def run(cluster: Cluster, policy, steps: int):
    rows = ROWS * cluster.workers
    return simulate(cluster, policy, global_batch_size=rows, steps=steps, seed=SEED)


def wires(cluster: Cluster):
    """Seconds of each worker's own link, and of the server's."""
    links = cluster.links
    own = links.latency + links.gradient_bytes / links.bandwidth
    return [own] * cluster.workers, links.gradient_bytes / links.server_bandwidth


def assert_computing_is(cluster: Cluster, played: Played, simulated) -> None:
    """Every worker that ran to the end has computed as long as in the replay."""
    end = played.times[-1]
    spent = Counter[int]()
    for worker, step, begun in played.begun:
        until = begun + seconds_of(cluster)(worker, step)
        spent[worker] += max(0.0, min(until, end) - begun)
    assert simulated.computing_seconds == pytest.approx(
        [spent[worker] for worker in range(cluster.workers)]
    )


@given(clusters, st.integers(0, 3), st.sampled_from([None, 0.0, 0.013, 0.1]))
@limits(max_examples=60)
def test_backup_workers_take_exactly_the_first_gradients(cluster, backups, notice):
    backups = min(backups, cluster.workers - 1)
    steps, needed = 9, cluster.workers - backups
    played = play_first_gradients(
        seconds_of(cluster), *wires(cluster), needed=needed, steps=steps, notice=notice
    )
    before = Counter[int]()
    for step in range(1, steps + 1):
        simulated = run(cluster, BackupWorkers(backups, notice), step)
        used = Counter(dict(enumerate(simulated.gradients_used)))
        assert sorted((used - before).elements()) == played.entered[step - 1]
        before = used
    assert np.cumsum(simulated.step_seconds) == pytest.approx(played.times)
    assert simulated.rows_used == (needed * ROWS,) * steps
    assert simulated.rows_dropped == (backups * ROWS,) * steps
    assert simulated.staleness == {0: needed * steps}
    if notice is None:
        assert_computing_is(cluster, played, simulated)


@given(clusters)
@limits(max_examples=30)
def test_a_parameter_server_waits_for_all_and_its_link_serialises(cluster):
    played = play_first_gradients(
        seconds_of(cluster), *wires(cluster), needed=cluster.workers, steps=6
    )
    simulated = run(cluster, ParameterServer(), 6)
    assert np.cumsum(simulated.step_seconds) == pytest.approx(played.times)
    assert simulated.gradients_used == (6,) * cluster.workers
    assert simulated.dropped_share == 0
    assert_computing_is(cluster, played, simulated)


@given(clusters, st.sampled_from([None, 0, 1, 2]))
@limits(max_examples=60)
def test_asynchronous_gradients_are_applied_as_they_arrive(cluster, most_ahead):
    steps = 8
    played = play_asynchronous(
        seconds_of(cluster),
        *wires(cluster),
        updates=steps * cluster.workers,
        most_ahead=float("inf") if most_ahead is None else most_ahead,
    )
    for step in (1, 2, 3, steps):
        simulated = run(cluster, Asynchronous(most_ahead), step)
        arrived = Counter(worker for (worker,) in played.entered[: step * cluster.workers])
        assert simulated.gradients_used == tuple(arrived[each] for each in range(cluster.workers))
    ends = played.times[cluster.workers - 1 :: cluster.workers]
    assert np.cumsum(simulated.step_seconds) == pytest.approx(ends)
    assert simulated.staleness == played.staleness
    assert_computing_is(cluster, played, simulated)


def test_backup_workers_by_hand():
    """Three workers of 1, 2 and 5 s, of which two are waited for. The slow one is late for step 0, which ends at 2 s,
    and refused at 5 s in step 2, which has begun at 4 s with weights that it takes; it has no gradient before 10 s.
    """
    cluster = Cluster(tuple(LinearTime(0.0, each) for each in (1.0, 2.0, 5.0)))
    simulated = simulate(cluster, BackupWorkers(1), global_batch_size=3, steps=5)
    assert simulated.step_seconds == (2.0,) * 5
    assert simulated.gradients_used == (5, 5, 0)
    assert simulated.computing_seconds == (5.0, 10.0, 10.0)
    assert simulated.idle_share == (0.5, 0.0, 0.0)
    assert simulated.rows_used == (2,) * 5
    assert simulated.dropped_share == pytest.approx(1 / 3)


def test_a_late_worker_that_notices_takes_part_in_the_next_step():
    """The slow worker is throttled in its first step only: it gives up at 2.5 s and is in time for the end at 4 s."""
    cluster = Cluster(
        tuple(LinearTime(0.0, each) for each in (2.0, 2.0, 1.0)), throttle={2: {0: 9.0, 1: 1.0}}
    )
    first = simulate(cluster, BackupWorkers(1, 0.5), global_batch_size=3, steps=2)
    assert first.step_seconds == (2.0, 2.0)
    assert first.gradients_used == (2, 1, 1)
    assert first.computing_seconds == (4.0, 4.0, 3.5)
    unaware = simulate(cluster, BackupWorkers(1), global_batch_size=3, steps=2)
    assert unaware.gradients_used == (2, 2, 0)


def test_the_link_of_a_server_carries_one_gradient_after_another():
    """Ten workers are ready at once; each message takes 0.1 s on the server's link, and weights return in order."""
    links = Links(gradient_bytes=1e6, server_bandwidth=1e7)
    cluster = Cluster((LinearTime(1.0, 0.0),) * 10, links=links)
    simulated = simulate(cluster, ParameterServer(), global_batch_size=10, steps=3)
    assert simulated.step_seconds == pytest.approx((2.0, 2.1, 2.1))
    alone = simulate(
        Cluster((LinearTime(1.0, 0.0),) * 10), ParameterServer(), global_batch_size=10, steps=3
    )
    assert alone.step_seconds == (1.0, 1.0, 1.0)


def test_each_worker_has_its_own_link():
    """Gradients of 1 MB over 0.1 s of latency or of transfer, there and back, beside 1 s of computing."""
    links = Links(gradient_bytes=1e6, bandwidth=(1e9, 1e7), latency=(0.1, 0.0))
    cluster = Cluster((LinearTime(1.0, 0.0),) * 2, links=links)
    simulated = simulate(cluster, Asynchronous(), global_batch_size=2, steps=3)
    assert simulated.step_seconds == pytest.approx((1.101, 1.201 + 0.001, 1.201 + 0.001))
    assert simulated.gradients_used == (3, 3)


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_bounded_staleness_is_kept(bound):
    cluster = Cluster(tuple(LinearTime(0.0, each) for each in (1.0, 1.3, 9.1)), noise=0.1)
    for steps in range(1, 25):
        used = run(cluster, Asynchronous(bound), steps).gradients_used
        assert max(used) - min(used) <= bound + 1
    unbounded = run(cluster, Asynchronous(), 24).gradients_used
    assert max(unbounded) - min(unbounded) > 20


def test_a_bound_of_no_step_is_as_fast_as_waiting_for_all():
    cluster = Cluster(tuple(LinearTime(0.0, each) for each in (1.0, 2.0, 4.0)))
    bounded, equal = (run(cluster, policy, 10) for policy in (Asynchronous(0), EqualSplit()))
    assert bounded.seconds == equal.seconds
    assert bounded.gradients_used == equal.gradients_used


def test_asynchronous_workers_are_as_busy_as_they_can_be():
    cluster = Cluster(tuple(LinearTime(0.0, each) for each in (1.0, 2.0, 4.0)))
    simulated = simulate(cluster, Asynchronous(), global_batch_size=3, steps=70)
    assert simulated.idle_share == pytest.approx((0.0, 0.0, 0.0))
    assert simulated.rows_per_second == pytest.approx(1.75, rel=0.02)


def test_who_fails_is_not_waited_for():
    models = tuple(LinearTime(0.0, each) for each in (1.0, 1.0, 2.0, 2.0))
    cluster = Cluster(models, failures={3: 2}, restart_seconds=10.0)
    server = simulate(cluster, ParameterServer(), global_batch_size=12, steps=4)
    assert server.step_seconds == (6.0, 6.0, 18.0, 8.0)
    assert server.plans == ((0, (3, 3, 3, 3)), (2, (4, 4, 4, 0)))
    assert server.present_seconds == (38.0, 38.0, 38.0, 12.0)
    assert server.gradients_used == (4, 4, 4, 2)
    backed = simulate(cluster, BackupWorkers(1), global_batch_size=12, steps=4)
    assert backed.gradients_used[3] <= 2
    assert sum(backed.gradients_used) == 12
    assert max(backed.step_seconds) <= 8.0
    bounded = simulate(cluster, Asynchronous(0), global_batch_size=12, steps=4)
    assert bounded.gradients_used == (5, 5, 4, 2)
