"""Ways to start, to go on and to come from elsewhere; few rows, no rows, no seed."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from omegaconf import ListConfig
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import Tensor
from torch.utils.data import DataLoader

from lightning_boa import BoaStrategy
from tests.processes.ranks import run_ranks
from tests.processes.training import (
    GlobalBatches,
    NumberedRows,
    Regression,
    Training,
    logged_values,
    quiet,
    relative_error,
    trainer_options,
    with_options,
)

TOLERANCE = 1e-10
TRAINING = Training(rows=37, global_batch_size=8, epochs=2, schedules=False, validation_rows=5)
SHARES = [5, 3]
DDP_STEPS = 5


class Evaluated(Regression):
    """Can be evaluated in every stage; keeps the rows of each training step."""

    def __init__(self) -> None:
        super().__init__(schedules=False)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("test", self.errors(batch).mean(), sync_dist=True)

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        rows: Tensor = batch[2]
        return rows


def two(**options: Any) -> pl.Trainer:
    """A trainer of two ranks with unequal shares."""
    return trainer_of(BoaStrategy(batch_sizes=SHARES), 2, **options)


def trainer_of(strategy: Any, devices: int, seed: int | None = 3, **options: Any) -> pl.Trainer:
    quiet()
    if seed is not None:
        pl.seed_everything(seed)
    chosen = {**trainer_options(TRAINING), **options}
    return pl.Trainer(strategy=strategy, devices=devices, **chosen)


def loader(rows: int = 37, batch_size: int = 4, shuffle: bool = False) -> DataLoader[Any]:
    return DataLoader(NumberedRows(rows), batch_size=batch_size, shuffle=shuffle)


def global_batches(epoch: int = 0) -> DataLoader[Any]:
    """What a single device trains on, from an epoch on."""
    batches = GlobalBatches(TRAINING)
    batches.epoch = epoch
    return DataLoader(NumberedRows(TRAINING.rows), batch_sampler=batches)


def weights_of(module: pl.LightningModule) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in module.parameters()]


def metrics_of(trainer: pl.Trainer) -> dict[str, float]:
    return logged_values(trainer)


def fit_twice(make: Callable[..., pl.Trainer], data: DataLoader[Any]) -> dict[str, Any]:
    """The second fit has nothing to do until more epochs are asked for; then it goes on."""
    trainer, module = make(), Evaluated()
    trainer.fit(module, data)
    trainer.fit(module, data)
    steps = trainer.global_step
    trainer.fit_loop.max_epochs = 4
    trainer.fit(module, data)
    return {"weights": weights_of(module), "steps": (steps, trainer.global_step)}


def another_module(make: Callable[..., pl.Trainer], data: Callable[[], Any]) -> dict[str, Any]:
    """A new trainer begins with the first epoch's order again, also in a process that has trained."""
    make().fit(Evaluated(), data())
    trainer, module = make(), Evaluated()
    trainer.fit(module, data())
    return {"weights": weights_of(module), "steps": trainer.global_step}


def go_on_from_last(
    make: Callable[..., pl.Trainer], data: Callable[[int], Any], folder: Path
) -> dict[str, Any]:
    """Fit, then fit on from "last" in a new trainer, then test, validate and predict with "best"."""

    def keeper() -> ModelCheckpoint:
        return ModelCheckpoint(
            folder, monitor="val", save_last=True, save_top_k=-1, filename="{epoch}"
        )

    first = make(callbacks=[keeper()], enable_checkpointing=True)
    first.fit(Evaluated(), data(0), loader(5))
    trainer = make(callbacks=[keeper()], enable_checkpointing=True, max_epochs=4)
    module = Evaluated()
    trainer.fit(module, data(2), loader(5), ckpt_path="last")
    found: dict[str, Any] = {"weights": weights_of(module), "steps": trainer.global_step}
    for name in ("test", "validate"):
        evaluate = getattr(trainer, name)
        evaluate(module, loader(7), ckpt_path="best", verbose=False)
        found[name] = metrics_of(trainer)
    predictions = trainer.predict(module, loader(7), ckpt_path="best")
    found["predict"] = sorted(int(row) for batch in predictions or [] for row in batch)
    return found


def evaluate_alone(make: Callable[..., pl.Trainer]) -> dict[str, Any]:
    """No training before it."""
    found: dict[str, Any] = {}
    for name in ("test", "validate"):
        trainer = make()
        getattr(trainer, name)(Evaluated(), loader(7), verbose=False)
        found[name] = metrics_of(trainer)
    predictions = make().predict(Evaluated(), loader(7))
    found["predict"] = sorted(int(row) for batch in predictions or [] for row in batch)
    return found


def fit_then_test(make: Callable[..., pl.Trainer], data: DataLoader[Any]) -> dict[str, float]:
    trainer, module = make(), Evaluated()
    trainer.fit(module, data)
    trainer.test(module, loader(7), verbose=False)
    return metrics_of(trainer)


