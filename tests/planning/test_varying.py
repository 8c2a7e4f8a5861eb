"""Batches of varying size, and rows of varying cost, are measured like others."""

from __future__ import annotations

import numpy as np
import pytest

from lightning_boa.planning import (
    LinearTime,
    Orchestration,
    OrchestrationSettings,
    StepRecord,
    plan_batches,
)
from lightning_boa.planning.varying import as_usual_steps, usual_rows

SPEEDS = {"two": [1.0, 2.0], "three kinds": [1.0, 2.04, 4.9], "equal": [1.0, 1.0, 1.0]}


def play(
    devices,
    *,
    rows_of_step,
    declared=None,
    noise=0.0,
    seed=0,
    cost=lambda step, rank: 1.0,
    most=400,
):
    """A warm-up on steps of any size; returns the final state and the true relative times under its plan."""
    ranks, random, pending = len(devices), np.random.default_rng(seed), []
    batch = declared or ranks
    settings = OrchestrationSettings(ranks, batch, (1,) * ranks, (batch,) * ranks, varying=True)
    state = Orchestration.begin(settings, 0)
    for step in range(most):
        step_rows = rows_of_step(step)
        for rank, rows in enumerate(state.schedule.plan_at(step).rows_of(step_rows)):
            seconds = float(devices[rank].seconds(rows)) * cost(step, rank)
            seconds *= max(0.1, 1 + noise * random.standard_normal())
            pending.append(StepRecord(step, rank, rows, step_rows, seconds, 0.0, 0.0, 0.0, seconds))
        slowest = max(record.compute for record in pending[-ranks:])
        pending[-ranks:] = [
            StepRecord(*record.to_list()[:-2], slowest) for record in pending[-ranks:]
        ]
        if step == state.exchange_after:
            state, pending = state.observe(pending, first_free_step=step + 3), []
        if state.exchange_after is None:
            return state
    raise AssertionError(f"still in {state.phase} after {most} steps")


def slowness(state, devices, step_rows=1000):
    """How much longer a step takes than under the best split."""
    best = plan_batches(devices, step_rows).batch_sizes
    seconds = [
        max(float(device.seconds(rows)) for device, rows in zip(devices, split, strict=True))
        for split in (state.plan.rows_of(step_rows), best)
    ]
    return seconds[0] / seconds[1] - 1


def lines(speeds, overhead=0.0):
    return [LinearTime(overhead * speed, 0.01 * speed) for speed in speeds]


@pytest.mark.parametrize("cluster", ["two", "three kinds"])
@pytest.mark.parametrize("declared", [None, 96])
def test_rows_that_vary_are_split_by_speed(cluster, declared):
    devices = lines(SPEEDS[cluster])
    sizes = np.random.default_rng(1).integers(100, 300, 500)
    state = play(devices, rows_of_step=lambda step: int(sizes[step]), declared=declared, noise=0.01)
    assert slowness(state, devices) < 0.02
    assert state.plan.global_batch_size == (declared or state.settings.global_batch_size)
    assert 150 < state.settings.global_batch_size < 250 or declared


@pytest.mark.parametrize("overhead", [0.0, 0.2])
def test_rows_that_cost_more_in_some_steps_do_not_hide_the_speeds(overhead):
    devices = lines(SPEEDS["three kinds"], overhead)
    random = np.random.default_rng(2)
    costs = random.uniform(1, 10, 500)
    state = play(
        devices,
        rows_of_step=lambda step: 200 + step % 7,
        noise=0.02,
        cost=lambda step, rank: float(costs[step]),
    )
    assert slowness(state, devices, 200) < 0.03


def test_equal_devices_keep_equal_shares_of_varying_rows():
    devices = lines(SPEEDS["equal"])
    random = np.random.default_rng(3)
    costs = random.uniform(1, 3, (500, 3))
    for seed in range(5):
        state = play(
            devices,
            rows_of_step=lambda step: 300 + 13 * (step % 5),
            cost=lambda step, rank: float(costs[step, rank]),
            noise=0.02,
            seed=seed,
        )
        assert state.plan.rows_of(300) == (100, 100, 100)


def test_a_declared_size_that_most_steps_have_is_measured_as_it_is():
    devices = lines([1.0, 2.0], overhead=0.1)
    state = play(devices, rows_of_step=lambda step: 96 if step % 3 else 50, declared=96)
    assert {record.step_rows for record in state.counted_records} == {96}
    assert slowness(state, devices, 96) < 0.02


def test_usual_steps_keep_what_ranks_differ_in():
    plan = Orchestration.begin(OrchestrationSettings(2, 30, (1, 1), (30, 30)), 0).plan
    records = [
        StepRecord(0, 0, 10, 20, 1.0, 0.0, 0.0, 0.0, 2.0),
        StepRecord(0, 1, 10, 20, 2.0, 0.0, 0.0, 0.0, 2.0),
        StepRecord(1, 0, 20, 40, 20.0, 0.0, 0.0, 0.0, 40.0),
        StepRecord(1, 1, 20, 40, 40.0, 0.0, 0.0, 0.0, 40.0),
        StepRecord(2, 0, 20, 40, 2.0, 0.0, 0.0, 0.0, 4.0),
    ]
    assert usual_rows(records) == 40
    usual = as_usual_steps(records, lambda step: plan, 30)
    assert [record.step for record in usual] == [0, 0, 1, 1]
    assert {record.rows for record in usual} == {15}
    assert [record.compute for record in usual[:2]] == pytest.approx(
        [record.compute for record in usual[2:]]
    )
    assert usual[1].compute == pytest.approx(2 * usual[0].compute)
    assert usual[0].period == pytest.approx(usual[2].period)


def test_the_state_goes_on_after_a_checkpoint():
    devices = lines(SPEEDS["two"])
    state = play(devices, rows_of_step=lambda step: 100 + step % 50, noise=0.01)
    ranks = len(devices)
    anew = OrchestrationSettings(ranks, ranks, (1,) * ranks, (ranks,) * ranks, varying=True)
    resumed = Orchestration.resume(anew, state.to_dict(), 1000)
    assert resumed.phase == "planned"
    assert resumed.plan == state.plan
    even = OrchestrationSettings(ranks, 120, (1,) * ranks, (120,) * ranks)
    assert Orchestration.resume(even, state.to_dict(), 1000).phase == "warmup"
