"""A rank without rows changes nothing: not even where its own loss, buffers, random draws or metrics would."""

from __future__ import annotations

from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from lightning_boa import BoaStrategy
from tests.processes.ranks import run_ranks
from tests.processes.training import (
    FEATURES,
    Regression,
    Training,
    loaders,
    quiet,
    relative_error,
    trainer_options,
)

TRAINING = Training(rows=68, global_batch_size=16, epochs=2)


class Haunted(Regression):
    """Has all that a step can leave behind; on a rank without rows its loss is no number."""

    def __init__(self) -> None:
        super().__init__(schedules=False)
        self.norm = nn.BatchNorm1d(FEATURES).double()
        self.register_buffer("calls", torch.zeros(1))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        features, targets, _ = batch
        self.calls = self.calls + 1
        noise = torch.randn(1)
        self.log("drawn", noise, reduce_fx="max", sync_dist=True)
        self.log("one", 1.0, on_step=True, on_epoch=True, sync_dist=True)
        loss = (self.net(self.norm(features)) - targets).square().mean()
        share = self.trainer.strategy.share
        return loss * float("nan") if share.rows == 0 else loss


class DrawnInStep(pl.Callback):
    """Whether each step has drawn from torch's generator."""

    def __init__(self) -> None:
        self.before = torch.empty(0)
        self.drawn: list[bool] = []

    def on_train_batch_start(self, *arguments: Any) -> None:
        self.before = torch.get_rng_state()

    def on_train_batch_end(self, *arguments: Any) -> None:
        self.drawn.append(not torch.equal(self.before, torch.get_rng_state()))


def train(rank: int, shares: list[int], options: dict[str, Any]) -> dict[str, Any]:
    quiet()
    pl.seed_everything(1)
    module = Haunted()
    strategy = BoaStrategy(batch_sizes=shares, global_batch_size=16, **options)
    drawn = DrawnInStep()
    options = {**trainer_options(TRAINING), "callbacks": [drawn]}
    trainer = pl.Trainer(strategy=strategy, devices=len(shares), **options)
    trainer.fit(module, loaders(TRAINING, 1)[0])
    return {
        "weights": [parameter.detach().clone() for parameter in module.parameters()],
        "calls": float(module.calls),
        "drawn": drawn.drawn,
        "one": float(trainer.callback_metrics["one_epoch"]),
        "largest": float(trainer.callback_metrics["drawn"]),
    }


@pytest.mark.parametrize("options", [{}, {"find_unused_parameters": True}], ids=["", "unused"])
def test_a_rank_without_rows_changes_nothing(options: dict[str, Any]) -> None:
    with_ghost = run_ranks(train, 3, [9, 0, 7], options)
    without = run_ranks(train, 2, [9, 7], options)
    for found in with_ghost:
        assert relative_error(found["weights"], without[0]["weights"]) < 1e-12
        assert found["one"] == 1.0
        assert found["largest"] == without[0]["largest"]
    ran, never_ran = with_ghost[:2]
    assert ran["drawn"] == [True] * 10
    assert never_ran["drawn"] == [False] * 10
    assert never_ran["calls"] == 0.0
