"""I1 to I6 with real processes: every training equals single-device Lightning on the same global batches."""

from __future__ import annotations

from typing import Any

import pytest

from tests.processes.ranks import run_ranks
from tests.processes.training import (
    Outcome,
    Training,
    relative_error,
    rows_of_steps,
    train_alone,
    train_on_ranks,
)

TOLERANCE = 1e-10

TWO_RANKS = {
    "equal devices": Training(validation_rows=5),
    "one and seven": Training(
        global_batch_size=8, strategy={"batch_sizes": [1, 7]}, validation_rows=5
    ),
    "in order": Training(shuffle=False, strategy={"batch_sizes": [11, 5]}),
    "last batch of one row": Training(rows=65, strategy={"batch_sizes": [4, 12]}),
    "short last batches left out": Training(drop_last=True, strategy={"batch_sizes": [4, 12]}),
    "workers that stay": Training(workers=2, strategy={"batch_sizes": [10, 6]}, validation_rows=9),
    "norm clipped": Training(
        strategy={"batch_sizes": [13, 3]}, trainer={"gradient_clip_val": 0.05}
    ),
    "value clipped": Training(
        strategy={"batch_sizes": [13, 3]},
        trainer={"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
    ),
    "sum of losses": Training(
        sum_loss=True, strategy={"batch_sizes": [13, 3], "batch_weight": "sum"}
    ),
    "single precision": Training(
        strategy={"batch_sizes": [13, 3]}, trainer={"precision": "32-true"}, single=True
    ),
}
THREE_RANKS = {
    "five, two, one": Training(
        global_batch_size=8, strategy={"batch_sizes": [5, 2, 1]}, validation_rows=97
    ),
    "accumulation with a partial window": Training(
        rows=67,
        global_batch_size=8,
        strategy={"batch_sizes": [5, 2, 1]},
        trainer={"accumulate_grad_batches": 3},
    ),
    "accumulation, clipping, one row left": Training(
        rows=65,
        global_batch_size=8,
        strategy={"batch_sizes": [5, 2, 1]},
        trainer={"accumulate_grad_batches": 3, "gradient_clip_val": 0.05},
    ),
    "last batch of two rows": Training(rows=66, strategy={"batch_sizes": [2, 4, 10]}),
    "a rank without rows": Training(strategy={"batch_sizes": [9, 0, 7]}, validation_rows=5),
    "measured": Training(rows=400, global_batch_size=20, validation_rows=2),
    "measured with workers": Training(rows=400, global_batch_size=20, workers=1),
    "warm-up of twelve steps": Training(rows=400, global_batch_size=20, strategy={"warmup": 12}),
    "epochs of three steps": Training(rows=60, global_batch_size=20, epochs=8),
}
SEVEN_RANKS = {"256 rows": Training(rows=600, global_batch_size=256, epochs=2)}
EIGHT_RANKS = {
    "plan of eight": Training(
        rows=150,
        global_batch_size=32,
        epochs=2,
        strategy={"batch_sizes": [1, 2, 3, 4, 4, 5, 6, 7]},
    ),
    "more ranks than rows of the last batch": Training(
        rows=67, global_batch_size=16, epochs=2, validation_rows=3
    ),
}
CASES = {2: TWO_RANKS, 3: THREE_RANKS, 7: SEVEN_RANKS, 8: EIGHT_RANKS}


def train_all(rank: int, ranks: int, trainings: dict[str, Training]) -> dict[str, Outcome]:
    return {name: train_on_ranks(rank, ranks, each) for name, each in trainings.items()}


@pytest.fixture(scope="module")
def outcomes() -> dict[tuple[int, str], list[Outcome]]:
    found: dict[tuple[int, str], list[Outcome]] = {}
    for ranks, trainings in CASES.items():
        by_rank = run_ranks(train_all, ranks, ranks, trainings)
        for name in trainings:
            found[ranks, name] = [outcomes[name] for outcomes in by_rank]
    return found


@pytest.mark.parametrize(
    ("ranks", "name"), [(ranks, name) for ranks, cases in CASES.items() for name in cases]
)
def test_equals_a_single_device(outcomes: Any, ranks: int, name: str) -> None:
    training = CASES[ranks][name]
    alone = train_alone(training)
    together: list[Outcome] = outcomes[ranks, name]
    for outcome in together:
        tolerance = 1e-5 if training.single else TOLERANCE
        assert relative_error(outcome.weights, alone.weights) < tolerance
        assert outcome.steps == alone.steps
        assert outcome.last_lr == alone.last_lr
        assert sum(outcome.plan) == training.global_batch_size
        assert outcome.metrics.keys() == alone.metrics.keys()
        for metric, value in alone.metrics.items():
            assert outcome.metrics[metric] == pytest.approx(
                value, rel=1e-5 if training.single else 1e-9
            )
    assert rows_of_steps(together) == alone.seen
