"""LightningCLI takes the strategy by its name and by its class, with its options and those of ddp."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
from torch.utils.data import DataLoader

from tests.processes.ranks import run_ranks
from tests.processes.training import NumberedRows, Regression, quiet

pytest.importorskip("jsonargparse")

COMMON = [
    "train.py",
    "--seed_everything=3",
    "--trainer.accelerator=cpu",
    "--trainer.devices=2",
    "--trainer.max_epochs=1",
    "--trainer.logger=false",
    "--trainer.enable_checkpointing=false",
    "--trainer.enable_progress_bar=false",
]
BY_NAME = ["--trainer.strategy=boa"]
BY_CLASS = [
    "--trainer.strategy.class_path=lightning_boa.BoaStrategy",
    "--trainer.strategy.init_args.batch_sizes=[5, 3]",
    "--trainer.strategy.init_args.batch_weight=samples",
    "--trainer.strategy.init_args.find_unused_parameters=true",
]


SCRIPT = """
import lightning_boa
from pytorch_lightning.cli import LightningCLI
from pytorch_lightning.demos.boring_classes import BoringDataModule, BoringModel


class Model(BoringModel):
    def on_train_end(self):
        print("PLAN", self.trainer.strategy.plan.batch_sizes, flush=True)


if __name__ == "__main__":
    LightningCLI(Model, BoringDataModule)
"""


def command_line(rank: int, arguments: list[str]) -> tuple[list[list[int]], bool]:
    """The rows of each step of a training that a command line describes, and ddp's own option."""
    from pytorch_lightning.cli import LightningCLI

    quiet()
    os.environ["JSONARGPARSE_DEPRECATION_WARNINGS"] = "off"  # between Lightning and jsonargparse
    sys.argv = [*COMMON, *arguments]
    made = LightningCLI(Regression, run=False, save_config_callback=None)
    trainer: pl.Trainer = made.trainer
    trainer.fit(made.model, DataLoader(NumberedRows(16), batch_size=4))
    finds_unused: Any = trainer.strategy._ddp_kwargs.get("find_unused_parameters", False)
    return made.model.seen, finds_unused


def both(rank: int) -> list[Any]:
    return [command_line(rank, arguments) for arguments in (BY_NAME, BY_CLASS)]


@pytest.fixture(scope="module")
def ran() -> list[list[Any]]:
    return run_ranks(both, 2)


def test_by_its_name(ran: Any) -> None:
    assert [[len(step) for step in found[0][0]] for found in ran] == [[4, 4], [4, 4]]
    assert [found[0][1] for found in ran] == [False, False]


def test_by_its_class_with_options(ran: Any) -> None:
    assert [[len(step) for step in found[1][0]] for found in ran] == [[5, 5], [3, 3]]
    assert [found[1][1] for found in ran] == [True, True]


def test_the_class_of_the_other_package(monkeypatch: pytest.MonkeyPatch) -> None:
    cli = pytest.importorskip("lightning.pytorch.cli")
    boring = pytest.importorskip("lightning.pytorch.demos.boring_classes")
    path = "--trainer.strategy.class_path=lightning_boa.for_lightning.BoaStrategy"
    monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")
    monkeypatch.setattr(sys, "argv", [*COMMON, path, "--trainer.strategy.init_args.warmup=7"])
    made = cli.LightningCLI(boring.BoringModel, run=False, save_config_callback=None)
    assert type(made.trainer.strategy).__module__ == "lightning_boa.for_lightning"
    assert made.trainer.strategy.options.warmup == 7


def test_a_baseline_by_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    from pytorch_lightning.cli import LightningCLI

    monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")
    path = "--trainer.strategy.class_path=lightning_boa.BackupWorkersStrategy"
    monkeypatch.setattr(sys, "argv", [*COMMON, path, "--trainer.strategy.init_args.backups=2"])
    made: Any = LightningCLI(Regression, run=False, save_config_callback=None)
    assert made.trainer.strategy.backups == 2


@pytest.mark.full
def test_a_command_starts_its_processes_itself(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    finished = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), "fit", *COMMON[1:], *BY_NAME],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert finished.stdout.count("PLAN (1, 1)") == 2
