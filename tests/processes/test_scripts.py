"""A user's script that says strategy="ddp" runs with "boa" by adding one import, however its processes are started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.full

SCRIPT = """
import json
import sys

import {lightning} as pl
import torch
from torch.utils.data import DataLoader, TensorDataset
{added_import}

class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        rows, targets = batch
        return torch.nn.functional.mse_loss(self.layer(rows), targets)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


if __name__ == "__main__":
    pl.seed_everything(7)
    rows = torch.randn(50, 4)
    data = TensorDataset(rows, rows.sum(1, keepdim=True))
    trainer = pl.Trainer(
        accelerator="cpu", devices=2, strategy="{strategy}", max_epochs=2, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )
    model = Model()
    trainer.fit(model, DataLoader(data, batch_size=5, shuffle=True))
    if trainer.is_global_zero:
        plan = getattr(trainer.strategy, "plan", None)
        print("RESULT", json.dumps({{
            "weights": model.layer.weight.tolist(),
            "plan": plan and list(plan.batch_sizes),
            "devices": len(getattr(trainer.strategy, "device_names", ())),
        }}))
    {ending}
"""
LEAVES = "torch.distributed.destroy_process_group()"
COLLECTIVE_THAT_NOBODY_AWAITS = "torch.distributed.all_reduce(torch.ones(2_000_000), async_op=True)"


def run_script(folder: Path, lightning: str, strategy: str, ending: str = "") -> dict[str, Any]:
    script = folder / "train.py"
    script.write_text(
        SCRIPT.format(
            lightning=lightning,
            strategy=strategy,
            added_import="" if strategy.startswith("ddp") else "import lightning_boa",
            ending=ending,
        )
    )
    outcome = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        check=False,
    )
    assert outcome.returncode == 0, outcome.stderr[-3000:]
    line = next(line for line in outcome.stdout.splitlines() if line.startswith("RESULT "))
    result: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
    return result


@pytest.fixture(scope="module")
def under_ddp(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_script(tmp_path_factory.mktemp("ddp"), "pytorch_lightning", "ddp", LEAVES)


@pytest.mark.parametrize(
    ("lightning", "strategy"),
    [
        ("pytorch_lightning", "boa"),
        ("lightning.pytorch", "boa"),
        ("pytorch_lightning", "boa_fork"),
        pytest.param("pytorch_lightning", "boa_spawn", marks=pytest.mark.full),
        pytest.param("lightning.pytorch", "boa_notebook", marks=pytest.mark.full),
        pytest.param(
            "pytorch_lightning", "boa_find_unused_parameters_true", marks=pytest.mark.full
        ),
    ],
)
def test_a_script_needs_one_more_import(
    tmp_path: Path, under_ddp: Any, lightning: str, strategy: str
) -> None:
    under_boa = run_script(tmp_path, lightning, strategy)
    assert sum(under_boa["plan"]) == 10
    assert under_boa["devices"] == 2
    assert under_boa["weights"][0] == pytest.approx(under_ddp["weights"][0], rel=1e-5)


@pytest.mark.full
def test_threads_of_gloo_do_not_abort_a_script_that_has_done_its_work(tmp_path: Path) -> None:
    run_script(tmp_path, "pytorch_lightning", "boa", COLLECTIVE_THAT_NOBODY_AWAITS)
