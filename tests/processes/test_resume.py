"""A training that goes on from a checkpoint: no row twice, none left out, the same weights in the end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
from pytorch_lightning.callbacks import ModelCheckpoint

from lightning_boa import BoaStrategy
from tests.processes.ranks import run_ranks
from tests.processes.training import (
    Outcome,
    Regression,
    Training,
    loaders,
    outcome,
    quiet,
    relative_error,
    rows_of_steps,
    trainer_options,
    with_options,
)

PLAIN = Training(rows=67, global_batch_size=12, epochs=3)
KINDS = {
    "fixed plan": with_options(PLAIN, strategy={"batch_sizes": [3, 9]}),
    "measured": PLAIN,
    "loader workers": with_options(PLAIN, workers=1),
    "accumulation": with_options(PLAIN, trainer={"accumulate_grad_batches": 2}),
    "no estimated steps": with_options(PLAIN, schedules=False),
}
STOPS = {"middle of an epoch": 8, "end of an epoch": 12}
INSIDE_A_WINDOW = 9
CASES = [(kind, stop) for kind in KINDS for stop in STOPS]


def stop_and_go_on(rank: int, ranks: int, folder: str) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for kind, training in KINDS.items():
        place = Path(folder, kind)
        found[kind] = fit(training, ranks, place)
        for stop in STOPS:
            path = place / f"{checkpoint_step(training, stop)}.ckpt"
            found[kind, stop] = fit(training, ranks, place / stop, ckpt_path=str(path))
    place = Path(folder, "accumulation")
    found["inside a window"] = fit(
        KINDS["accumulation"], ranks, place / "inside", ckpt_path=str(place / "inside.ckpt")
    )
    return found


def go_on_with_other_ranks(rank: int, ranks: int, folder: str) -> dict[str, Outcome]:
    training = KINDS["measured"]
    path = Path(folder, "measured")
    return {
        stop: fit(
            training,
            ranks,
            path / f"{ranks} {stop}",
            ckpt_path=str(path / f"{checkpoint_step(training, stop)}.ckpt"),
        )
        for stop in STOPS
    }


def fit(training: Training, ranks: int, place: Path, **arguments: Any) -> Outcome:
    quiet()
    pl.seed_everything(training.seed)
    module = NotesRows(schedules=training.schedules)
    keeper = ModelCheckpoint(
        place,
        filename="{step}",
        auto_insert_metric_name=False,
        every_n_train_steps=1,
        save_top_k=-1,
    )
    options = {
        **trainer_options(training),
        "enable_checkpointing": True,
        "callbacks": [keeper, SavesInsideWindow(place)],
    }
    trainer = pl.Trainer(strategy=BoaStrategy(**training.strategy), devices=ranks, **options)
    trainer.fit(module, *loaders(training, batch_size=6), **arguments)
    return replace(outcome(trainer, module), metrics={"rows of a step": module.rows_of_step})


class NotesRows(Regression):
    """Asks for the rows of a step where a learning rate would be scaled by them."""

    def configure_optimizers(self) -> Any:
        made = super().configure_optimizers()
        self.rows_of_step = self.trainer.strategy.global_batch_size
        return made


class SavesInsideWindow(pl.Callback):
    """Saves once between two optimizer steps of an accumulation window."""

    def __init__(self, place: Path) -> None:
        self.path = place / "inside.ckpt"

    def on_train_batch_end(self, trainer: pl.Trainer, *arguments: Any) -> None:
        if trainer.fit_loop.total_batch_idx + 1 == INSIDE_A_WINDOW:
            trainer.save_checkpoint(self.path)


def checkpoint_step(training: Training, stop: str) -> int:
    return STOPS[stop] // int(training.trainer.get("accumulate_grad_batches", 1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="module")
def outcomes(folder: str) -> list[dict[Any, Outcome]]:
    return run_ranks(stop_and_go_on, 2, 2, folder)


@pytest.mark.parametrize(("kind", "stop"), CASES)
def test_goes_on_where_it_stopped(outcomes: Any, kind: str, stop: str) -> None:
    for rank, found in enumerate(outcomes):
        uninterrupted, rest = found[kind], found[kind, stop]
        assert relative_error(rest.weights, uninterrupted.weights) < 1e-10, rank
        assert rest.steps == uninterrupted.steps
        assert rest.last_lr == uninterrupted.last_lr
    whole = rows_of_steps([found[kind] for found in outcomes])
    resumed = rows_of_steps([found[kind, stop] for found in outcomes])
    assert resumed == whole[STOPS[stop] :]


def test_goes_back_to_the_last_optimizer_step(outcomes: Any) -> None:
    whole = rows_of_steps([found["accumulation"] for found in outcomes])
    resumed = rows_of_steps([found["inside a window"] for found in outcomes])
    assert resumed == whole[INSIDE_A_WINDOW - 1 :]
    for found in outcomes:
        uninterrupted, rest = found["accumulation"], found["inside a window"]
        assert relative_error(rest.weights, uninterrupted.weights) < 1e-10
        assert rest.steps == uninterrupted.steps
        assert rest.last_lr == uninterrupted.last_lr


def test_the_rows_of_a_step_are_known_once_the_loaders_are(outcomes: Any) -> None:
    for found in outcomes:
        assert found["measured"].metrics["rows of a step"] == PLAIN.global_batch_size
        assert found["no estimated steps"].metrics["rows of a step"] is None


def test_goes_on_with_the_plan_of_the_checkpoint(outcomes: Any) -> None:
    assert outcomes[0]["fixed plan", "middle of an epoch"].plan == (3, 9)


@pytest.mark.parametrize("ranks", [1, 3])
def test_goes_on_with_another_number_of_ranks(outcomes: Any, folder: str, ranks: int) -> None:
    uninterrupted = outcomes[0]["measured"]
    whole = rows_of_steps([found["measured"] for found in outcomes])
    resumed = run_ranks(go_on_with_other_ranks, ranks, ranks, folder)
    for stop, steps in STOPS.items():
        rest = [found[stop] for found in resumed]
        assert rows_of_steps(rest) == whole[steps:]
        assert sum(rest[0].plan) == KINDS["measured"].global_batch_size
        for each in rest:
            assert each.metrics["rows of a step"] == KINDS["measured"].global_batch_size
            assert relative_error(each.weights, uninterrupted.weights) < 1e-10
