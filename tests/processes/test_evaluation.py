"""I3 in validate, test and predict, and numbers that people read: as on a single device, whatever the ranks."""

from __future__ import annotations

from typing import Any

import pytest
import pytorch_lightning as pl
from pytorch_lightning.callbacks import BasePredictionWriter
from torch import Tensor
from torch.utils.data import DataLoader
from torchmetrics import CatMetric, MeanMetric, SumMetric

from lightning_boa import BoaStrategy
from tests.processes.ranks import run_ranks
from tests.processes.training import (
    NumberedRows,
    Regression,
    Training,
    logged_values,
    quiet,
    trainer_options,
)

ROWS = (97, 5, 2)


class Measuring(Regression):
    """Logs every kind of number, and keeps the rows it was evaluated on."""

    def __init__(self) -> None:
        super().__init__(schedules=False)
        self.mean_error = MeanMetric()
        self.sum_of_rows = SumMetric()
        self.all_rows = CatMetric()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self._log("train", batch)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self._evaluate(batch)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self._evaluate(batch)

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        rows: Tensor = batch[2]
        return rows

    def _evaluate(self, batch: Any) -> None:
        self._log("evaluated", batch)
        self.mean_error.update(self.errors(batch).squeeze(1))
        self.sum_of_rows.update(batch[2])
        self.all_rows.update(batch[2])
        self.log("metric", self.mean_error)
        self.log("rows", self.sum_of_rows)

    def on_validation_epoch_end(self) -> None:
        self.all_rows.reset()

    def on_test_epoch_end(self) -> None:
        rows = self.all_rows.compute()
        self.all_rows.reset()
        self.log("rows seen", float(len(rows)))
        self.log("distinct rows", float(len(rows.unique())))

    def _log(self, prefix: str, batch: Any) -> None:
        errors = self.errors(batch).detach()
        self.log(f"{prefix} mean", errors.mean(), on_step=True, on_epoch=True, sync_dist=True)
        self.log(f"{prefix} sum", errors.sum(), reduce_fx="sum", on_epoch=True, sync_dist=True)
        self.log(f"{prefix} max", errors.max(), reduce_fx="max", on_epoch=True, sync_dist=True)
        self.log(f"{prefix} min", errors.min(), reduce_fx="min", on_epoch=True, sync_dist=True)
        self.log(f"{prefix} one", 1.0, sync_dist=True, on_epoch=True)


class Writer(BasePredictionWriter):
    def __init__(self) -> None:
        super().__init__("epoch")
        self.indices: list[Any] = []

    def write_on_epoch_end(
        self, trainer: Any, pl_module: Any, predictions: Any, batch_indices: Any
    ) -> None:
        self.indices = [row for batch in batch_indices[0] for row in batch]


def evaluate(rank: int) -> dict[Any, Any]:
    return evaluate_with(BoaStrategy(batch_sizes=[5, 2, 1], global_batch_size=8), 3)


def evaluate_with(strategy: Any, ranks: int) -> dict[Any, Any]:
    quiet()
    pl.seed_everything(3)
    writer = Writer()
    options = {**trainer_options(Training(epochs=2)), "callbacks": [writer]}
    trainer = pl.Trainer(strategy=strategy, devices=ranks, **options)
    module = Measuring()
    trainer.fit(module, DataLoader(NumberedRows(33), batch_size=8))
    found: dict[Any, Any] = {"fit": numbers(trainer)}
    for rows in ROWS:
        loader = DataLoader(NumberedRows(rows), batch_size=4)
        trainer.validate(module, loader, verbose=False)
        found["validate", rows] = numbers(trainer)
        trainer.test(module, loader, verbose=False)
        found["test", rows] = numbers(trainer)
        predictions = trainer.predict(module, loader)
        found["predict", rows] = [int(row) for batch in predictions or [] for row in batch]
        found["indices", rows] = writer.indices
        writer.indices = []
    return found


def numbers(trainer: pl.Trainer) -> dict[str, float]:
    return logged_values(trainer)


@pytest.fixture(scope="module")
def together() -> list[dict[Any, Any]]:
    return run_ranks(evaluate, 3)


@pytest.fixture(scope="module")
def alone() -> dict[Any, Any]:
    return evaluate_with("auto", 1)


@pytest.mark.parametrize("rows", ROWS)
def test_predicts_every_row_once(together: Any, rows: int) -> None:
    predicted = [row for found in together for row in found["predict", rows]]
    assert sorted(predicted) == list(range(rows))
    for found in together:
        assert found["indices", rows] == found["predict", rows]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("stage", ["validate", "test"])
def test_evaluates_every_row_once(together: Any, alone: Any, stage: str, rows: int) -> None:
    for found in together:
        assert found[stage, rows].keys() == alone[stage, rows].keys()
        for name, value in alone[stage, rows].items():
            if not name.endswith("_step"):
                assert found[stage, rows][name] == pytest.approx(value, rel=1e-6), name
    assert together[0]["test", rows]["rows seen"] == rows
    assert together[0]["test", rows]["distinct rows"] == rows


def test_training_logs_as_one_device(together: Any, alone: Any) -> None:
    for found in together:
        assert found["fit"].keys() == alone["fit"].keys()
        for name, value in alone["fit"].items():
            assert found["fit"][name] == pytest.approx(value, rel=1e-6), name
        assert found["fit"]["train one"] == 1.0
