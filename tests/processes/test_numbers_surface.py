"""Numbers that people read and decide by: on unequal shares, ranks without rows included, as on one device."""

from __future__ import annotations

import csv
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import (
    BasePredictionWriter,
    EarlyStopping,
    LearningRateMonitor,
    ModelCheckpoint,
    ThroughputMonitor,
)
from pytorch_lightning.loggers import CSVLogger
from torch import Tensor
from torch.utils.data import DataLoader
from torchmetrics import MeanMetric, MetricCollection, SpearmanCorrCoef
from torchmetrics.classification import BinaryAccuracy, BinaryAUROC

from lightning_boa import BoaStrategy
from tests.processes.ranks import run_ranks
from tests.processes.scenes import SHARES, Scene, plain, play_all, play_alone
from tests.processes.training import (
    NumberedRows,
    Regression,
    Training,
    quiet,
    trainer_options,
    with_options,
)

pytestmark = pytest.mark.full

PLAIN = with_options(Scene().training, validation_rows=11)
PREDICTED_ROWS = 97
PREDICTING_SHARES = {2: [7, 5], 3: [7, 0, 5]}
OF_EVALUATION = 12


def part_of_the_step(module: pl.LightningModule) -> float:
    share = getattr(module.trainer.strategy, "share", None)
    return 1.0 if share is None else share.rows / share.step_rows


def has_rows(module: pl.LightningModule) -> bool:
    return part_of_the_step(module) > 0


class Logs(Regression):
    """Logs in every way from steps, from the ends of batches and from the ends of epochs."""

    def __init__(self) -> None:
        super().__init__(schedules=False)
        self.own: dict[str, list[Tensor]] = {"train": [], "val": []}
        self.kept: dict[str, float] = {}

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self._log_step("train", batch)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> Tensor:
        super().validation_step(batch, batch_idx)
        self._log_step("val", batch)
        return self.errors(batch).mean()

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._log_at_the_end_of_the_batch("train", outputs["loss"], batch)

    def on_validation_batch_end(self, outputs: Any, batch: Any, *arguments: Any) -> None:
        self._log_at_the_end_of_the_batch("val", outputs, batch)

    def on_train_epoch_end(self) -> None:
        self._log_epoch("train")

    def on_validation_epoch_end(self) -> None:
        self._log_epoch("val")

    def on_fit_end(self) -> None:
        for metrics in (self.trainer.progress_bar_metrics, self.trainer.logged_metrics):
            self.kept |= {name: float(value) for name, value in metrics.items()}

    def _log_step(self, stage: str, batch: Any) -> None:
        errors = self.errors(batch).detach()
        if has_rows(self):
            self.own[stage].append(errors)
        for kind in ("mean", "sum", "min", "max"):
            for on_step, on_epoch in ((True, False), (False, True), (True, True)):
                self.log(
                    f"{stage} {kind} {on_step} {on_epoch}",
                    getattr(errors, kind)(),
                    on_step=on_step,
                    on_epoch=on_epoch,
                    reduce_fx=kind,
                    sync_dist=True,
                    prog_bar=True,
                )
        things = 1 + batch[2] % 3
        mean = (things * errors.flatten()).sum() / things.sum()
        self.log(
            f"{stage} of things",
            mean,
            on_step=False,
            on_epoch=True,
            sync_dist=True,
            batch_size=int(things.sum()),
        )
        gathered = self.all_gather(errors.mean() * part_of_the_step(self)).sum()
        self.log(f"{stage} gathered", gathered, on_step=True, on_epoch=True, sync_dist=True)
        pair = {f"{stage} first": errors.mean(), f"{stage} second": errors.square().mean()}
        self.log_dict(pair, on_step=True, on_epoch=True, sync_dist=True)

    def _log_at_the_end_of_the_batch(self, stage: str, loss: Tensor, batch: Any) -> None:
        self.log(f"{stage} late", loss, on_step=True, on_epoch=True, sync_dist=True)
        agreed = self.trainer.strategy.reduce_boolean_decision(True)
        self.log(f"{stage} agreed", float(agreed), on_step=True, on_epoch=True, sync_dist=True)
        errors = self.errors(batch).detach()
        for kind in ("sum", "min", "max"):
            self.log(
                f"{stage} late {kind}",
                getattr(errors, kind)(),
                on_step=True,
                on_epoch=True,
                reduce_fx=kind,
                sync_dist=True,
            )

    def _log_epoch(self, stage: str) -> None:
        own = self.own[stage]
        mean = torch.cat(own).mean() if own else torch.zeros(())
        self.log(f"{stage} of the epoch", mean, sync_dist=True)
        own.clear()


