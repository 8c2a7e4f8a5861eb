"""A sweep of a user's own Hydra application that changes the number of devices ends at once with what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import hydra
import pytorch_lightning as pl
from torch.utils.data import DataLoader

import lightning_boa
from tests.processes.training import NumberedRows, Regression


@hydra.main(version_base="1.3", config_path=None)
def main(config):
    trainer = pl.Trainer(
        accelerator="cpu", devices=config.devices, strategy="boa", max_epochs=1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(Regression(), DataLoader(NumberedRows(32), batch_size=4))
    print("TRAINED", trainer.world_size)


main()
"""


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (1, 2),
        pytest.param(2, 1, marks=pytest.mark.full),
        pytest.param(2, 3, marks=pytest.mark.full),
    ],
)
def test_a_sweep_over_the_number_of_devices_is_refused(
    tmp_path: Path, first: int, second: int
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), "-m", f"+devices={first},{second}"],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        check=False,
    )
    assert done.returncode != 0
    assert f"TRAINED {first}" in done.stdout
    assert f"TRAINED {second}" not in done.stdout
    said = f"Expected a process group of {second} ranks, got one of {first}"
    assert said in done.stderr
