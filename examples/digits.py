"""A Lightning script that says strategy="boa" where it would say "ddp": one more import, nothing else.

Two processes on this machine's processor; on a machine with GPUs leave `accelerator` and `devices` out.
"""

import pytorch_lightning as pl
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lightning_boa  # noqa: F401  registers strategy="boa"


class Digits(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch, batch_idx):
        pictures, labels = batch
        loss = nn.functional.cross_entropy(self.layers(pictures), labels)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def main() -> None:
    pl.seed_everything(1)
    digits = load_digits()
    rows = TensorDataset(torch.tensor(digits.data / 16).float(), torch.tensor(digits.target))
    loader = DataLoader(rows, batch_size=32, shuffle=True)

    trainer = pl.Trainer(accelerator="cpu", devices=2, strategy="boa", max_epochs=3)
    trainer.fit(Digits(), loader)
    if trainer.is_global_zero:
        print(f"rows per device: {trainer.strategy.plan.batch_sizes}")


if __name__ == "__main__":
    main()
