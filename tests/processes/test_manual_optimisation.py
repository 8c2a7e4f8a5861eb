"""Several optimizers under manual optimisation: exact, and refused where the strategy is passed over."""

from __future__ import annotations

from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from lightning_boa import BoaStrategy
from tests.processes.ranks import outcomes_of_ranks, run_ranks
from tests.processes.training import (
    FEATURES,
    Regression,
    Training,
    loaders,
    quiet,
    relative_error,
    train_alone,
    trainer_options,
)

PLAIN = Training(rows=67, global_batch_size=16, epochs=2, strategy={"batch_sizes": [11, 5]})
TRAININGS = {
    "fixed plan": PLAIN,
    "measured": Training(rows=200, global_batch_size=16, epochs=2),
    "accumulated by hand": Training(**{**vars(PLAIN), "trainer": {"max_epochs": 3}}),
}


class TwoOptimizers(Regression):
    """Two networks, each with its own loss and optimizer, trained in one step."""

    def __init__(self, window: int = 1, bypass: bool = False) -> None:
        super().__init__(schedules=False)
        self.automatic_optimization = False
        self.other = nn.Linear(FEATURES, 1).double()
        self.window = window
        self.bypass = bypass

    def training_step(self, batch: Any, batch_idx: int) -> None:
        share = getattr(self.trainer.strategy, "share", None)
        self.seen.append([] if share is not None and share.rows == 0 else batch[2].tolist())
        first, second = self.optimizers()
        self._descend(first, self.errors(batch).mean(), batch_idx)
        agreement = (self.other(batch[0]) - self.net(batch[0]).detach()).square().mean()
        self._descend(second, agreement, batch_idx)

    def _descend(self, optimizer: Any, loss: Tensor, batch_idx: int) -> None:
        self.toggle_optimizer(optimizer)
        if self.bypass:
            loss.backward()
        else:
            self.manual_backward(loss / self.window)
        if (batch_idx + 1) % self.window == 0:
            optimizer.step()
            optimizer.zero_grad()
        self.untoggle_optimizer(optimizer)

    def configure_optimizers(self) -> Any:
        return [
            torch.optim.SGD(part.parameters(), lr=0.05, momentum=0.9)
            for part in (self.net, self.other)
        ]


def fit(module: TwoOptimizers, training: Training, strategy: Any, devices: int, loader: Any) -> Any:
    quiet()
    pl.seed_everything(training.seed)
    options = trainer_options(training)
    trainer = pl.Trainer(strategy=strategy, devices=devices, **options)
    trainer.fit(module, loader)
    return [parameter.detach().clone() for parameter in module.parameters()]


def window_of(name: str) -> int:
    return 2 if name == "accumulated by hand" else 1


def fit_on_ranks(rank: int, ranks: int) -> dict[str, Any]:
    weights = {}
    for name, training in TRAININGS.items():
        strategy = BoaStrategy(
            global_batch_size=16, find_unused_parameters=True, **training.strategy
        )
        module = TwoOptimizers(window_of(name))
        weights[name] = fit(module, training, strategy, ranks, loaders(training, 3)[0])
    return weights


@pytest.fixture(scope="module")
def together() -> list[dict[str, Any]]:
    return run_ranks(fit_on_ranks, 2, 2)


@pytest.mark.parametrize("name", TRAININGS)
def test_equals_a_single_device(together: Any, name: str) -> None:
    alone = train_alone(TRAININGS[name], TwoOptimizers(window_of(name)))
    for weights in together:
        assert relative_error(weights[name], alone.weights) < 1e-10


def pass_the_strategy_over(rank: int) -> None:
    module = TwoOptimizers(bypass=True)
    fit(module, PLAIN, BoaStrategy(batch_sizes=[11, 5]), 2, loaders(PLAIN, 8)[0])


def test_a_backward_that_passes_the_strategy_over_is_refused() -> None:
    for kind, message in outcomes_of_ranks(pass_the_strategy_over, 2, timeout=60):
        assert kind == "error"
        assert "UnsupportedError: Expected self.manual_backward(loss)" in message
