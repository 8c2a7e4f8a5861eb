"""scikit-learn's handwritten digits and a small network that learns them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import lightning as L
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

CLASSES = 10


class DigitsDataModule(L.LightningDataModule):
    def __init__(self, batch_size: int, num_workers: int) -> None:
        super().__init__()
        self.save_hyperparameters()

    def setup(self, stage: str) -> None:
        digits = load_digits()
        order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(1))
        pictures = torch.tensor(digits.data / 16, dtype=torch.float32)[order]
        labels = torch.tensor(digits.target)[order]
        self.train_set = TensorDataset(pictures[360:], labels[360:])
        self.test_set = TensorDataset(pictures[:360], labels[:360])

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(self.train_set, shuffle=True, **self.hparams)

    def test_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(self.test_set, **self.hparams)


class DigitsModule(L.LightningModule):
    def __init__(
        self, hidden: int, optimizer: Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]
    ) -> None:
        super().__init__()
        self.make_optimizer = optimizer
        self.net = nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES))
        self.accuracy = MulticlassAccuracy(CLASSES, average="micro")

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        pictures, labels = batch
        loss = nn.functional.cross_entropy(self.net(pictures), labels)
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def test_step(self, batch: tuple[Tensor, Tensor]) -> None:
        pictures, labels = batch
        self.accuracy(self.net(pictures), labels)
        self.log("test/accuracy", self.accuracy)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.make_optimizer(self.parameters())
