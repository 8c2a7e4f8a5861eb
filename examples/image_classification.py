"""A small ResNet learns handwritten digits on devices of three speeds, and goes on from a checkpoint.

    python examples/image_classification.py                                # three emulated devices
    python examples/image_classification.py --strategy ddp                 # the same with equal shares
    python examples/image_classification.py --accelerator gpu --devices 2  # this machine's GPUs

The first training is stopped in the middle of its third epoch. The second one goes on there with the plan that the
checkpoint holds: no row of that epoch is left out or repeated, nothing is measured anew.
"""

from __future__ import annotations

import argparse

import pytorch_lightning as pl
import torch
from lightning_boa import BoaStrategy, EmulatedCluster
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split
from torchmetrics.classification import MulticlassAccuracy

DEVICES = (("fast", 0.003), ("slow", 0.012), ("middle", 0.006))  # seconds for each row
BATCH_SIZE = 20
EPOCHS = 6
STOP_AT_STEP = 60


class ResidualBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, pictures: Tensor) -> Tensor:
        return F.relu(self.body(pictures) + self.shortcut(pictures))


class ResNet8(pl.LightningModule):
    def __init__(self, classes: int = 10, learning_rate: float = 0.05) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            ResidualBlock(8, 8, stride=1),
            ResidualBlock(8, 16, stride=2),
            ResidualBlock(16, 32, stride=2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(32, classes),
        )
        self.accuracy = MulticlassAccuracy(classes, average="micro")

    def forward(self, pictures: Tensor) -> Tensor:
        return self.layers(pictures)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        pictures, labels = batch
        loss = F.cross_entropy(self(pictures), labels)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        pictures, labels = batch
        self.accuracy(self(pictures), labels)
        self.log("val_accuracy", self.accuracy, prog_bar=True)  # torchmetrics adds up all ranks

    def configure_optimizers(self):
        rate = self.hparams.learning_rate
        optimizer = torch.optim.SGD(self.parameters(), lr=rate, momentum=0.9, weight_decay=5e-4)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS)
        return [optimizer], [schedule]


def digits_loaders() -> tuple[DataLoader, DataLoader]:
    digits = load_digits()
    pictures = torch.tensor(digits.images / 16, dtype=torch.float32)[:, None]
    rows = TensorDataset(pictures, torch.tensor(digits.target))
    train, validation = random_split(rows, [1497, 300], torch.Generator().manual_seed(1))
    return (
        DataLoader(train, batch_size=BATCH_SIZE, shuffle=True),
        DataLoader(validation, batch_size=100),
    )


def emulated(devices: int) -> EmulatedCluster:
    names, seconds = zip(*(DEVICES[rank % len(DEVICES)] for rank in range(devices)), strict=True)
    return EmulatedCluster(seconds_per_sample=seconds, overhead=0.002, names=names)


def new_trainer(arguments: argparse.Namespace, **options) -> pl.Trainer:
    callbacks: list[pl.Callback] = [
        ModelCheckpoint("checkpoints", every_n_train_steps=STOP_AT_STEP)
    ]
    if arguments.accelerator == "cpu":
        callbacks.append(emulated(arguments.devices))
    return pl.Trainer(
        accelerator=arguments.accelerator,
        devices=arguments.devices,
        strategy=arguments.strategy,
        callbacks=callbacks,
        log_every_n_steps=10,
        **options,
    )


def print_rows(strategy: object) -> None:
    if isinstance(strategy, BoaStrategy):
        print(f"rows per device: {strategy.plan.batch_sizes}")


def count(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text}")
    return int(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=count, default=3)
    parser.add_argument("--strategy", default="boa")
    parser.add_argument("--accelerator", default="cpu", help="cpu emulates devices of three speeds")
    arguments = parser.parse_args()

    pl.seed_everything(1)
    try:
        first = new_trainer(arguments, max_steps=STOP_AT_STEP)
    except (ImportError, TypeError, ValueError, MisconfigurationException) as error:
        parser.error(" ".join(str(error).split()))
    first.fit(ResNet8(), *digits_loaders())
    checkpoint = first.checkpoint_callback.best_model_path
    if first.is_global_zero:
        print(f"stopped after step {first.global_step}")
        print_rows(first.strategy)

    second = new_trainer(arguments, max_epochs=EPOCHS)
    second.fit(ResNet8(), *digits_loaders(), ckpt_path=checkpoint)
    if second.is_global_zero:
        print(f"went on to step {second.global_step}")
        print_rows(second.strategy)
        print(f"validation accuracy: {second.callback_metrics['val_accuracy']:.3f}")


if __name__ == "__main__":
    main()
