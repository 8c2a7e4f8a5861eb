"""A generative adversarial network draws digits: manual optimisation, two optimizers, two backwards a step.

    python examples/gan.py                                             # two emulated devices
    python examples/gan.py --strategy ddp_find_unused_parameters_true  # the same with equal shares

Nothing in it knows of boa. As under "ddp", each backward is `self.manual_backward(loss)`, and the strategy's name says
that one network has no gradients while the other one learns.
"""

from __future__ import annotations

import argparse

import pytorch_lightning as pl
import torch
from lightning_boa import BoaStrategy, EmulatedCluster
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

DEVICES = (("new", 0.0015), ("old", 0.0045))  # seconds for each row
BATCH_SIZE = 32
NOISE = 32
INK = " .:-=+*#%@"


class DigitsGan(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(
            nn.Linear(NOISE, 128),
            nn.BatchNorm1d(128),
            nn.ReLU(),
            nn.Linear(128, 128),
            nn.BatchNorm1d(128),
            nn.ReLU(),
            nn.Linear(128, 64),
            nn.Sigmoid(),
        )
        self.critic = nn.Sequential(
            nn.Linear(64, 128),
            nn.LeakyReLU(0.2),
            nn.Dropout(0.3),
            nn.Linear(128, 128),
            nn.LeakyReLU(0.2),
            nn.Dropout(0.3),
            nn.Linear(128, 1),
        )

    def forward(self, count: int) -> Tensor:
        return self.generator(torch.randn(count, NOISE, device=self.device))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
        (real,) = batch
        generator_optimizer, critic_optimizer = self.optimizers()

        self.toggle_optimizer(critic_optimizer)
        loss = self.judged(real, is_real=True) + self.judged(
            self(len(real)).detach(), is_real=False
        )
        critic_optimizer.zero_grad()
        self.manual_backward(loss)
        critic_optimizer.step()
        self.untoggle_optimizer(critic_optimizer)
        self.log("critic_loss", loss, prog_bar=True)

        self.toggle_optimizer(generator_optimizer)
        loss = self.judged(self(len(real)), is_real=True)
        generator_optimizer.zero_grad()
        self.manual_backward(loss)
        generator_optimizer.step()
        self.untoggle_optimizer(generator_optimizer)
        self.log("generator_loss", loss, prog_bar=True)

    def judged(self, pictures: Tensor, is_real: bool) -> Tensor:
        scores = self.critic(pictures)
        return F.binary_cross_entropy_with_logits(scores, torch.full_like(scores, float(is_real)))

    def configure_optimizers(self):
        return [
            torch.optim.Adam(part.parameters(), lr=2e-3, betas=(0.5, 0.999))
            for part in (self.generator, self.critic)
        ]


def digits() -> Tensor:
    return torch.tensor(load_digits().data / 16, dtype=torch.float32)


def distance(pictures: Tensor, others: Tensor) -> float:
    """Fréchet distance of the two sets of pictures, each taken for normally distributed."""
    difference = (pictures.mean(0) - others.mean(0)).square().sum()
    one, other = pictures.double().T.cov(), others.double().T.cov()
    common = torch.linalg.eigvals(one @ other).real.clamp(min=0).sqrt().sum()
    return float(difference + one.trace() + other.trace() - 2 * common)


@torch.no_grad()
def drawn_by(model: DigitsGan, count: int) -> Tensor:
    return model.eval()(count)


def show(pictures: Tensor) -> None:
    """Pictures side by side, in characters."""
    for line in pictures.unflatten(1, (8, 8)).transpose(0, 1):
        rows = ("".join(INK[int(9 * pixel)] * 2 for pixel in row) for row in line)
        print("  ".join(rows).rstrip())


def emulated(devices: int) -> EmulatedCluster:
    names, seconds = zip(*(DEVICES[rank % len(DEVICES)] for rank in range(devices)), strict=True)
    return EmulatedCluster(seconds_per_sample=seconds, overhead=0.002, names=names)


def count(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text}")
    return int(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=count, default=2)
    parser.add_argument("--strategy", default="boa_find_unused_parameters_true")
    parser.add_argument("--accelerator", default="cpu", help="cpu emulates devices of two speeds")
    parser.add_argument("--epochs", type=count, default=12)
    arguments = parser.parse_args()

    callbacks = [emulated(arguments.devices)] if arguments.accelerator == "cpu" else []
    try:
        trainer = pl.Trainer(
            accelerator=arguments.accelerator,
            devices=arguments.devices,
            strategy=arguments.strategy,
            callbacks=callbacks,
            max_epochs=arguments.epochs,
            log_every_n_steps=10,
        )
    except (ImportError, TypeError, ValueError, MisconfigurationException) as error:
        parser.error(" ".join(str(error).split()))
    pl.seed_everything(1)
    model, real = DigitsGan(), digits()
    untrained = DigitsGan()
    trainer.fit(model, DataLoader(TensorDataset(real), BATCH_SIZE, shuffle=True))
    if not trainer.is_global_zero:
        return
    if isinstance(trainer.strategy, BoaStrategy):
        print(f"rows per device: {trainer.strategy.plan.batch_sizes}")
    show(drawn_by(model, 4))
    print(f"distance to real digits: {distance(drawn_by(untrained, 1000), real):.2f} untrained")
    print(f"distance to real digits: {distance(drawn_by(model, 1000), real):.2f} trained")


if __name__ == "__main__":
    main()
