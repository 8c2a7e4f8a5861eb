"""BOA in the simulator: the real planning code, fed as the callback feeds it."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest

from lightning_boa.planning import InPasses, LinearTime, TableTime, allocate
from lightning_boa.planning.allocation import WorkerTimes
from lightning_boa.planning.time_models import scaled
from lightning_boa.simulation import Boa, Cluster, EqualSplit, Links, compare, simulate
from lightning_boa.simulation.disturbances import Disturbances
from tests.planning.watched_training import WatchedTraining

BATCH = 256
CLUSTERS = {
    "three kinds": (
        LinearTime(0.01, 0.002),
        LinearTime(0.03, 0.008),
        LinearTime(0.05, 0.004),
        LinearTime(0.01, 0.002),
    ),
    "latency floor": (LinearTime(0.0, 0.001, floor=0.1), LinearTime(0.0, 0.004, floor=0.2)),
    "tables": (
        TableTime((8, 64, 256), (0.1, 0.2, 1.0)),
        TableTime((8, 64, 256), (0.1, 0.5, 2.2)),
        LinearTime(0.02, 0.005),
    ),
    "thesis": tuple(LinearTime(0.02, each) for each in (0.005,) * 4 + (0.01,) * 3 + (0.0245,)),
}
HOT, HOTTER_FROM, FACTOR = 0, 120, 2.0


def optimum(models):
    split = allocate(models, BATCH, lower=1, upper=BATCH)
    return max(float(each.seconds(rows)) for each, rows in zip(models, split, strict=True))


def step_seconds(models, split):
    return max(float(each.seconds(rows)) for each, rows in zip(models, split, strict=True))


def hot(models):
    return [scaled(each, FACTOR if i == HOT else 1.0) for i, each in enumerate(models)]


@pytest.mark.parametrize(("read_ahead", "noise"), [(0, 0.0), (3, 0.02), (2, 0.1)])
@pytest.mark.parametrize("models", CLUSTERS.values(), ids=CLUSTERS)
def test_plans_are_those_of_a_training_watched_by_the_real_callback(models, read_ahead, noise):
    steps, seed = 500, 8
    throttle = {HOT: {HOTTER_FROM: FACTOR, 250: 1.0, 262: 3.0, 330: 1.0}}
    cluster = Cluster(models, noise=noise, throttle=throttle)
    disturbances = Disturbances(cluster, seed)
    watched = WatchedTraining(
        models,
        batch=BATCH,
        slower=lambda step, rank: float(disturbances.of_all(step)[rank]),
        beside=0.0,
        read_ahead=read_ahead,
    ).run(until=steps)
    assert watched.changes
    simulated = simulate(cluster, Boa(read_ahead), global_batch_size=BATCH, steps=steps, seed=seed)
    plans = [(first, plan.batch_sizes) for first, plan in watched.state.schedule.entries]
    alike = [next(same) for _, same in groupby(plans, key=lambda plan: plan[1])]
    assert list(simulated.plans) == alike
    assert simulated.step_seconds == pytest.approx(watched.seconds)


@pytest.mark.parametrize("options", [{}, {"parks": True, "granularity": 2}], ids=["", "parks"])
def test_plans_are_those_made_of_one_model_at_a_time(options, monkeypatch):
    models = [
        *(LinearTime(0.002 * i, (0.005, 0.01, 0.0245)[i % 3]) for i in range(20)),
        *CLUSTERS["tables"],
        *CLUSTERS["latency floor"],
    ]
    cluster = Cluster(models, noise=0.02, throttle={3: {60: 2.0}, 21: {110: 1.6}})

    def plans():
        return simulate(cluster, Boa(0, options), global_batch_size=401, steps=200).plans

    at_once = plans()
    assert len(at_once) > 4

    def one_by_one(models):
        if isinstance(models, WorkerTimes):
            return models
        none = np.zeros(len(models))
        return WorkerTimes(none, none, none, list(enumerate(models)))

    monkeypatch.setattr(WorkerTimes, "of", one_by_one)
    assert plans() == at_once


@pytest.mark.parametrize("models", CLUSTERS.values(), ids=CLUSTERS)
def test_it_is_near_the_optimum_and_follows_a_throttle(models):
    cluster = Cluster(models, noise=0.01, throttle={HOT: {HOTTER_FROM: FACTOR}})
    simulated = simulate(cluster, Boa(), global_batch_size=BATCH, steps=200, seed=4)
    assert step_seconds(models, simulated.plan_at(HOTTER_FROM - 1)) <= 1.03 * optimum(models)
    throttled = hot(models)
    assert step_seconds(throttled, simulated.plan_at(HOTTER_FROM)) > 1.03 * optimum(throttled)
    assert step_seconds(throttled, simulated.plan_at(199)) <= 1.03 * optimum(throttled)


@pytest.mark.parametrize("rebalance", ["off", "epoch"])
def test_options_reach_the_planning_loop(rebalance):
    """All steps are those of one epoch, at whose end alone the plan may change here."""
    models = CLUSTERS["three kinds"]
    cluster = Cluster(models, throttle={HOT: {HOTTER_FROM: FACTOR}})
    policy = Boa(options={"rebalance": rebalance, "warmup": 9, "granularity": 8})
    simulated = simulate(cluster, policy, global_batch_size=BATCH, steps=300)
    first, rows = simulated.plans[-1]
    assert 9 <= first < HOTTER_FROM
    assert all(size % 8 == 0 for size in rows)


def test_a_device_that_costs_more_than_it_brings_is_parked():
    models = (LinearTime(0.01, 0.004), LinearTime(0.01, 0.004), LinearTime(3.0, 0.004))
    parking, all_at_work = compare(
        Cluster(models),
        [Boa(options={"parks": True}), Boa()],
        global_batch_size=64,
        steps=100,
    )
    assert parking.plan_at(99) == (32, 32, 0)
    assert parking.step_seconds[-1] == pytest.approx(0.138)
    assert all_at_work.step_seconds[-1] > 3.0


def test_equal_devices_keep_the_equal_split():
    cluster = Cluster((LinearTime(0.02, 0.005),) * 4, noise=0.02)
    simulated = simulate(cluster, Boa(), global_batch_size=BATCH, steps=150, seed=1)
    assert simulated.plan_at(149) == (64,) * 4


def test_after_a_failure_the_others_are_measured_anew():
    models = CLUSTERS["three kinds"]
    cluster = Cluster(models, failures={3: 150})
    simulated = simulate(cluster, Boa(), global_batch_size=BATCH, steps=250)
    assert simulated.plan_at(150) == (86, 85, 85, 0)
    left = models[:3]
    assert step_seconds(left, simulated.plan_at(249)[:3]) <= 1.03 * optimum(left)


@pytest.mark.parametrize(
    "links",
    [
        Links(gradient_bytes=1e8, bandwidth=1e9, latency=1e-4, ready=(0.3, 0.6, 1.0)),
        Links(latency=10.0),
    ],
    ids=["beside the backward", "a hundred times the computation"],
)
def test_communication_does_not_disturb_the_plan(links):
    models = CLUSTERS["three kinds"]
    free, costly = (
        simulate(Cluster(models, links=each), Boa(), global_batch_size=BATCH, steps=100)
        for each in (Links(), links)
    )
    assert costly.plans == free.plans
    assert costly.step_seconds[-1] > free.step_seconds[-1]


def test_devices_in_passes():
    models = tuple(InPasses(each, 16) for each in CLUSTERS["three kinds"])
    simulated, equal = compare(
        Cluster(models), [Boa(), EqualSplit()], global_batch_size=BATCH, steps=100
    )
    assert simulated.step_seconds[-1] < 0.75 * equal.step_seconds[-1]