class Metrics(Regression):
    """Metric objects: counts, a weighted mean, and lists of all rows."""

    def __init__(self) -> None:
        super().__init__(schedules=False)
        self.train_metrics = self._metrics()
        self.val_metrics = self._metrics()
        self.train_collection = MetricCollection([BinaryAUROC(), BinaryAccuracy()], prefix="train ")
        self.val_collection = MetricCollection([BinaryAUROC(), BinaryAccuracy()], prefix="val ")

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self._update("train", self.train_metrics, self.train_collection, batch)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self._update("val", self.val_metrics, self.val_collection, batch)

    @staticmethod
    def _metrics() -> torch.nn.ModuleDict:
        return torch.nn.ModuleDict(
            {"accuracy": BinaryAccuracy(), "mean": MeanMetric(), "rank": SpearmanCorrCoef()}
        )

    def _update(self, stage: str, metrics: Any, collection: Any, batch: Any) -> None:
        features, targets, _ = batch
        found = self.net(features).detach().squeeze(1)
        targets = targets.squeeze(1)
        metrics["accuracy"](found.sigmoid(), targets > 0)
        metrics["mean"].update(found, weight=targets.abs())
        metrics["rank"].update(found, targets)
        for name, metric in metrics.items():
            self.log(f"{stage} {name}", metric, on_step=False, on_epoch=True)
        collection.update(found.sigmoid(), targets > 0)
        self.log_dict(collection, on_step=False, on_epoch=True)


class Decides(Regression):
    """Best in its third epoch; keeps what checkpoints and early stopping have made of that."""

    def __init__(self, synchronized: bool) -> None:
        super().__init__(schedules=False)
        self.synchronized = synchronized
        self.kept: tuple[Any, ...] = ()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        value = self.errors(batch).mean() + 5 * abs(self.current_epoch - 2)
        self.log("val", value, sync_dist=self.synchronized)

    def on_fit_end(self) -> None:
        checkpoints = self.trainer.checkpoint_callback
        kept = sorted(Path(path).name for path in checkpoints.best_k_models)
        best = Path(checkpoints.best_model_path).name
        self.kept = (kept, best, self.trainer.early_stopping_callback.stopped_epoch)


class Local(Regression):
    """Logs without sync_dist, and keeps the errors of its own rows."""

    def __init__(self) -> None:
        super().__init__(schedules=False)
        self.kept: list[float] = []

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        errors = self.errors(batch)
        self.log("local", errors.mean())
        self.log("local sum", errors.sum(), reduce_fx="sum")
        if has_rows(self):
            self.kept += errors.flatten().tolist()


class TwoValidations(Regression):
    """Two loaders that log under one name, with the number of the loader and without."""

    def val_dataloader(self) -> list[DataLoader[Any]]:
        batch_size = OF_EVALUATION // self.trainer.world_size
        return [DataLoader(NumberedRows(rows), batch_size=batch_size) for rows in (14, 11)]

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int) -> None:  # type: ignore[override]
        value = self.errors(batch).mean()
        self.log("each", value, sync_dist=True)
        self.log(f"own {dataloader_idx}", value, sync_dist=True, add_dataloader_idx=False)


def csv_logger(name: str, **options: Any) -> Any:
    return lambda: {
        "logger": CSVLogger(".", name=name, version=""),
        "log_every_n_steps": 1,
        **options,
    }


def deciding() -> dict[str, Any]:
    checkpoints = ModelCheckpoint(".", "{epoch}", monitor="val", save_top_k=2)
    return {
        "enable_checkpointing": True,
        "callbacks": [checkpoints, EarlyStopping("val", patience=1)],
    }


SCENES = {
    "logs": Scene(Logs, PLAIN, csv_logger("logs")),
    "logs in windows": Scene(
        Logs, PLAIN, csv_logger("logs in windows", accumulate_grad_batches=2, val_check_interval=2)
    ),
    "metrics": Scene(Metrics, PLAIN, csv_logger("metrics")),
    "decides": Scene(partial(Decides, True), with_options(PLAIN, epochs=9), deciding),
    "two loaders": Scene(
        partial(TwoValidations, schedules=False),
        with_options(PLAIN, validation_rows=0),
        csv_logger("two loaders"),
    ),
}
LOCAL = {
    "local": Scene(Local, with_options(PLAIN, epochs=1)),
    "decides by local values": Scene(
        partial(Decides, False), with_options(PLAIN, epochs=9), deciding
    ),
}


