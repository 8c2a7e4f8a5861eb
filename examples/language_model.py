"""A small transformer learns to write like Python's own documentation, from paragraphs of unequal length.

    python examples/language_model.py                  # three emulated devices
    python examples/language_model.py --strategy ddp   # the same with equal shares
    python examples/language_model.py --check          # and the proof: the weights are those of one device

The loss is a mean over the characters that count, not over rows, and padding does not count. So a device's loss has to
weigh as much as it has characters; `boa_batch_weight` says how many these are, and that is all there is to do.
"""

from __future__ import annotations

import argparse
from pydoc_data.topics import topics

import lightning as L
import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning_boa import BoaStrategy, EmulatedCluster
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

DEVICES = (("fast", 0.004), ("slow", 0.016), ("middle", 0.008))  # seconds for each row
BATCH_SIZE = 16
LONGEST = 48
CHARACTERS = 128
IGNORED = -100


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.projection(self.attention(self.before_attention(tokens)))
        return tokens + self.mlp(self.before_mlp(tokens))

    def attention(self, tokens: Tensor) -> Tensor:
        parts = self.queries_keys_values(tokens).chunk(3, dim=-1)
        parts = [part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts]
        return F.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(-2)


class LanguageModel(L.LightningModule):
    def __init__(self, width: int = 32, heads: int = 4, layers: int = 2, plain_sgd: bool = False):
        super().__init__()
        self.plain_sgd = plain_sgd
        self.characters = nn.Embedding(CHARACTERS, width)
        self.positions = nn.Embedding(LONGEST, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, CHARACTERS))

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.blocks(self.characters(tokens) + self.positions(places)))

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        scores = self(batch["tokens"])
        return F.cross_entropy(
            scores.flatten(0, 1), batch["labels"].flatten(), ignore_index=IGNORED
        )

    def boa_batch_weight(self, batch: dict[str, Tensor]) -> Tensor:
        return (batch["labels"] != IGNORED).sum()

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        tokens = int(self.boa_batch_weight(batch))  # the mean of an epoch is one over tokens too
        self.log("val_loss", self.loss(batch), batch_size=tokens, sync_dist=True, prog_bar=True)

    def configure_optimizers(self):
        if self.plain_sgd:  # in the check: AdamW would forgive a wrong weight of the loss
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def paragraphs() -> list[Tensor]:
    texts = (" ".join(part.split()) for topic in topics.values() for part in topic.split("\n\n"))
    codes = (torch.tensor(list(text[: LONGEST + 1].encode("ascii", "ignore"))) for text in texts)
    return [code for code in codes if len(code) > 1]


def collate(rows: list[Tensor]) -> dict[str, Tensor]:
    """Each character's label is the next one; rows are filled up to the longest."""
    return {
        "tokens": pad_sequence([row[:-1] for row in rows], batch_first=True),
        "labels": pad_sequence([row[1:] for row in rows], True, padding_value=IGNORED),
    }


def loaders(batch_size: int, shuffle: bool) -> tuple[DataLoader, DataLoader]:
    rows = paragraphs()
    return (
        DataLoader(rows[:1920], batch_size, shuffle, collate_fn=collate),
        DataLoader(rows[1920:], batch_size, collate_fn=collate),
    )


def emulated(devices: int) -> EmulatedCluster:
    names, seconds = zip(*(DEVICES[rank % len(DEVICES)] for rank in range(devices)), strict=True)
    return EmulatedCluster(seconds_per_sample=seconds, overhead=0.002, names=names)


def count(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text}")
    return int(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=count, default=3)
    parser.add_argument("--strategy", default="boa")
    parser.add_argument("--accelerator", default="cpu", help="cpu emulates devices of three speeds")
    parser.add_argument("--epochs", type=count, default=3)
    parser.add_argument("--check", action="store_true", help="train on one device too, and compare")
    arguments = parser.parse_args()

    callbacks = [emulated(arguments.devices)] if arguments.accelerator == "cpu" else []
    options = {
        "accelerator": arguments.accelerator,
        "max_epochs": arguments.epochs,
        "log_every_n_steps": 10,
        "precision": "64-true" if arguments.check else "32-true",
    }

    L.seed_everything(1)
    model = LanguageModel(plain_sgd=arguments.check)
    try:
        trainer = L.Trainer(
            devices=arguments.devices, strategy=arguments.strategy, callbacks=callbacks, **options
        )
    except (ImportError, TypeError, ValueError, MisconfigurationException) as error:
        parser.error(" ".join(str(error).split()))
    trainer.fit(model, *loaders(BATCH_SIZE, shuffle=not arguments.check))
    if not trainer.is_global_zero:
        return
    if isinstance(trainer.strategy, BoaStrategy):
        print(f"rows per device: {trainer.strategy.plan.batch_sizes}")
    print(f"validation loss: {trainer.callback_metrics['val_loss']:.3f} per character")

    if arguments.check:
        L.seed_everything(1)
        alone = LanguageModel(plain_sgd=True)
        one_device = L.Trainer(devices=1, strategy="auto", limit_val_batches=0, **options)
        one_device.fit(alone, *loaders(BATCH_SIZE * arguments.devices, shuffle=False))
        print(f"largest difference to one device: {largest_difference(model, alone):.1e}")


def largest_difference(model: nn.Module, other: nn.Module) -> float:
    """Relative to the largest weight."""
    weights = parameters_to_vector(other.parameters()).detach().cpu()
    ours = parameters_to_vector(model.parameters()).detach().cpu()
    return float((ours - weights).abs().max() / weights.abs().max())


if __name__ == "__main__":
    main()
