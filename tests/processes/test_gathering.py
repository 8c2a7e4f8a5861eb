"""Losses over the rows of all ranks: as one process, whatever the shares."""

from __future__ import annotations

from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize
from torch.utils.data import DataLoader

from lightning_boa import BoaStrategy, gather_rows
from tests.processes.ranks import run_ranks
from tests.processes.training import (
    FEATURES,
    GlobalBatches,
    NumberedRows,
    Training,
    loaders,
    quiet,
    relative_error,
    trainer_options,
)

TOLERANCE = 1e-10
SAME_LOSS = Training(
    rows=37,
    global_batch_size=8,
    drop_last=True,
    strategy={"batch_sizes": [5, 3], "batch_weight": "none"},
)
OWN_ROWS = Training(rows=33, global_batch_size=8, strategy={"batch_sizes": [5, 3]})
ACCUMULATED = Training(
    rows=33,
    global_batch_size=8,
    strategy={"batch_sizes": [3, 5]},
    trainer={"accumulate_grad_batches": 2},
)


class Contrastive(pl.LightningModule):
    """Two views of each row, each of which is to find the other among those of the whole batch."""

    def __init__(self, same_loss: bool) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.view = nn.Linear(FEATURES, 4)
        self.other_view = nn.Linear(FEATURES, 4)
        self.after = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.double()
        self.same_loss = same_loss
        self.validated: list[list[int]] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        features, _, numbers = batch
        views = {"one": self.view(features).tanh(), "other": self.other_view(features)}
        gathered = gather_rows({**views, "numbers": numbers}, sync_grads=True)
        every = normalize(self.after(gathered["other"]), dim=1)
        if self.same_loss:
            own, targets = gathered["one"], torch.arange(len(every))
        else:
            own, first = views["one"], gathered["numbers"].tolist().index(int(numbers[0]))
            targets = torch.arange(first, first + len(own)).clamp(max=len(every) - 1)
        logits = normalize(own, dim=1) @ every.T * self.scale.exp()
        return cross_entropy(logits, targets)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.validated.append(gather_rows(batch[2]).tolist())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def fit(training: Training, data: list[DataLoader[Any]], **options: Any) -> Contrastive:
    quiet()
    pl.seed_everything(training.seed)
    module = Contrastive(same_loss=training.strategy.get("batch_weight") == "none")
    pl.Trainer(**options, **trainer_options(training)).fit(module, *data)
    return module


def fit_on_ranks(training: Training, ranks: int = 2) -> Contrastive:
    data = loaders(training, batch_size=4)
    return fit(training, data, strategy=BoaStrategy(**training.strategy), devices=ranks)


def weights_of(module: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in module.parameters()]


def rows_under_any_strategy(rank: int) -> list[int]:
    trainer = pl.Trainer(strategy="ddp", devices=2, **trainer_options(Training(epochs=1)))
    module = Gathers()
    trainer.fit(module, DataLoader(NumberedRows(2), batch_size=1))
    return module.gathered


class Gathers(Contrastive):
    """Each rank gathers as many rows as its number says, and one more."""

    def __init__(self) -> None:
        super().__init__(same_loss=True)
        self.gathered: list[int] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        rank = self.global_rank
        self.gathered = gather_rows(torch.arange(rank + 1) + 10 * rank).tolist()
        return super().training_step(batch, batch_idx)


def refused_without_rows(rank: int) -> str:
    """The same loss on every rank, in a step in which a rank has no rows."""
    training = Training(
        rows=9, shuffle=False, strategy={"batch_sizes": [5, 3], "batch_weight": "none"}
    )
    try:
        fit_on_ranks(training)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def of_two_kinds(rank: int) -> str:
    """Neither a hang nor an abort of the backend."""
    try:
        gather_rows(torch.zeros(3, 4 + rank))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def play(rank: int) -> dict[str, Any]:
    validated = fit_on_ranks(
        Training(rows=16, epochs=1, validation_rows=9, strategy={"batch_sizes": [5, 3]})
    ).validated
    return {
        "same loss": weights_of(fit_on_ranks(SAME_LOSS)),
        "own rows": weights_of(fit_on_ranks(OWN_ROWS)),
        "accumulated": weights_of(fit_on_ranks(ACCUMULATED)),
        "validated": validated,
        "under ddp": rows_under_any_strategy(rank),
        "of two kinds": of_two_kinds(rank),
        "refused": refused_without_rows(rank),
    }


@pytest.fixture(scope="module")
def played() -> list[dict[str, Any]]:
    return run_ranks(play, 2)


@pytest.mark.parametrize(
    ("name", "training"),
    [("same loss", SAME_LOSS), ("own rows", OWN_ROWS), ("accumulated", ACCUMULATED)],
)
def test_a_contrastive_loss_is_that_of_one_process(
    played: Any, name: str, training: Training
) -> None:
    data = DataLoader(NumberedRows(training.rows), batch_sampler=GlobalBatches(training))
    alone = weights_of(fit(training, [data], devices=1))
    for found in played:
        assert relative_error(found[name], alone) < TOLERANCE


def test_each_row_of_an_evaluation_is_gathered_once(played: Any) -> None:
    for found in played:
        rows = [row for step in found["validated"] for row in step]
        assert rows == list(range(9))


def test_rows_are_gathered_under_any_strategy(played: Any) -> None:
    assert [found["under ddp"] for found in played] == [[0, 10, 11]] * 2


def test_rows_of_two_kinds_are_refused_on_every_rank(played: Any) -> None:
    for found in played:
        assert found["of two kinds"].startswith("AgreementError: ")
        assert "((4,), 'float32', False)] on rank 0" in found["of two kinds"]
        assert "((5,), 'float32', False)] on rank 1" in found["of two kinds"]


def test_a_loss_that_every_rank_computes_needs_rows_on_every_rank(played: Any) -> None:
    for found in played:
        assert found["refused"].startswith("UnsupportedError: ")
        assert "drop_last=True" in found["refused"]
