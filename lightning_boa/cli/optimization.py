"""The learning rate where the global batch is larger than the one it was chosen for: scaled, and reached gradually."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LinearLR

from lightning_boa.cli.framework import Trainer
from lightning_boa.cli.options import number, one_of, whole_number
from lightning_boa.errors import OptionError

if TYPE_CHECKING:
    from pytorch_lightning.utilities.types import OptimizerLRScheduler

RULES = ("none", "linear", "square_root")


class BatchScaling:
    """Learning rates that follow the rows behind one update of the weights.

    Args:
        rule: "linear", k times the rate for k times the rows; "square_root", the square root of k times; "none".
        base_batch_size: the rows for which the optimizer's rate was chosen.
        warmup_epochs: epochs in which the rate grows in equal steps, one after each update, from the optimizer's own to
            the scaled one (the gradual warm-up of Goyal et al., 2017). Without effect where the scaled rate is not the
            larger one.

    Raises:
        OptionError: an unknown rule, or numbers out of range.
    """

    def __init__(
        self, rule: str = "none", base_batch_size: int = 1, warmup_epochs: int = 0
    ) -> None:
        self.rule = one_of("scaling.rule", rule, RULES)
        self.base_batch_size = whole_number("scaling.base_batch_size", base_batch_size, least=1)
        self.warmup_epochs = whole_number("scaling.warmup_epochs", warmup_epochs, least=0)

    def configure(self, optimizer: Optimizer, trainer: Trainer) -> OptimizerLRScheduler:
        """What a module's `configure_optimizers` returns: the optimizer at its scaled rates, with the warm-up."""
        rates = [number("optimizer.lr", group["lr"], above=0) for group in optimizer.param_groups]
        if self.rule == "none":
            return optimizer
        rows = rows_of_update(trainer)
        growth = scaled_learning_rate(1.0, rows, self.base_batch_size, self.rule)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = growth * rate
        updates = self.warmup_epochs * updates_of_epoch(trainer)
        if growth <= 1 or updates == 0:
            return optimizer
        warmup = LinearLR(optimizer, start_factor=1 / growth, total_iters=updates)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": warmup, "interval": "step"},
        }


def new_optimizer(
    make: Callable[[Iterator[nn.Parameter]], Optimizer], parameters: Iterator[nn.Parameter]
) -> Optimizer:
    """The optimizer that `make`, a partial of its class, makes of the parameters.

    Raises:
        OptionError: a learning rate that is no number above 0, or what the class itself refuses.
    """
    options = getattr(make, "keywords", {})
    if "lr" in options:
        number("optimizer.lr", options["lr"], above=0)
    try:
        return make(parameters)
    except Exception as error:
        given = ", ".join(f"{name}={value!r}" for name, value in options.items())
        raise OptionError(f"optimizer: {error}, with {given or 'its defaults'}.") from error


def scaled_learning_rate(rate: float, batch_size: int, base_batch_size: int, rule: str) -> float:
    """The rate for updates from `batch_size` rows, where `rate` is right for `base_batch_size` rows."""
    growth = batch_size / base_batch_size
    return {"none": 1.0, "linear": growth, "square_root": math.sqrt(growth)}[rule] * rate


def rows_of_update(trainer: Trainer) -> int:
    """Rows behind one update of the weights: those of a step over all ranks, times the accumulated batches.

    Under "boa" a checkpoint's global batch comes first, then the option, then the loader's batch size times the ranks.
    """
    trainer.fit_loop.setup_data()
    strategy: Any = trainer.strategy
    rows = getattr(strategy, "global_batch_size", None)
    if rows is None:
        loader: Any = trainer.train_dataloader
        rows = loader.batch_size * trainer.world_size
    return int(rows) * trainer.accumulate_grad_batches


def updates_of_epoch(trainer: Trainer) -> int:
    """Updates of the weights in one epoch; an accumulation window that the epoch cuts short counts."""
    return math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches)
