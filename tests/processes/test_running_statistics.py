"""BatchNorm's running statistics: after every step, on every rank, those of a process that treats each share apart."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import default_collate

from lightning_boa import BoaStrategy
from tests.processes.ranks import run_ranks
from tests.processes.training import (
    GlobalBatches,
    NumberedRows,
    Training,
    loaders,
    quiet,
    relative_error,
    trainer_options,
)

TOLERANCE = 1e-10
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


class Normed(pl.LightningModule):
    """A small network with every kind of BatchNorm that keeps statistics, one of them frozen."""

    def __init__(self, manual: bool = False) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.rows = nn.BatchNorm1d(2)
        self.convolution = nn.Conv2d(1, 2, (1, 2))
        self.image = nn.BatchNorm2d(2, momentum=None)
        self.twice = nn.BatchNorm1d(2, momentum=0.3)
        self.frozen = nn.BatchNorm1d(2).eval()
        self.frozen.running_mean.fill_(1 / 3)
        self.head = nn.Linear(8, 1)
        self.double()
        self.automatic_optimization = not manual
        self.shares: list[int] = []
        self.kept: list[dict[str, Tensor]] = []
        self.validated: list[dict[str, Tensor]] = []
        self.saves_as: str | None = None

    def train(self, mode: bool = True) -> Normed:
        super().train(mode)
        self.frozen.eval()
        return self

    def forward(self, features: Tensor) -> Tensor:
        pairs = self.frozen(self.rows(features.view(-1, 2, 3)))
        images = self.image(self.convolution(pairs.unsqueeze(1)))
        shifted = self.twice(images.flatten(2)) + self.twice(images.flatten(2) + 1.0)
        output: Tensor = self.head(shifted.flatten(1))
        return output

    def loss_of(self, batch: Any) -> Tensor:
        features, targets, _ = batch
        return (self(features) - targets).square().mean()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        if self.automatic_optimization:
            return self.loss_of(batch)
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.loss_of(batch))
        optimizer.step()
        return None

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.shares.append(self.trainer.strategy.share.rows)
        self.kept.append(statistics_of(self))
        if self.saves_as is not None and len(self.kept) == 3:
            self.trainer.save_checkpoint(self.saves_as)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.validated.append(statistics_of(self))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


@dataclass(frozen=True)
class Found:
    """What a rank knows after training."""

    weights: list[Tensor]
    shares: list[int]
    kept: list[dict[str, Tensor]]
    validated: list[dict[str, Tensor]] = field(default_factory=list)
    saved: dict[str, Tensor] = field(default_factory=dict)


def statistics_of(module: nn.Module) -> dict[str, Tensor]:
    return {
        name: buffer.detach().clone()
        for name, buffer in module.named_buffers()
        if name.endswith(STATISTICS)
    }


def scene(shares: list[int], rows: int = 26, **options: Any) -> Training:
    return Training(
        rows=rows,
        global_batch_size=sum(shares),
        epochs=2,
        strategy={"batch_sizes": shares},
        schedules=False,
        **options,
    )


TWO_RANKS = {
    "five and one": scene([5, 1]),
    "accumulation": scene([4, 2], trainer={"accumulate_grad_batches": 2}),
    "validation": scene([4, 2], validation_rows=5),
    "a rank that never has rows": scene([6, 0]),
}
THREE_RANKS = {
    "last batch of one row": scene([3, 2, 1], rows=13),
    "last batch of four rows": scene([3, 2, 1], rows=16),
    "accumulation with a last batch of one row": scene(
        [1, 2, 3], rows=13, trainer={"accumulate_grad_batches": 2}
    ),
}
MANUAL = scene([5, 1])


def train(
    rank: int, ranks: int, training: Training, kind: type[Normed] = Normed, **arguments: Any
) -> Found:
    quiet()
    pl.seed_everything(training.seed)
    module = kind(**arguments)
    module.saves_as = "kept.ckpt"
    trainer = pl.Trainer(
        strategy=BoaStrategy(**training.strategy), devices=ranks, **trainer_options(training)
    )
    trainer.fit(module, *loaders(training, batch_size=training.global_batch_size // ranks))
    saved = torch.load("kept.ckpt", weights_only=True)["state_dict"]
    kept = {name: value for name, value in saved.items() if name.endswith(STATISTICS)}
    weights = [parameter.detach().clone() for parameter in module.parameters()]
    return Found(weights, module.shares, module.kept, module.validated, kept)


def train_apart(training: Training, splits: list[tuple[int, ...]]) -> Found:
    """One process that runs each share from the same statistics and combines them by rows."""
    module, data, batches = Normed(), NumberedRows(training.rows), GlobalBatches(training)
    module.train()
    optimizer = module.configure_optimizers()
    window = int(training.trainer.get("accumulate_grad_batches", 1))
    kept: list[dict[str, Tensor]] = []
    for _ in range(training.epochs):
        for step, rows in enumerate(batches, start=1):
            run_shares(module, data, rows, splits[len(kept)], window)
            if step % window == 0 or step == len(batches):
                optimizer.step()
                optimizer.zero_grad()
            kept.append(statistics_of(module))
    weights = [parameter.detach().clone() for parameter in module.parameters()]
    return Found(weights, [], kept)


def run_shares(
    module: Normed, data: NumberedRows, rows: list[int], split: tuple[int, ...], window: int
) -> None:
    before = statistics_of(module)
    combined = {name: torch.zeros_like(value) for name, value in before.items()}
    first = 0
    for share in filter(None, split):
        module.load_state_dict(before, strict=False)
        batch = default_collate([data[row] for row in rows[first : first + share]])
        (module.loss_of(batch) * (share / len(rows) / window)).backward()
        after = statistics_of(module)
        for name in combined:
            if name.endswith("num_batches_tracked"):
                combined[name] = after[name]
            else:
                combined[name] += after[name] * (share / len(rows))
        first += share
    module.load_state_dict(combined, strict=False)


def train_all(rank: int, ranks: int, trainings: dict[str, Training]) -> dict[str, Any]:
    found: dict[str, Any] = {name: train(rank, ranks, each) for name, each in trainings.items()}
    if ranks == 2:
        found["manual"] = train(rank, ranks, MANUAL, manual=True)
        for kind in RUN_AGAIN:
            found[kind.__name__] = train(rank, ranks, scene([5, 1]), kind)
        found["kept by each rank"] = kept_by_each_rank(rank)
        found["buffers of the user"] = buffers_of_the_user(rank)
    return found


def kept_by_each_rank(rank: int) -> Tensor:
    options = {"batch_sizes": [5, 1], "broadcast_buffers": False}
    found = train(rank, 2, Training(rows=26, global_batch_size=6, strategy=options))
    return found.kept[-1]["rows.running_mean"]


class SeveralClosures(Normed):
    """An optimizer that runs each step several times."""

    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters(), lr=0.01, max_iter=3)


class Recomputed(Normed):
    """Runs its layers again in backward."""

    def forward(self, features: Tensor) -> Tensor:
        output: Tensor = checkpoint(super().forward, features, use_reentrant=False)
        return output


class WithBuffer(Normed):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows_seen", torch.zeros(1))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        self.seen_before = self.rows_seen.clone()
        self.rows_seen += len(batch[0])
        return super().training_step(batch, batch_idx)


def buffers_of_the_user(rank: int) -> float:
    """What each rank sees in its last step of a buffer that is no statistic."""
    module = WithBuffer()
    training = scene([5, 1], rows=18)
    trainer = pl.Trainer(
        strategy=BoaStrategy(**training.strategy), devices=2, **trainer_options(training)
    )
    trainer.fit(module, *loaders(training, batch_size=3))
    return float(module.seen_before)


RUN_AGAIN = (SeveralClosures, Recomputed)


@pytest.fixture(scope="module")
def two() -> list[dict[str, Any]]:
    return run_ranks(train_all, 2, 2, TWO_RANKS)


@pytest.fixture(scope="module")
def three() -> list[dict[str, Any]]:
    return run_ranks(train_all, 3, 3, THREE_RANKS)


def check(training: Training, together: list[Found]) -> None:
    alone = train_apart(training, list(zip(*(found.shares for found in together), strict=True)))
    for found in together:
        assert relative_error(found.weights, alone.weights) < TOLERANCE
        assert len(found.kept) == len(alone.kept)
        for ours, theirs, first in zip(found.kept, alone.kept, together[0].kept, strict=True):
            assert ours.keys() == theirs.keys()
            for name, value in theirs.items():
                assert torch.equal(ours[name], first[name]), name
                torch.testing.assert_close(ours[name], value, rtol=TOLERANCE, atol=TOLERANCE)
    start = statistics_of(Normed())
    assert torch.equal(together[0].kept[-1]["frozen.running_mean"], start["frozen.running_mean"])
    for name, value in together[0].saved.items():
        assert torch.equal(value, together[0].kept[2][name])


@pytest.mark.parametrize("name", TWO_RANKS)
def test_two_ranks_keep_the_statistics_of_all_rows(two: Any, name: str) -> None:
    check(TWO_RANKS[name], [found[name] for found in two])


@pytest.mark.parametrize("name", THREE_RANKS)
def test_three_ranks_keep_the_statistics_of_all_rows(three: Any, name: str) -> None:
    check(THREE_RANKS[name], [found[name] for found in three])


def test_manual_optimisation_keeps_them_too(two: Any) -> None:
    check(MANUAL, [found["manual"] for found in two])


@pytest.mark.parametrize("kind", RUN_AGAIN)
def test_ranks_agree_where_layers_run_again(two: Any, kind: type[Normed]) -> None:
    one, other = (found[kind.__name__] for found in two)
    assert relative_error(one.weights, other.weights) < TOLERANCE
    for ours, theirs in zip(one.kept, other.kept, strict=True):
        for name, value in ours.items():
            assert torch.equal(value, theirs[name]), name
            assert value.isfinite().all()


def test_validation_uses_them_on_every_rank(two: Any) -> None:
    for found in two:
        scene = found["validation"]
        assert scene.validated
        for name, value in scene.validated[-1].items():
            assert torch.equal(value, scene.kept[-1][name])


def test_without_broadcast_each_rank_keeps_its_own(two: Any) -> None:
    first, second = (found["kept by each rank"] for found in two)
    assert not torch.allclose(first, second)


def test_other_buffers_are_those_of_rank_0(two: Any) -> None:
    """Two epochs of three steps with five rows on rank 0; the last one is not yet counted."""
    assert [found["buffers of the user"] for found in two] == [25.0, 25.0]
