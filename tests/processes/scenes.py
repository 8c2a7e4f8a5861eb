"""Scenes: one training each, under boa on unequal shares and on a single device with the same global batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytorch_lightning as pl
from torch import Tensor
from torch.utils.data import DataLoader

from lightning_boa import BoaStrategy
from tests.processes.training import (
    GlobalBatches,
    NumberedRows,
    Regression,
    Training,
    loaders,
    logged_values,
    quiet,
    trainer_options,
    with_options,
)

SHARES = {2: [5, 3], 3: [5, 0, 4]}
TRAINING = Training(rows=37, epochs=2, schedules=False)


def plain() -> Regression:
    return Regression(schedules=False)


def unchanged(module: pl.LightningModule) -> Any:
    return module


@dataclass(frozen=True)
class Scene:
    """What is trained, and how; whatever a trainer may change is made anew for each training.

    With 2 ranks the last step of an epoch has 5 rows, with 3 ranks a single one, and the second rank never has any.
    """

    module: Callable[[], Regression] = plain
    training: Training = TRAINING
    options: Callable[[], dict[str, Any]] = dict
    strategy: Mapping[str, Any] = field(default_factory=dict)
    strategy_class: type[BoaStrategy] = BoaStrategy
    prepare: Callable[[pl.LightningModule], Any] = unchanged
    tolerance: float = 1e-10


@dataclass(frozen=True)
class Played:
    """What is known after a training: `kept` is whatever the module has kept, `error` why it has not ended."""

    weights: list[Tensor] = field(default_factory=list)
    seen: list[list[int]] = field(default_factory=list)
    steps: int = 0
    epochs: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    last_lr: float = 0.0
    kept: Any = None
    error: str = ""


def play_on_ranks(scene: Scene, ranks: int) -> Played:
    """The scene under boa with the shares of so many ranks; called on each of them."""
    training = _of_ranks(scene, ranks)
    shares: Sequence[int] = SHARES[ranks]
    rows = {"batch_sizes": shares, "global_batch_size": training.global_batch_size}
    strategy = scene.strategy_class(**{**rows, **scene.strategy})
    made = loaders(training, training.global_batch_size // ranks)
    return _play(scene, training, made, strategy=strategy, devices=ranks)


def play_alone(scene: Scene, ranks: int) -> Played:
    """The scene on a single device, with the global batches that so many ranks have."""
    training = _of_ranks(scene, ranks)
    _, *validation = loaders(training, training.global_batch_size)
    batches = DataLoader(NumberedRows(training.rows), batch_sampler=GlobalBatches(training))
    return _play(scene, training, [batches, *validation], devices=1)


def play_all(rank: int, ranks: int, scenes: Mapping[str, Scene]) -> dict[str, Played]:
    """Every scene under boa."""
    return {name: play_on_ranks(scene, ranks) for name, scene in scenes.items()}


def _of_ranks(scene: Scene, ranks: int) -> Training:
    return with_options(scene.training, global_batch_size=sum(SHARES[ranks]))


def _play(scene: Scene, training: Training, made: list[Any], **options: Any) -> Played:
    quiet()
    pl.seed_everything(training.seed)
    module = scene.module()
    try:
        trainer = pl.Trainer(**{**trainer_options(training), **scene.options()}, **options)
        trainer.fit(scene.prepare(module), *made)
    except Exception as error:
        return Played(error=f"{type(error).__name__}: {error}")
    return Played(
        weights=[parameter.detach().clone() for parameter in module.parameters()],
        seen=module.seen,
        steps=trainer.global_step,
        epochs=trainer.current_epoch,
        metrics=logged_values(trainer),
        last_lr=trainer.optimizers[0].param_groups[0]["lr"],
        kept=getattr(module, "kept", None),
    )