class Saves(pl.Callback):
    """Saves in the middle of the first epoch and at its end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_batch_end(self, trainer: pl.Trainer, *arguments: Any) -> None:
        if trainer.global_step == 2:
            trainer.save_checkpoint(self.folder / "middle.ckpt")


def from_ddp(folder: Path) -> dict[str, Any]:
    """A training that began under ddp."""
    before = trainer_of("ddp", 2, callbacks=[Saves(folder)], max_epochs=1)
    before.fit(Evaluated(), loader(shuffle=True))
    before.save_checkpoint(folder / "end.ckpt")
    found: dict[str, Any] = {}
    for place in ("end", "middle"):
        trainer, module = two(), Evaluated()
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            trainer.fit(module, loader(shuffle=True), ckpt_path=str(folder / f"{place}.ckpt"))
        said = [str(warning.message) for warning in warned]
        found[place] = {
            "weights": weights_of(module),
            "steps": trainer.global_step,
            "warned": any("saved by another strategy in the middle" in each for each in said),
            "seen": module.seen,
        }
    return found


def play_two(rank: int, folder: str) -> dict[str, Any]:
    place = Path(folder)
    return {
        "fit twice": fit_twice(two, loader(shuffle=True)),
        "another module": another_module(two, lambda: loader(shuffle=True)),
        "last and best": go_on_from_last(two, lambda _: loader(shuffle=True), place / "boa"),
        "evaluate alone": evaluate_alone(two),
        "fit then test": fit_then_test(two, loader(shuffle=True)),
        "from ddp": from_ddp(place),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("starting")


@pytest.fixture(scope="module")
def played(folder: Path) -> list[dict[str, Any]]:
    return run_ranks(play_two, 2, str(folder))


def alone(**options: Any) -> pl.Trainer:
    return trainer_of("auto", 1, **options)


def check_exact(together: list[dict[str, Any]], expected: dict[str, Any]) -> None:
    for found in together:
        assert found["steps"] == expected["steps"]
        assert relative_error(found["weights"], expected["weights"]) < TOLERANCE


def test_a_second_fit_goes_on_where_lightning_lets_it(played: Any) -> None:
    expected = fit_twice(alone, global_batches())
    assert expected["steps"] == (10, 20)
    check_exact([found["fit twice"] for found in played], expected)


def test_a_second_trainer_begins_anew(played: Any) -> None:
    expected = another_module(alone, global_batches)
    check_exact([found["another module"] for found in played], expected)


def test_checkpoints_are_found_by_last_and_best(played: Any, tmp_path: Path) -> None:
    expected = go_on_from_last(alone, global_batches, tmp_path)
    together = [found["last and best"] for found in played]
    check_exact(together, expected)
    for found in together:
        for stage in ("test", "validate"):
            assert found[stage] == pytest.approx(expected[stage], rel=1e-6)
    assert sorted(row for found in together for row in found["predict"]) == list(range(7))


def test_every_stage_runs_without_a_training_before(played: Any) -> None:
    expected = evaluate_alone(alone)
    for found in played:
        for stage in ("test", "validate"):
            assert found["evaluate alone"][stage] == pytest.approx(expected[stage], rel=1e-6)
    rows = [row for found in played for row in found["evaluate alone"]["predict"]]
    assert sorted(rows) == list(range(7))


def test_a_test_after_a_fit(played: Any) -> None:
    expected = fit_then_test(alone, global_batches())
    for found in played:
        assert found["fit then test"] == pytest.approx(expected, rel=1e-6)


def test_a_ddp_checkpoint_of_an_epochs_end_goes_on_exactly(played: Any, folder: Path) -> None:
    trainer, module = alone(), Evaluated()
    trainer.fit(module, global_batches(epoch=1), ckpt_path=str(folder / "end.ckpt"))
    expected = {"weights": weights_of(module), "steps": 10}
    together = [found["from ddp"]["end"] for found in played]
    check_exact(together, expected)
    assert not any(found["warned"] for found in together)


def test_a_ddp_checkpoint_inside_an_epoch_trains_on_with_a_warning(played: Any) -> None:
    together = [found["from ddp"]["middle"] for found in played]
    assert [found["warned"] for found in together] == [True, False]
    for found in together:
        assert found["steps"] == 2 * DDP_STEPS
        assert len(found["seen"]) == 2 * DDP_STEPS - 2
    last_epoch = [row for found in together for step in found["seen"][-DDP_STEPS:] for row in step]
    assert sorted(last_epoch) == list(range(37))


def without_a_seed(rank: int) -> list[list[int]]:
    """Ranks whose scripts seed themselves differently."""
    os.environ.pop("PL_GLOBAL_SEED", None)
    torch.manual_seed(rank)
    trainer = trainer_of(BoaStrategy(batch_sizes=[5, 3, 1]), 3, seed=None)
    module = Evaluated()
    trainer.fit(module, DataLoader(NumberedRows(37), batch_size=3, shuffle=True))
    return module.seen


def evaluate_rows(rows: int, make: Callable[..., pl.Trainer]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for stage in ("validate", "test"):
        trainer = make()
        getattr(trainer, stage)(Evaluated(), loader(rows), verbose=False)
        found[stage] = metrics_of(trainer)
    predictions = make().predict(Evaluated(), loader(rows))
    found["predict"] = [int(row) for batch in predictions or [] for row in batch]
    trainer = make(num_sanity_val_steps=2)
    trainer.fit(Evaluated(), loader(), loader(rows))
    found["fit"] = {name: value for name, value in metrics_of(trainer).items() if name != "loss"}
    return found


def fewer_rows_than_ranks(rank: int) -> dict[str, Any]:
    strategy = BoaStrategy(global_batch_size=2, min_batch_size=0)
    return fit_small(trainer_of(strategy, 3), loader(7, shuffle=True))


def fit_small(trainer: pl.Trainer, data: DataLoader[Any]) -> dict[str, Any]:
    module = Evaluated()
    trainer.fit(module, data)
    return {"weights": weights_of(module), "steps": trainer.global_step}


def no_rows_to_train(make: Callable[..., pl.Trainer]) -> int:
    trainer = make()
    trainer.fit(Evaluated(), loader(0))
    return trainer.global_step


def three(**options: Any) -> pl.Trainer:
    return trainer_of(BoaStrategy(), 3, **options)


def play_three(rank: int) -> dict[str, Any]:
    return {
        "one row": evaluate_rows(1, three),
        "two rows": evaluate_rows(2, three),
        "no rows": evaluate_rows(0, three),
        "fewer rows than ranks": fewer_rows_than_ranks(rank),
        "no rows to train": no_rows_to_train(three),
        "without a seed": without_a_seed(rank),
    }


@pytest.fixture(scope="module")
def played_by_three() -> list[dict[str, Any]]:
    return run_ranks(play_three, 3)


def test_ranks_need_no_seed(played_by_three: Any) -> None:
    seen = [found["without a seed"] for found in played_by_three]
    steps = [[row for share in step for row in share] for step in zip(*seen, strict=True)]
    first, second = (
        [row for step in steps[5 * epoch : 5 * (epoch + 1)] for row in step] for epoch in range(2)
    )
    assert sorted(first) == sorted(second) == list(range(37))
    assert first != second
    assert first != list(range(37))


@pytest.mark.parametrize(("name", "rows"), [("one row", 1), ("two rows", 2), ("no rows", 0)])
def test_fewer_rows_than_ranks_are_evaluated_once(
    played_by_three: Any, name: str, rows: int
) -> None:
    expected = evaluate_rows(rows, alone)
    for found in played_by_three:
        for stage in ("validate", "test"):
            assert found[name][stage] == pytest.approx(expected[stage], rel=1e-6), stage
        assert found[name]["fit"].keys() == expected["fit"].keys()
    predicted = [row for found in played_by_three for row in found[name]["predict"]]
    assert sorted(predicted) == list(range(rows))


def test_a_batch_smaller_than_the_number_of_ranks_is_exact(played_by_three: Any) -> None:
    batches = GlobalBatches(with_options(TRAINING, rows=7, global_batch_size=2))
    expected = fit_small(alone(), DataLoader(NumberedRows(7), batch_sampler=batches))
    check_exact([found["fewer rows than ranks"] for found in played_by_three], expected)


def test_no_rows_to_train_are_no_training(played_by_three: Any) -> None:
    assert no_rows_to_train(alone) == 0
    assert [found["no rows to train"] for found in played_by_three] == [0, 0, 0]


def error_of(attempt: Callable[[], object]) -> str:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        attempt()
    return f"{type(caught.value).__name__}: {caught.value}"


@pytest.mark.parametrize("devices", [ListConfig([0, 1]), ListConfig([0])], ids=str)
def test_devices_of_another_kind_of_list_are_refused_as_under_ddp(devices: Any) -> None:
    options = {"accelerator": "cpu", "devices": devices, "logger": False}
    under_boa = error_of(lambda: pl.Trainer(strategy=BoaStrategy(), **options))
    assert under_boa == error_of(lambda: pl.Trainer(strategy="ddp", **options))
    assert under_boa.startswith("TypeError: `devices` selected with `CPUAccelerator`")


def test_no_strategy_at_all_is_refused_by_lightning_itself() -> None:
    sentence = error_of(lambda: pl.Trainer(accelerator="cpu", devices=2, strategy=None))
    assert sentence.startswith("ValueError: You selected an invalid strategy name: `strategy=None`")
