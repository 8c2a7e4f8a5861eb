"""Flags of the trainer: on unequal shares, ranks without rows included, they do what they do on one device."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import pytorch_lightning as pl

from tests.processes.ranks import run_ranks
from tests.processes.scenes import SHARES, Played, Scene, play_all, play_alone
from tests.processes.training import Regression, Training, relative_error, with_options

pytestmark = pytest.mark.full

PLAIN = with_options(Scene().training, validation_rows=20)


class Validated(Regression):
    """Keeps at which step it was validated, and with what result."""

    def __init__(self) -> None:
        super().__init__(schedules=False)
        self.kept: list[float] = []
        self.planned_before_training = False

    def on_sanity_check_end(self) -> None:
        self.planned_before_training = getattr(self.trainer.strategy, "plan", None) is not None

    def on_train_start(self) -> None:
        assert not self.planned_before_training

    def on_validation_end(self) -> None:
        if not self.trainer.sanity_checking:
            validated = float(self.trainer.callback_metrics["val"])
            self.kept += [self.trainer.global_step, self.trainer.current_epoch, validated]


class Stops(pl.Callback):
    """Asks for the end in the second step."""

    def on_train_batch_end(self, trainer: pl.Trainer, *arguments: Any) -> None:
        trainer.should_stop = trainer.global_step >= 2


def with_trainer(**options: Any) -> Training:
    return with_options(PLAIN, trainer=options)


def flag(**options: Any) -> Scene:
    return Scene(Validated, with_trainer(**options))


def stops() -> dict[str, Any]:
    return {"callbacks": [Stops()]}


IN_ORDER = with_options(PLAIN, shuffle=False)
OVERFIT = {"overfit two batches": 2, "overfit half": 0.5}
SCENES = {
    **{
        name: Scene(Validated, with_options(IN_ORDER, trainer={"overfit_batches": batches}))
        for name, batches in OVERFIT.items()
    },
    "three batches": flag(limit_train_batches=3, limit_val_batches=1),
    "half of the batches": flag(limit_train_batches=0.5, limit_val_batches=0.5),
    "fast_dev_run": flag(fast_dev_run=True),
    "fast_dev_run of three": flag(fast_dev_run=3),
    "max_steps": flag(max_epochs=-1, max_steps=7),
    "min_epochs": Scene(Validated, with_trainer(max_epochs=4, min_epochs=2), stops),
    "min_steps": Scene(Validated, with_trainer(max_epochs=4, min_steps=7), stops),
    "max_time": flag(max_time={"hours": 1}),
    "validated every two steps": flag(val_check_interval=2),
    "validated twice an epoch": flag(val_check_interval=0.5),
    "validated every four steps over epochs": flag(
        val_check_interval=4, check_val_every_n_epoch=None
    ),
    "validated every second epoch": flag(max_epochs=4, check_val_every_n_epoch=2),
    "sanity check": Scene(
        Validated, with_trainer(num_sanity_val_steps=2), strategy={"batch_sizes": None}
    ),
    "sanity check with fixed shares": flag(num_sanity_val_steps=2),
    "barebones": Scene(partial(Regression, schedules=False), with_trainer(barebones=True)),
    "profiler": flag(profiler="simple"),
    "no inference mode": flag(inference_mode=False),
    "a value clipped in windows": flag(
        gradient_clip_val=0.01, gradient_clip_algorithm="value", accumulate_grad_batches=3
    ),
}
SHUFFLED = {
    name: Scene(Validated, with_trainer(overfit_batches=batches))
    for name, batches in OVERFIT.items()
}


def play(rank: int, ranks: int) -> dict[str, dict[str, Played]]:
    return {"flags": play_all(rank, ranks, SCENES), "shuffled": play_all(rank, ranks, SHUFFLED)}


@pytest.fixture(scope="module")
def played() -> dict[int, list[dict[str, dict[str, Played]]]]:
    return {ranks: run_ranks(play, ranks, ranks) for ranks in SHARES}


@pytest.mark.parametrize(("ranks", "name"), [(r, name) for r in SHARES for name in SCENES])
def test_a_flag_does_what_it_does_on_a_single_device(played: Any, ranks: int, name: str) -> None:
    alone = play_alone(SCENES[name], ranks)
    assert alone.error == ""
    for found in (by_rank["flags"][name] for by_rank in played[ranks]):
        assert_same(found, alone)
    assert rows(played[ranks], "flags", name) == alone.seen


@pytest.mark.parametrize(("ranks", "name"), [(r, name) for r in SHARES for name in SHUFFLED])
def test_overfitting_turns_shuffling_off(played: Any, ranks: int, name: str) -> None:
    alone = play_alone(SCENES[name], ranks)
    for found in (by_rank["shuffled"][name] for by_rank in played[ranks]):
        assert_same(found, alone)
    assert rows(played[ranks], "shuffled", name) == alone.seen


def assert_same(found: Played, alone: Played) -> None:
    assert found.error == ""
    assert relative_error(found.weights, alone.weights) < 1e-10
    assert (found.steps, found.epochs) == (alone.steps, alone.epochs)
    assert found.metrics == pytest.approx(alone.metrics, rel=1e-9)
    if alone.kept is not None:
        assert found.kept == pytest.approx(alone.kept, rel=1e-9)


def rows(played: list[dict[str, dict[str, Played]]], kind: str, name: str) -> list[list[int]]:
    steps = zip(*(by_rank[kind][name].seen for by_rank in played), strict=True)
    return [[row for share in step for row in share] for step in steps]
