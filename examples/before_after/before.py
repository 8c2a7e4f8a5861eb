"""Handwritten digits on two devices: a Lightning script as there are many."""

import pytorch_lightning as pl
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy


class Digits(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 64, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.Conv2d(64, 64, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(64 * 4 * 4, 10),
        )
        self.accuracy = MulticlassAccuracy(10, average="micro")

    def training_step(self, batch, batch_idx):
        pictures, labels = batch
        loss = F.cross_entropy(self.layers(pictures), labels)
        self.log("loss", loss, on_epoch=True, prog_bar=True, sync_dist=True)
        return loss

    def validation_step(self, batch, batch_idx):
        pictures, labels = batch
        self.accuracy(self.layers(pictures), labels)
        self.log("accuracy", self.accuracy, prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def main():
    pl.seed_everything(1)
    digits = load_digits()
    pictures = torch.tensor(digits.images / 16).float()[:, None]
    rows = TensorDataset(pictures, torch.tensor(digits.target))
    train, validation = torch.utils.data.random_split(rows, [1472, 325])

    trainer = pl.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=3)
    trainer.fit(
        Digits(),
        DataLoader(train, batch_size=32, shuffle=True),
        DataLoader(validation, batch_size=32),
    )
    if trainer.is_global_zero:
        print(f"loss: {trainer.callback_metrics['loss_epoch']:.4f}")
        print(f"accuracy: {trainer.callback_metrics['accuracy']:.4f}")


if __name__ == "__main__":
    main()
