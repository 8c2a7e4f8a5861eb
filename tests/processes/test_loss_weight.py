"""The weight of a step: what the loss is a mean over, said by an option or by the module itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

from lightning_boa import BoaStrategy
from tests.processes.ranks import run_ranks
from tests.processes.training import FEATURES, Training, quiet, relative_error, trainer_options

RANKS = 2
LENGTH = 5
CLASSES = 4
IGNORED = -100
CLASS_WEIGHTS = [0.5, 1.0, 2.0, 4.0]


class Sentences(Dataset[tuple[Tensor, Tensor]]):
    """Rows of a few tokens, of which some do not count; in the first `ignored` rows none does but one."""

    def __init__(self, ignored: int = 3, least: int = 1) -> None:
        generator = torch.Generator().manual_seed(2)
        shape = (32, LENGTH)
        self.tokens = torch.randn(*shape, FEATURES, generator=generator, dtype=torch.float64)
        self.labels = torch.randint(CLASSES, shape, generator=generator)
        self.labels[torch.rand(shape, generator=generator) < 0.4] = IGNORED
        self.labels[:ignored] = IGNORED
        self.labels[:least, 0] = 1

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return self.tokens[row], self.labels[row]


class Tagger(pl.LightningModule):
    """Names each token's class; its loss is a mean over the tokens that count."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.net = nn.Linear(FEATURES, CLASSES).double()
        self.class_weights: Tensor | None = None

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        tokens, labels = batch
        scores = self.net(tokens).flatten(0, 1)
        return cross_entropy(scores, labels.flatten(), weight=self.class_weights)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


class WeighsClasses(Tagger):
    def __init__(self) -> None:
        super().__init__()
        self.class_weights = torch.tensor(CLASS_WEIGHTS, dtype=torch.float64)

    def boa_batch_weight(self, batch: Any) -> Tensor:
        labels = batch[1]
        assert self.class_weights is not None
        return self.class_weights[labels[labels != IGNORED]].sum()


class Sums(Tagger):
    boa_batch_weight = "sum"

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        tokens, labels = batch
        return (
            cross_entropy(self.net(tokens).flatten(0, 1), labels.flatten(), reduction="sum") / 100
        )


class MeansByDivision(Tagger):
    """A mean over nothing is not a number here, and neither are its gradients."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        tokens, labels = batch
        counts = (labels != IGNORED).flatten()
        losses = cross_entropy(self.net(tokens).flatten(0, 1), labels.flatten(), reduction="none")
        return (losses * counts).sum() / counts.sum()


class ByHand(Tagger):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(super().training_step(batch, batch_idx))
        optimizer.step()


class Misdeclares(Tagger):
    boa_batch_weight = "tokens"


def counted_tokens(batch: Any) -> int:
    return int((batch[1] != IGNORED).sum())


def train(
    strategy: BoaStrategy | None,
    module: Tagger,
    data: Dataset[Any] | None = None,
    **options: Any,
) -> list[Tensor]:
    quiet()
    pl.seed_everything(3)
    chosen = {**trainer_options(Training(epochs=2)), **options}
    batch_size, devices = (8, 1) if strategy is None else (4, RANKS)
    trainer = pl.Trainer(strategy=strategy or "auto", devices=devices, **chosen)
    trainer.fit(module, DataLoader(data or Sentences(), batch_size=batch_size))
    return [parameter.detach().clone() for parameter in module.parameters()]


def shares(**options: Any) -> BoaStrategy:
    return BoaStrategy(batch_sizes=[3, 5], **options)


SCENES: dict[str, tuple[Callable[[], Tagger], dict[str, Any], dict[str, Any]]] = {
    "tokens that count": (Tagger, {"batch_weight": counted_tokens}, {}),
    "the module weighs classes": (WeighsClasses, {}, {}),
    "the module says sum": (Sums, {}, {}),
    "the option comes before the module": (Sums, {"batch_weight": "sum"}, {}),
    "a rank where nothing counts": (
        MeansByDivision,
        {"batch_weight": counted_tokens},
        {"data": Sentences(least=0)},
    ),
    "manual optimisation": (ByHand, {"batch_weight": counted_tokens}, {}),
    "accumulation": (
        Tagger,
        {"batch_weight": counted_tokens},
        {"accumulate_grad_batches": 3},
    ),
    "clipping": (Tagger, {"batch_weight": counted_tokens}, {"gradient_clip_val": 0.05}),
}


def play(rank: int) -> dict[str, Any]:
    weights: dict[str, Any] = {
        name: train(shares(**strategy), module(), **options)
        for name, (module, strategy, options) in SCENES.items()
    }
    weights["unweighted"] = train(shares(), Tagger())
    for name, module, strategy in (
        ("misdeclared", Misdeclares(), shares()),
        ("negative", Tagger(), shares(batch_weight=lambda batch: -1.0)),
        ("truth", Tagger(), shares(batch_weight=lambda batch: (batch[1] >= 0).any())),
        ("several", Tagger(), shares(batch_weight=lambda batch: batch[1])),
        ("nothing", Tagger(), shares(batch_weight=lambda batch: None)),
    ):
        try:
            train(strategy, module)
        except Exception as error:
            weights[name] = f"{type(error).__name__}: {error}"
    return weights


@pytest.fixture(scope="module")
def played() -> list[dict[str, Any]]:
    return run_ranks(play, RANKS)


@pytest.mark.parametrize("name", SCENES)
def test_weights_equal_those_of_a_single_device(played: Any, name: str) -> None:
    module, _, options = SCENES[name]
    expected = train(None, module(), **options)
    for found in played:
        assert relative_error(found[name], expected) < 1e-10


def test_a_mean_over_tokens_weighted_by_rows_would_be_wrong(played: Any) -> None:
    assert relative_error(played[0]["unweighted"], train(None, Tagger())) > 1e-3


def test_senseless_weights_are_refused(played: Any) -> None:
    for found in played:
        assert found["misdeclared"].startswith(
            "OptionError: boa_batch_weight: expected Misdeclares"
        )
        assert "got -1.0" in found["negative"]
        for name in ("truth", "several", "nothing"):
            assert found[name].startswith("OptionError: batch_weight: expected a finite number")
