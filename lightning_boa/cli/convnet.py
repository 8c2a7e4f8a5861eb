"""A small convolutional network for pictures with one channel, of any size from 4 x 4 pixels up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Optimizer
from torchmetrics.classification import MulticlassAccuracy

from lightning_boa.cli.framework import LightningModule
from lightning_boa.cli.optimization import BatchScaling, new_optimizer
from lightning_boa.cli.options import whole_number
from lightning_boa.errors import OptionError

if TYPE_CHECKING:
    from pytorch_lightning.utilities.types import OptimizerLRScheduler

CLASSES = 10
NESTEROV = partial(SGD, lr=0.1, momentum=0.9, nesterov=True)


class ConvNet(LightningModule):
    """Trained on the cross entropy.

    Args:
        channels: of the first layer; the second has twice as many.
        optimizer: makes the optimizer of the parameters; SGD with momentum unless given.
        scaling: of its learning rate with the global batch; none unless given.

    Raises:
        OptionError: an option out of range, or what the optimizer itself refuses.
    """

    def __init__(
        self,
        channels: int = 8,
        optimizer: Callable[[Iterator[nn.Parameter]], Optimizer] = NESTEROV,
        scaling: BatchScaling | None = None,
    ) -> None:
        super().__init__()
        whole_number("model.channels", channels, least=1)
        if not callable(optimizer):
            raise OptionError(
                "model.optimizer: expected what makes an optimizer of parameters, as optimizer=sgd chooses it, got"
                f" {optimizer!r}."
            )
        if not isinstance(scaling, BatchScaling | None):
            raise OptionError(
                f"model.scaling: expected what scaling=linear chooses, or null, got {scaling!r}."
            )
        self.make_optimizer = optimizer
        self.scaling = scaling or BatchScaling()
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
        new_optimizer(
            self.make_optimizer, self.parameters()
        )  # what it refuses is known before any rank is started

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

    def configure_optimizers(self) -> OptimizerLRScheduler:
        optimizer = new_optimizer(self.make_optimizer, self.parameters())
        return self.scaling.configure(optimizer, self.trainer)
