"""Trainings in which ranks may not differ in their forwards."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn
from torch.optim import LBFGS, SGD

from lightning_boa.strategies.abilities import why_not_divided


def training(*layers: nn.Module, automatic: bool = True, **options: bool) -> Any:
    module: Any = nn.Sequential(nn.Linear(2, 2), *layers)
    module.automatic_optimization = automatic
    return SimpleNamespace(module=module, find_unused_parameters=False, **options)


def reason(ddp: Any, optimizer: type[Any] = SGD, rule: Any = "samples") -> str | None:
    return why_not_divided(ddp, [optimizer(ddp.module.parameters(), lr=0.1)], rule)


@pytest.mark.parametrize("rule", ["samples", "sum", len])
def test_usual_trainings_can_be_divided(rule: Callable[[Any], Any] | str) -> None:
    layers = nn.BatchNorm1d(2), nn.Embedding(3, 2), nn.EmbeddingBag(3, 2)
    assert reason(training(*layers, static_graph=False), rule=rule) is None


@pytest.mark.parametrize(
    ("why", "says"),
    [
        (reason(training(automatic=False)), "manual optimisation"),
        (reason(training(nn.Sequential(nn.SyncBatchNorm(2)))), "SyncBatchNorm"),
        (reason(training(nn.Embedding(3, 2, sparse=True))), "sparse"),
        (reason(training(nn.EmbeddingBag(3, 2, sparse=True))), "sparse"),
        (reason(training(), LBFGS), "LBFGS"),
        (reason(training(static_graph=True)), "static_graph counts"),
        (reason(training(), rule="none"), 'batch_weight="none"'),
    ],
)
def test_what_cannot_be_divided_says_why(why: str | None, says: str) -> None:
    assert why is not None
    assert says in why


def test_unused_parameters_count_forwards() -> None:
    ddp = training()
    ddp.find_unused_parameters = True
    assert "find_unused_parameters counts" in str(reason(ddp))
