"""Why nothing could be gained, in one sentence for each reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from lightning_boa.planning import (
    LinearTime,
    NetworkFindings,
    Orchestration,
    OrchestrationSettings,
    StepRecord,
    TimeModel,
    hindrance,
)

MIXED = (LinearTime(0.01, 0.001), LinearTime(0.01, 0.003))


def warmed_up(
    models: Sequence[TimeModel],
    rows: int = 64,
    noise: float = 0.0,
    steps: int = 80,
    seed: int = 1,
    **options: int,
) -> Orchestration:
    """The state after so many steps on devices that take what the models say."""
    ranks = len(models)
    settings = OrchestrationSettings(
        ranks, rows, (options.get("granularity", 1),) * ranks, (rows,) * ranks, **options
    )
    state, random, pending = Orchestration.begin(settings, 0), np.random.default_rng(seed), []
    for step in range(steps):
        split = state.schedule.plan_at(step).batch_sizes
        seconds = [
            float(model.seconds(size)) * float(np.exp(noise * random.standard_normal()))
            for model, size in zip(models, split, strict=True)
        ]
        period = max(seconds) + 0.001
        pending += [
            StepRecord(step, rank, size, rows, each, 0.0, period - each, 0.0, period)
            for rank, (size, each) in enumerate(zip(split, seconds, strict=True))
        ]
        if state.exchange_after is not None and step >= state.exchange_after:
            state, pending = state.observe(pending, first_free_step=step + 1), []
    return state


def test_where_much_was_gained_nothing_hinders() -> None:
    state = warmed_up(MIXED)
    assert hindrance(state, gain=1.8) == ""
    assert hindrance(state, gain=1.06, gain_error=0.01) == ""


def test_equal_devices() -> None:
    state = warmed_up(MIXED[:1] * 2, noise=0.005)
    assert "equally fast" in hindrance(state, gain=1.0)
    assert hindrance(state, gain=None) == hindrance(state, gain=1.0)


def test_a_slow_loader_comes_before_what_the_devices_are() -> None:
    for models in (MIXED, MIXED[:1] * 2):
        said = hindrance(warmed_up(models), gain=1.01, loader_share=0.4)
        assert "waits for its loader during 40%" in said
    assert "loader" not in hindrance(warmed_up(MIXED), gain=1.01, loader_share=0.1)


def test_a_network_that_limits() -> None:
    bound = NetworkFindings(compute_seconds=0.1, communication_seconds=0.3, measured_seconds=0.4)
    state = warmed_up(MIXED)
    assert hindrance(state, gain=1.01, network=bound) == bound.summary
    idle = replace(bound, communication_seconds=0.01)
    assert "network" not in hindrance(state, gain=1.01, network=idle)


def test_a_loss_is_not_laid_to_the_devices() -> None:
    said = hindrance(warmed_up(MIXED, rows=8), gain=0.5, gain_error=0.2)
    assert "pauses or other work" in said
    assert "pauses" not in hindrance(warmed_up(MIXED[:1] * 2), gain=0.99)


def test_fixed_costs_that_dominate() -> None:
    state = warmed_up((LinearTime(0.1, 0.0001), LinearTime(0.12, 0.0002)))
    said = hindrance(state, gain=1.02)
    assert "the batch is too small" in said
    assert "the slowest device (rank 1)" in said
    assert "9" in said.partition("%")[0]


def test_fixed_costs_that_noise_has_made_up_are_not_told() -> None:
    alike = (LinearTime(0.001, 0.001), LinearTime(0.001, 0.0013))
    for seed in range(60):
        state = warmed_up(alike, noise=0.1, seed=seed)
        assert "does not depend on its rows" not in hindrance(state, gain=1.01, gain_error=0.02)


def test_too_few_rows_to_share() -> None:
    said = hindrance(warmed_up(MIXED, rows=4), gain=1.0)
    assert "the equal split gives a rank 2 rows" in said
    said = hindrance(warmed_up(MIXED, rows=64, granularity=16), gain=1.0)
    assert "32 rows, in multiples of 16" in said


def test_what_is_gained_within_the_noise() -> None:
    state = warmed_up(MIXED)
    assert state.plan.batch_sizes != (32, 32)
    assert "within the noise" in hindrance(state, gain=1.04, gain_error=0.03)
    assert "differ too little: the best split gains 4.0%" in hindrance(
        state, gain=1.04, gain_error=0.001
    )


def test_a_plan_that_stays_equal_says_its_own_reason() -> None:
    settings = OrchestrationSettings(2, 64, (32, 32), (32, 32))
    state = replace(warmed_up(MIXED), settings=settings)
    equal = state.schedule.plan_at(0)
    stayed = replace(state, schedule=state.schedule.then(1000, equal), reason="the bounds …")
    assert hindrance(stayed, gain=1.0) == "the bounds …"


@pytest.mark.parametrize("reason", ["fixed plan", "each rank trains on its own batches"])
def test_a_fixed_plan(reason: str) -> None:
    assert hindrance(None, fixed_reason=reason) == f"{reason}: nothing was measured"


def test_what_this_loop_cannot_see() -> None:
    kept = Orchestration.begin(OrchestrationSettings(2, 8, (1, 1), (8, 8)), 0).keep_split(
        "SyncBatchNorm makes …"
    )
    assert hindrance(kept) == "SyncBatchNorm makes …"


def test_a_warm_up_that_has_not_ended() -> None:
    assert "ended within the warm-up" in hindrance(warmed_up(MIXED, steps=3), gain=None)
