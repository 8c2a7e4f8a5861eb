"""I1 to I3 on a GPU: two ranks on one device train as Lightning does alone on it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.gpu.two_ranks import on_device, run_two_ranks, train_each
from tests.processes.training import (
    Outcome,
    Training,
    relative_error,
    rows_of_steps,
    train_alone,
)

pytestmark = pytest.mark.gpu

SINGLE, DOUBLE = 1e-5, 1e-10
TRAININGS = {
    "fixed plan": Training(single=True, strategy={"batch_sizes": [11, 5]}),
    "fixed plan, norm clipped": Training(
        single=True, strategy={"batch_sizes": [13, 3]}, trainer={"gradient_clip_val": 0.05}
    ),
    "accumulation with a partial window": Training(
        single=True,
        global_batch_size=8,
        strategy={"batch_sizes": [7, 1]},
        trainer={"accumulate_grad_batches": 3},
    ),
    "last batch of one row": Training(
        rows=65, single=True, strategy={"batch_sizes": [4, 12]}, validation_rows=5
    ),
    "a rank without rows": Training(single=True, strategy={"batch_sizes": [16, 0]}),
    "measured": Training(rows=400, single=True, global_batch_size=20, validation_rows=5),
    "measured, double precision": Training(rows=400, global_batch_size=20),
    "measured, memory may run short": Training(
        rows=400, single=True, global_batch_size=20, strategy={"max_batch_size": "auto"}
    ),
    "measured, ranks may be parked": Training(
        rows=400, single=True, global_batch_size=20, strategy={"worker_set": "auto"}
    ),
}


@pytest.fixture(scope="module")
def outcomes(device: torch.device) -> dict[str, list[Outcome]]:
    first, second = run_two_ranks(train_each, device, TRAININGS)
    return {name: [first[name], second[name]] for name in TRAININGS}


@pytest.mark.parametrize("name", TRAININGS)
def test_equals_a_single_device(outcomes: Any, device: torch.device, name: str) -> None:
    training = on_device(TRAININGS[name], device)
    alone = train_alone(training)
    together: list[Outcome] = outcomes[name]
    tolerance = SINGLE if training.single else DOUBLE
    for outcome in together:
        assert relative_error(outcome.weights, alone.weights) < tolerance
        assert outcome.steps == alone.steps
        assert outcome.last_lr == alone.last_lr
        assert sum(outcome.plan) == training.global_batch_size
        assert outcome.metrics == pytest.approx(alone.metrics, rel=100 * tolerance)
    assert together[0].plan == together[1].plan
    assert rows_of_steps(together) == alone.seen
