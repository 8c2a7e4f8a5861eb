"""Learning rates that follow the global batch, and the optimizers that are made for large ones."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from torch.optim import SGD

import lightning_boa.cli
from lightning_boa.cli.convnet import ConvNet
from lightning_boa.cli.mistakes import mistake_in
from lightning_boa.cli.optimization import (
    BatchScaling,
    rows_of_update,
    scaled_learning_rate,
    updates_of_epoch,
)
from lightning_boa.errors import OptionError

from .conftest import BoaTrain

QUICK_PAIR = (
    "cluster.devices=[{name: a, seconds_per_sample: 0.0001}, {name: b, seconds_per_sample: 0.0003}]",
    "trainer.devices=2",
    "trainer.max_epochs=1",
    "data.batch_size=32",
)


@pytest.fixture
def conf() -> Iterator[None]:
    GlobalHydra.instance().clear()
    with initialize_config_module("lightning_boa.conf.train", version_base="1.3"):
        yield


def trainer_with(rows: int | None = None, **facts: Any) -> Any:
    known = {} if rows is None else {"global_batch_size": rows}
    usual: dict[str, Any] = {
        "fit_loop": SimpleNamespace(setup_data=lambda: None),
        "strategy": SimpleNamespace(**known),
        "train_dataloader": SimpleNamespace(batch_size=16),
        "world_size": 3,
        "accumulate_grad_batches": 1,
        "num_training_batches": 3,
    }
    return SimpleNamespace(**{**usual, **facts})


def optimizer_with(*rates: float) -> SGD:
    return SGD([{"params": [torch.nn.Parameter(torch.ones(1))], "lr": rate} for rate in rates])


def rates_of(optimizer: torch.optim.Optimizer) -> list[float]:
    return [group["lr"] for group in optimizer.param_groups]


@pytest.mark.parametrize(
    ("rule", "rows", "rate"),
    [
        ("linear", 256, 0.4),
        ("square_root", 256, 0.2),
        ("none", 256, 0.1),
        ("linear", 16, 0.025),
        ("square_root", 16, 0.05),
    ],
)
def test_the_rules(rule: str, rows: int, rate: float) -> None:
    assert scaled_learning_rate(0.1, rows, 64, rule) == pytest.approx(rate)


def test_without_a_rule_nothing_is_touched_or_asked() -> None:
    optimizer = optimizer_with(0.1)
    assert BatchScaling().configure(optimizer, None) is optimizer  # type: ignore[arg-type]
    assert rates_of(optimizer) == [0.1]


def test_the_rate_of_each_group_is_scaled() -> None:
    optimizer = optimizer_with(0.1, 0.3)
    assert BatchScaling("linear", 64).configure(optimizer, trainer_with(256)) is optimizer
    assert rates_of(optimizer) == pytest.approx([0.4, 1.2])


def test_the_warm_up_grows_in_equal_steps_and_ends_at_the_scaled_rate() -> None:
    optimizer = optimizer_with(0.1)
    made: Any = BatchScaling("linear", 64, warmup_epochs=2).configure(optimizer, trainer_with(256))
    assert made["optimizer"] is optimizer
    assert made["lr_scheduler"]["interval"] == "step"
    rates = []
    for _ in range(8):
        rates += rates_of(optimizer)
        optimizer.step()
        made["lr_scheduler"]["scheduler"].step()
    assert rates == pytest.approx([0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.4])


def test_a_rate_that_does_not_grow_needs_no_warm_up() -> None:
    optimizer = optimizer_with(0.1)
    scaling = BatchScaling("linear", 64, warmup_epochs=2)
    assert scaling.configure(optimizer, trainer_with(16)) is optimizer
    assert rates_of(optimizer) == pytest.approx([0.025])


def test_rows_and_updates_count_the_accumulated_batches() -> None:
    assert rows_of_update(trainer_with(20)) == 20
    assert rows_of_update(trainer_with(20, accumulate_grad_batches=4)) == 80
    assert rows_of_update(trainer_with()) == 16 * 3
    assert updates_of_epoch(trainer_with(num_training_batches=7)) == 7
    assert updates_of_epoch(trainer_with(num_training_batches=7, accumulate_grad_batches=4)) == 2


@pytest.mark.parametrize(
    "arguments", [{"rule": "cubic"}, {"base_batch_size": 0}, {"warmup_epochs": -1}]
)
def test_settings_are_checked(arguments: dict[str, Any]) -> None:
    (name,) = arguments
    with pytest.raises(OptionError, match=rf"^scaling\.{name}: "):
        BatchScaling(**arguments)


def test_a_rate_of_nothing_is_refused() -> None:
    with pytest.raises(OptionError, match=r"^optimizer\.lr: expected a number above 0, got 0"):
        BatchScaling().configure(optimizer_with(0.0), trainer_with())


@pytest.mark.parametrize(
    "options", [{"lr": -1}, {"lr": 0.1, "momentum": "much"}, {"lr": 0.1, "speed": 2}]
)
def test_what_an_optimizer_refuses_is_a_mistake_of_the_user(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=r"^optimizer(\.lr)?: "):
        ConvNet(channels=1, optimizer=partial(SGD, **options))


@pytest.mark.usefixtures("conf")
def test_the_networks_own_optimizer_is_that_of_the_configuration() -> None:
    ours, configured = (
        network.make_optimizer(network.parameters())
        for network in (ConvNet(), instantiate(compose("train").model, _convert_="all"))
    )
    assert type(ours) is type(configured) is SGD
    assert ours.defaults == configured.defaults
    assert (ours.defaults["lr"], ours.defaults["momentum"]) == (0.1, 0.9)
    assert ours.defaults["nesterov"]


@pytest.mark.usefixtures("conf")
def test_the_package_that_brings_lars_and_lamb_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)
    monkeypatch.delitem(sys.modules, "lightning_boa.cli.layerwise_optimizers", raising=False)
    monkeypatch.delattr(lightning_boa.cli, "layerwise_optimizers", raising=False)
    with pytest.raises(InstantiationException) as caught:
        instantiate(compose("train", ["optimizer=lamb"]).optimizer, _convert_="all")
    assert mistake_in(caught.value) == (
        'optimizer: lars and lamb need pytorch_optimizer: pip install "lightning-boa[optimizers]".'
    )


def test_the_global_batch_that_is_asked_for_counts(boa_train: BoaTrain, tmp_path: Path) -> None:
    boa_train(
        *QUICK_PAIR,
        "strategy.global_batch_size=128",
        "optimizer=lamb",
        "optimizer.lr=0.01",
        "scaling=square_root",
        "scaling.base_batch_size=32",
        "scaling.warmup_epochs=0",
    )
    saved = _saved(tmp_path)
    assert saved["optimizer_states"][0]["param_groups"][0]["lr"] == pytest.approx(0.02)
    assert saved["lr_schedulers"] == []


def test_equal_shares_have_the_loaders_batch_on_each_rank(
    boa_train: BoaTrain, tmp_path: Path
) -> None:
    boa_train(
        *QUICK_PAIR,
        "strategy=ddp",
        "+trainer.accumulate_grad_batches=2",
        "scaling=linear",
        "scaling.base_batch_size=64",
        "scaling.warmup_epochs=1",
    )
    saved = _saved(tmp_path)
    (warmup,) = saved["lr_schedulers"]
    assert warmup["total_iters"] == 12
    assert warmup["start_factor"] == pytest.approx(0.5)
    assert saved["optimizer_states"][0]["param_groups"][0]["lr"] == pytest.approx(0.2)


def _saved(folder: Path) -> Any:
    (path,) = (folder / "checkpoints").glob("*.ckpt")
    return torch.load(path, weights_only=False)
