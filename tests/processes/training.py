"""One training under a strategy, and the same training on a single device with the same global batches."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, SequentialSampler

from lightning_boa.data import SequentialOrder, ShuffledOrder

FEATURES = 6


class NumberedRows(Dataset[tuple[Tensor, Tensor, Tensor]]):
    """Rows of random features and a target, each with its number, so that a test sees which rows were used."""

    def __init__(self, rows: int) -> None:
        generator = torch.Generator().manual_seed(11)
        self.features = torch.randn(rows, FEATURES, generator=generator, dtype=torch.float64)
        self.targets = torch.randn(rows, 1, generator=generator, dtype=torch.float64)

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor, Tensor]:
        return self.features[row], self.targets[row], torch.tensor(row)


class Regression(pl.LightningModule):
    """A small network trained by SGD with momentum; keeps the numbers of the rows it has seen."""

    def __init__(
        self, sum_loss: bool = False, single: bool = False, schedules: bool = True
    ) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.net = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 1))
        self.net.to(torch.float32 if single else torch.float64)
        self.sum_loss = sum_loss
        self.schedules = schedules
        self.seen: list[list[int]] = []

    def errors(self, batch: Any) -> Tensor:
        features, targets, _ = batch
        kind = next(self.parameters()).dtype
        return (self.net(features.to(kind)) - targets.to(kind)).square()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        share = getattr(self.trainer.strategy, "share", None)
        self.seen.append([] if share is not None and share.rows == 0 else batch[2].tolist())
        errors = self.errors(batch)
        self.log("loss", errors.mean(), on_step=True, on_epoch=True, sync_dist=True)
        return errors.sum() / 16 if self.sum_loss else errors.mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val", self.errors(batch).mean(), sync_dist=True)
        self.log("one", 1.0, sync_dist=True)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        if not self.schedules:
            return optimizer
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, 0.1, total_steps=int(self.trainer.estimated_stepping_batches)
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


@dataclass(frozen=True)
class Training:
    """What is trained, and how."""

    rows: int = 67
    global_batch_size: int = 16
    shuffle: bool = True
    drop_last: bool = False
    epochs: int = 3
    workers: int = 0
    sum_loss: bool = False
    single: bool = False
    schedules: bool = True
    validation_rows: int = 0
    strategy: dict[str, Any] = field(default_factory=dict)
    trainer: dict[str, Any] = field(default_factory=dict)
    seed: int = 3


@dataclass(frozen=True)
class Outcome:
    """What a rank knows after training."""

    weights: list[Tensor]
    seen: list[list[int]]
    steps: int
    metrics: dict[str, float]
    plan: tuple[int, ...] = ()
    last_lr: float = 0.0


def train_on_ranks(rank: int, ranks: int, training: Training, fit: Any = None) -> Outcome:
    """Train under BoaStrategy; called on each of `ranks` processes."""
    from lightning_boa import BoaStrategy

    quiet()
    pl.seed_everything(training.seed)
    module = Regression(training.sum_loss, training.single, training.schedules)
    options = {"global_batch_size": training.global_batch_size, **training.strategy}
    trainer = pl.Trainer(
        strategy=BoaStrategy(**options), devices=ranks, **trainer_options(training)
    )
    torch.manual_seed(rank)
    trainer.fit(module, *loaders(training, batch_size=3), **(fit or {}))
    return outcome(trainer, module)


def train_alone(training: Training, module: Regression | None = None) -> Outcome:
    """Train in this process with plain Lightning on the same global batches."""
    quiet()
    pl.seed_everything(training.seed)
    module = module or Regression(training.sum_loss, training.single, training.schedules)
    trainer = pl.Trainer(devices=1, **trainer_options(training))
    dataset = NumberedRows(training.rows)
    batches = GlobalBatches(training)
    _, *validation = loaders(training, batch_size=training.global_batch_size)
    trainer.fit(module, DataLoader(dataset, batch_sampler=batches), *validation)
    return outcome(trainer, module)


class GlobalBatches(BatchSampler):
    """The global batches of each epoch, in the order that the invariants promise."""

    def __init__(self, training: Training) -> None:
        super().__init__(
            SequentialSampler(range(training.rows)), training.global_batch_size, training.drop_last
        )
        order = ShuffledOrder if training.shuffle else SequentialOrder
        self.order = order(training.rows)
        self.seed = training.seed
        self.epoch = 0

    def __iter__(self) -> Iterator[list[int]]:
        rows = [int(row) for row in self.order.draw(self.seed, self.epoch)]
        self.epoch += 1
        for step in range(len(self)):
            yield rows[step * self.batch_size : (step + 1) * self.batch_size]


def loaders(training: Training, batch_size: int) -> list[DataLoader[Any]]:
    """The loader of a user, and one for validation if there are rows for it."""
    made = [
        DataLoader(
            NumberedRows(training.rows),
            batch_size=batch_size,
            shuffle=training.shuffle,
            drop_last=training.drop_last,
            num_workers=training.workers,
            persistent_workers=training.workers > 0,
        )
    ]
    if training.validation_rows:
        made.append(DataLoader(NumberedRows(training.validation_rows), batch_size=batch_size))
    return made


def trainer_options(training: Training) -> dict[str, Any]:
    return {
        "accelerator": "cpu",
        "max_epochs": training.epochs,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        **training.trainer,
    }


def outcome(trainer: pl.Trainer, module: Regression) -> Outcome:
    plan = getattr(trainer.strategy, "plan", None)
    return Outcome(
        weights=[parameter.detach().clone() for parameter in module.parameters()],
        seen=module.seen,
        steps=trainer.global_step,
        metrics=logged_values(trainer),
        plan=() if plan is None else plan.batch_sizes,
        last_lr=trainer.optimizers[0].param_groups[0]["lr"],
    )


def logged_values(trainer: pl.Trainer) -> dict[str, float]:
    """What the module has logged, without the figures of boa."""
    return {
        name: float(value)
        for name, value in trainer.callback_metrics.items()
        if not name.startswith("boa/")
    }


def relative_error(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """Largest difference over largest value, over all parameters."""
    largest = max(float(tensor.abs().max()) for tensor in theirs)
    pairs = zip(ours, theirs, strict=True)
    return max(float((one - other).abs().max()) for one, other in pairs) / largest


def rows_of_steps(together: list[Outcome]) -> list[list[int]]:
    """The rows of each step over all ranks, in the order of the ranks."""
    steps = zip(*(outcome.seen for outcome in together), strict=True)
    return [[row for share in step for row in share] for step in steps]


def quiet() -> None:
    warnings.simplefilter("ignore")
    for name in ("pytorch_lightning", "lightning.pytorch", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)


def with_options(training: Training, **options: Any) -> Training:
    return replace(training, **options)
