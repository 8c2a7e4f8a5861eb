"""A small convolutional network for pictures with one channel, of any size from 4 x 4 pixels up."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics.classification import MulticlassAccuracy

from lightning_boa.cli.framework import LightningModule
from lightning_boa.cli.options import number, whole_number

CLASSES = 10


class ConvNet(LightningModule):
    def __init__(
        self, channels: int = 8, learning_rate: float = 0.1, momentum: float = 0.9
    ) -> None:
        super().__init__()
        whole_number("model.channels", channels, least=1)
        self.learning_rate = number("model.learning_rate", learning_rate, above=0)
        self.momentum = number("model.momentum", momentum, least=0, below=1)
        self.layers = nn.Sequential(
            nn.Conv2d(1, channels, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(8),
            nn.Conv2d(channels, 2 * channels, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(2 * channels * 4 * 4, CLASSES),
        )
        self.test_accuracy = MulticlassAccuracy(CLASSES, average="micro")

    def forward(self, pictures: Tensor) -> Tensor:
        logits: Tensor = self.layers(pictures)
        return logits

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        pictures, labels = batch
        loss = F.cross_entropy(self(pictures), labels)
        self.log("loss", loss, prog_bar=True)
        return loss

    def test_step(self, batch: tuple[Tensor, Tensor]) -> None:
        pictures, labels = batch
        self.test_accuracy(self(pictures), labels)
        self.log("test_accuracy", self.test_accuracy, logger=False)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(
            self.parameters(), lr=self.learning_rate, momentum=self.momentum, nesterov=True
        )
