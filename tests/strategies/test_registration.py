"""strategy="boa" is known to every Lightning, whichever is imported first, and nothing heavy is imported for it."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from typing import Any

import pytest

from tests.strategies.trainers import quiet_trainer

PACKAGES = ["pytorch_lightning", "lightning.pytorch"]
OURS = {
    "pytorch_lightning": "lightning_boa.for_pytorch_lightning",
    "lightning.pytorch": "lightning_boa.for_lightning",
}
BOTH_ORDERS = """
import importlib, json, sys
first, second = sys.argv[1:]
importlib.import_module(first)
import lightning_boa
chosen = lightning_boa.BoaStrategy.__module__
importlib.import_module(second)
kinds = {}
for package in (first, second):
    registry = sys.modules[package].strategies.StrategyRegistry
    kinds[package] = type(registry.get("boa")).__module__
kept = lightning_boa.BoaStrategy.__module__
print(json.dumps({"chosen": chosen, "kept": kept, "kinds": kinds}))
"""
ALONE = """
import json, sys
import lightning_boa
print(json.dumps(sorted(name.partition(".")[0] for name in sys.modules)))
"""
PLANS_ALONE = """
import json, sys
from lightning_boa import LinearTime, plan_batches
plan = plan_batches([LinearTime(0.0, 1.0), LinearTime(0.0, 3.0)], 8)
print(json.dumps([list(plan.batch_sizes), "torch" in sys.modules]))
"""


def in_a_fresh_python(script: str, *arguments: str) -> Any:
    finished = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout.splitlines()[-1])


def test_importing_boa_imports_no_framework() -> None:
    imported = set(in_a_fresh_python(ALONE))

    assert "lightning_boa" in imported
    heavy = {
        "torch",
        "torchmetrics",
        "pytorch_lightning",
        "lightning",
        "lightning_fabric",
        "hydra",
        "omegaconf",
        "rich",
        "scipy",
        "sklearn",
        "matplotlib",
    }
    assert not imported & heavy


def test_plans_can_be_made_without_torch() -> None:
    assert in_a_fresh_python(PLANS_ALONE) == [[6, 2], False]


@pytest.mark.parametrize(("first", "second"), [PACKAGES, PACKAGES[::-1]])
def test_lightning_may_be_imported_before_or_after_boa(first: str, second: str) -> None:
    pytest.importorskip(first)
    pytest.importorskip(second)

    assert in_a_fresh_python(BOTH_ORDERS, first, second) == {
        "chosen": OURS[first],
        "kept": OURS[first],
        "kinds": OURS,
    }


@pytest.fixture(params=PACKAGES)
def package(request: pytest.FixtureRequest) -> Any:
    pytest.importorskip(request.param)
    importlib.import_module("lightning_boa")
    return importlib.import_module(request.param)


def test_every_variant_of_ddp_has_one_of_boa(package: Any) -> None:
    registry = package.strategies.StrategyRegistry
    of_ddp = {
        name: registry[name]["init_params"] for name in registry if name.partition("_")[0] == "ddp"
    }
    of_boa = {
        name: registry[name]["init_params"] for name in registry if name.partition("_")[0] == "boa"
    }

    assert len(of_boa) == 12
    assert of_boa == {name.replace("ddp", "boa"): options for name, options in of_ddp.items()}


def test_a_registered_name_makes_our_strategy_with_ddps_options(package: Any) -> None:
    ours = importlib.import_module(OURS[package.__name__])
    registry = package.strategies.StrategyRegistry
    for name in (each for each in registry if each.startswith("boa")):
        assert type(registry.get(name)) is ours.BoaStrategy


def test_the_trainer_knows_the_name(package: Any) -> None:
    ours = importlib.import_module(OURS[package.__name__])
    trainer = quiet_trainer(package, strategy="boa", devices=2)

    assert type(trainer.strategy) is ours.BoaStrategy
    assert trainer.world_size == 2


def test_registering_again_changes_nothing(package: Any) -> None:
    from lightning_boa import registration

    registry = package.strategies.StrategyRegistry
    before = sorted(registry)
    registration.register_strategies()

    assert sorted(registry) == before
