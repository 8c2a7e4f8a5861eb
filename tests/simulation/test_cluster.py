"""Clusters: noise that depends on seed, worker and step alone, throttling, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from lightning_boa.errors import MeasurementError, OptionError, PlanError
from lightning_boa.planning import LinearTime
from lightning_boa.simulation import (
    Asynchronous,
    BackupWorkers,
    Boa,
    Cluster,
    EqualSplit,
    LbBsp,
    Links,
    Proportional,
    simulate,
)
from lightning_boa.simulation.disturbances import Disturbances

LINE = LinearTime(0.01, 0.003)


def noisy(workers, noise=0.3, **options):
    return Cluster((LINE,) * workers, noise=noise, **options)


def test_noise_depends_on_seed_worker_and_step_alone():
    steps = (0, 1, 63, 64, 1000)
    few, many = Disturbances(noisy(2), 5), Disturbances(noisy(9), 5)
    known = {(worker, step): few.of(worker, step) for worker in (0, 1) for step in steps}
    for step in reversed(steps):
        assert many.of_all(step)[:2].tolist() == [known[0, step], known[1, step]]
        assert few.of(1, step) == known[1, step]
    assert len(set(known.values())) == len(known)
    others = Disturbances(noisy(2), 6)
    assert all(others.of(*place) != factor for place, factor in known.items())


def test_noise_is_lognormal_around_the_time_model():
    draws = Disturbances(noisy(40, noise=(0.1,) * 20 + (0.4,) * 20), 1)
    logs = np.log([draws.of_all(step) for step in range(256)])
    assert logs[:, :20].std() == pytest.approx(0.1, rel=0.03)
    assert logs[:, 20:].std() == pytest.approx(0.4, rel=0.03)
    assert logs[:, 20:].mean() == pytest.approx(0.0, abs=0.015)
    assert abs(np.corrcoef(logs[:, 0], logs[:, 1])[0, 1]) < 0.2


def test_a_throttle_lasts_until_the_next():
    cluster = Cluster((LINE, LINE), throttle={1: {70: 1.0, 3: 2.5}})
    draws = Disturbances(cluster, 0)
    factors = [draws.of(1, step) for step in range(80)]
    assert factors == [1.0] * 3 + [2.5] * 67 + [1.0] * 10
    assert {draws.of(0, step) for step in range(80)} == {1.0}


def test_all_policies_meet_the_same_noise():
    one, other = (
        simulate(noisy(3), policy, global_batch_size=12, steps=30, seed=2)
        for policy in (EqualSplit(), BackupWorkers(0))
    )
    assert one.step_seconds == pytest.approx(other.step_seconds)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise": -0.1}, "noise: expected a finite number of at least 0 or one for each of 2"),
        ({"noise": (0.1,)}, "noise: expected a finite number"),
        ({"noise": "loud"}, "noise: expected a number"),
        ({"throttle": {2: {0: 2.0}}}, "throttle: expected workers 0 to 1"),
        ({"throttle": {1: {-1: 2.0}}}, "throttle: expected workers 0 to 1 and steps"),
        ({"throttle": {1: {0: 0.0}}}, "throttle: expected finite factors above 0"),
        ({"failures": {0: 1, 1: 9}}, "failures: expected a worker that stays"),
        ({"failures": {0: -1}}, "failures: expected workers 0 to 1 and steps"),
        ({"restart_seconds": float("inf")}, "restart_seconds: expected a finite number"),
        (
            {"links": Links(bandwidth=(1.0,) * 3)},
            "bandwidth: expected a number or one for each of 2",
        ),
        ({"links": Links(latency=(1.0,) * 3)}, "latency: expected a number or one for each of 2"),
    ],
)
def test_what_a_cluster_refuses(options, message):
    with pytest.raises(OptionError, match=f"^{message}"):
        Cluster((LINE, LINE), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bandwidth": (1.0, 0.0)}, "bandwidth: expected bytes per second above 0"),
        ({"bandwidth": float("nan")}, "bandwidth: expected bytes per second above 0"),
        ({"server_bandwidth": -1.0}, "server_bandwidth: expected bytes per second above 0"),
        ({"gradient_bytes": float("inf")}, "gradient_bytes: expected finite numbers"),
        ({"latency": (0.0, -1.0)}, "latency: expected finite numbers"),
    ],
)
def test_what_links_refuse(options, message):
    with pytest.raises(OptionError, match=f"^{message}"):
        Links(**options)


def test_buckets_that_do_not_rise_to_the_end_are_refused():
    with pytest.raises(MeasurementError, match="ready must not decrease"):
        Links(ready=(0.5, 0.9))


def test_a_cluster_has_workers():
    with pytest.raises(OptionError, match=r"^time_models: expected one for each worker"):
        Cluster(())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BackupWorkers(-1), "backups: expected a whole number"),
        (lambda: BackupWorkers(1, -0.5), "notice_seconds: expected None or a finite number"),
        (lambda: Asynchronous(-1), "staleness: expected None or a whole number"),
        (lambda: Proportional(0), "measured_steps: expected a whole number >= 1"),
        (lambda: LbBsp(0), "rows_moved: expected a whole number >= 1"),
        (lambda: Boa(-1), "read_ahead: expected a whole number"),
    ],
)
def test_what_policies_refuse(make, message):
    with pytest.raises(OptionError, match=f"^{message}"):
        make()


@pytest.mark.parametrize(
    ("policy", "values", "message"),
    [
        (EqualSplit(), {"steps": 0}, "steps: expected a whole number >= 1"),
        (EqualSplit(), {"global_batch_size": 0}, "global_batch_size: expected a whole number >= 1"),
        (EqualSplit(), {"seed": -1}, "seed: expected a whole number"),
        (BackupWorkers(2), {}, "backups: expected fewer than the 2 workers"),
    ],
)
def test_what_a_simulation_refuses(policy, values, message):
    with pytest.raises(OptionError, match=f"^{message}"):
        simulate(Cluster((LINE, LINE)), policy, **{"global_batch_size": 4, "steps": 3, **values})


def test_fewer_rows_than_workers_are_refused():
    with pytest.raises(PlanError, match="cannot give each of 3 workers a row"):
        simulate(noisy(3), EqualSplit(), global_batch_size=2, steps=1)