def play(rank: int, ranks: int) -> dict[str, Any]:
    found: dict[str, Any] = dict(play_all(rank, ranks, {**SCENES, **LOCAL}))
    found["files"] = files()
    shares = PREDICTING_SHARES[ranks]
    found["predictions"] = predict(BoaStrategy(batch_sizes=shares), ranks)
    if ranks == 2:
        for name, strategy in (("ddp", "ddp"), ("boa", BoaStrategy(batch_sizes=SHARES[2]))):
            fit_with_a_logger(name, strategy)
        found["throughput"] = throughput()
        found["axes"] = {name: read(name) for name in ("ddp", "boa")} if rank == 0 else {}
    return found


def files() -> dict[str, list[dict[str, str]]]:
    return {name: read(name) for name in SCENES if Path(name, "metrics.csv").exists()}


def read(name: str) -> list[dict[str, str]]:
    with Path(name, "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def fit_with_a_logger(name: str, strategy: Any) -> None:
    quiet()
    pl.seed_everything(3)
    options = {
        **trainer_options(Training(epochs=3)),
        "logger": CSVLogger(".", name=name, version=""),
        "callbacks": [LearningRateMonitor()],
        "log_every_n_steps": 2,
        "accumulate_grad_batches": 2,
        "val_check_interval": 3,
    }
    trainer = pl.Trainer(strategy=strategy, devices=2, **options)
    made = [DataLoader(NumberedRows(rows), batch_size=4) for rows in (40, 16)]
    trainer.fit(Regression(), *made)


def throughput() -> list[float]:
    """Rows per second of all ranks over steps per second, once with each way to count rows."""
    quiet()
    found = []
    for way in ("of all ranks", "of the batch"):
        monitor = ThroughputMonitor(lambda batch: len(batch[0]), window_size=2)
        options = {
            **trainer_options(Training(epochs=1)),
            "logger": CSVLogger(".", name=way, version=""),
            "callbacks": [monitor],
            "log_every_n_steps": 1,
        }
        strategy = BoaStrategy(batch_sizes=SHARES[2])
        trainer = pl.Trainer(strategy=strategy, devices=2, **options)
        if way == "of all ranks":
            monitor.batch_size_fn = partial(rows_of_a_rank, trainer)
        trainer.fit(plain(), DataLoader(NumberedRows(40), batch_size=4))
        if trainer.is_global_zero:
            last = [row for row in read(way) if row.get("train/samples_per_sec")][-1]
            rates = ("train/samples_per_sec", "train/device/batches_per_sec")
            rows, steps = (float(last[name]) for name in rates)
            found.append(rows / steps)
    return found


def rows_of_a_rank(trainer: pl.Trainer, batch: Any) -> float:
    share = trainer.strategy.share
    return share.step_rows / trainer.world_size


class Writer(BasePredictionWriter):
    def __init__(self) -> None:
        super().__init__("batch")
        self.written: dict[int, float] = {}

    def write_on_batch_end(
        self, trainer: Any, pl_module: Any, prediction: Tensor, indices: Any, *arguments: Any
    ) -> None:
        self.written |= dict(zip(indices, prediction.flatten().tolist(), strict=True))


class Predicts(Regression):
    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        found: Tensor = self.net(batch[0])
        return found


def predict(strategy: Any, devices: int) -> dict[int, float]:
    """Predictions by row, of the module that a training with the strategy's shares leaves."""
    quiet()
    pl.seed_everything(3)
    writer = Writer()
    options = {**trainer_options(Training(epochs=1)), "callbacks": [writer]}
    trainer = pl.Trainer(strategy=strategy, devices=devices, **options)
    module = Predicts(schedules=False)
    trainer.fit(module, DataLoader(NumberedRows(36), batch_size=12 // devices))
    trainer.predict(module, DataLoader(NumberedRows(PREDICTED_ROWS), batch_size=5))
    return writer.written


@pytest.fixture(scope="module")
def played() -> dict[int, list[dict[str, Any]]]:
    return {ranks: run_ranks(play, ranks, ranks) for ranks in SHARES}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    with pytest.MonkeyPatch.context() as patch:
        for ranks in SHARES:
            patch.chdir(tmp_path_factory.mktemp("alone"))
            found[ranks] = {name: play_alone(scene, ranks) for name, scene in SCENES.items()}
            found[ranks]["files"] = files()
    return found


CASES = [(ranks, name) for ranks in SHARES for name in SCENES]


@pytest.mark.parametrize(("ranks", "name"), CASES)
def test_callbacks_see_the_numbers_of_a_single_device(
    played: Any, alone: Any, ranks: int, name: str
) -> None:
    expected = alone[ranks][name]
    assert expected.error == ""
    for by_rank in played[ranks]:
        assert by_rank[name].error == ""
        assert by_rank[name].metrics == pytest.approx(expected.metrics, rel=1e-6)
        assert by_rank[name].epochs == expected.epochs


@pytest.mark.parametrize(("ranks", "name"), [case for case in CASES if case[1] != "decides"])
def test_files_hold_the_numbers_of_a_single_device(
    played: Any, alone: Any, ranks: int, name: str
) -> None:
    ours, theirs = played[ranks][0]["files"][name], alone[ranks]["files"][name]
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert numbers(one) == pytest.approx(numbers(other), rel=1e-6)


def numbers(row: dict[str, str]) -> dict[str, float]:
    return {name: float(value) for name, value in row.items() if value}


@pytest.mark.parametrize("ranks", SHARES)
@pytest.mark.parametrize("name", ["logs", "logs in windows"])
def test_progress_bars_show_the_numbers_of_a_single_device(
    played: Any, alone: Any, ranks: int, name: str
) -> None:
    for by_rank in played[ranks]:
        assert by_rank[name].kept == pytest.approx(alone[ranks][name].kept, rel=1e-6)


@pytest.mark.parametrize("ranks", SHARES)
def test_checkpoints_and_stopping_decide_as_on_a_single_device(
    played: Any, alone: Any, ranks: int
) -> None:
    expected = alone[ranks]["decides"].kept
    assert expected[1:] == ("epoch=2.ckpt", 3)
    for by_rank in played[ranks]:
        assert by_rank["decides"].kept == expected


@pytest.mark.parametrize("ranks", SHARES)
def test_decisions_by_values_of_one_rank_are_the_same_on_all(played: Any, ranks: int) -> None:
    (_, _, stopped), *others = (found["decides by local values"].kept for found in played[ranks])
    assert stopped == 3
    assert all(kept[2] == stopped for kept in others)
    assert len({found["decides by local values"].epochs for found in played[ranks]}) == 1


@pytest.mark.parametrize("ranks", SHARES)
def test_without_sync_dist_a_value_is_that_of_the_ranks_own_rows(played: Any, ranks: int) -> None:
    for found in (by_rank["local"] for by_rank in played[ranks]):
        assert found.error == ""
        if found.kept:
            mean = sum(found.kept) / len(found.kept)
            assert found.metrics["local"] == pytest.approx(mean, rel=1e-9)
            assert found.metrics["local sum"] == pytest.approx(sum(found.kept), rel=1e-9)
        assert math.isfinite(found.metrics["local"])


def test_steps_and_epochs_are_logged_where_ddp_logs_them(played: Any) -> None:
    axes = played[2][0]["axes"]
    assert [where(row) for row in axes["boa"]] == [where(row) for row in axes["ddp"]]
    assert len(axes["boa"]) > 10


def test_throughput_counts_the_rows_of_all_ranks_if_it_is_told_so(played: Any) -> None:
    of_all_ranks, of_the_batch = played[2][0]["throughput"]
    assert of_all_ranks == pytest.approx(sum(SHARES[2]), rel=1e-9)
    assert of_the_batch == pytest.approx(2 * SHARES[2][0], rel=1e-9)


def where(row: dict[str, str]) -> tuple[Any, ...]:
    filled = {name for name, value in row.items() if value}
    return row["step"], row["epoch"], row["lr-SGD"], filled


@pytest.mark.parametrize("ranks", SHARES)
def test_the_order_of_predictions_can_be_restored(played: Any, ranks: int) -> None:
    found = [by_rank["predictions"] for by_rank in played[ranks]]
    assert sum(map(len, found)) == PREDICTED_ROWS
    together = {row: value for each in found for row, value in each.items()}
    alone = predict("auto", 1)
    assert sorted(together) == sorted(alone) == list(range(PREDICTED_ROWS))
    assert together == pytest.approx(alone, rel=1e-9)
