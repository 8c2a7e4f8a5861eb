"""A user's own Hydra application with several ranks: sweeps, values with special characters, jobs that fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.full

SCRIPT = """
import json
import os
from pathlib import Path

import hydra
import pytorch_lightning as pl
import torch
from hydra.core.hydra_config import HydraConfig
from torch.utils.data import DataLoader

import lightning_boa
from tests.processes.training import NumberedRows, Regression

FAILS_BEFORE_TRAINING = os.environ.get("FAILS") == "rank 1 before it trains"


class Reporting(Regression):
    def __init__(self, folder, text):
        super().__init__()
        self.folder, self.text = folder, text

    def on_train_start(self):
        said = {
            "text": self.text,
            "ranks": self.trainer.world_size,
            "group": torch.distributed.get_world_size(),
            "strategy": type(self.trainer.strategy).__name__,
        }
        path = self.folder / f"rank {self.global_rank}.json"
        path.write_text(json.dumps(said), encoding="utf-8")

    def training_step(self, batch, batch_idx):
        if os.environ.get("FAILS") == f"rank {self.global_rank} in a step" and batch_idx == 1:
            raise ValueError("no such row")
        return super().training_step(batch, batch_idx)


@hydra.main(version_base="1.3", config_path=None)
def main(config):
    if FAILS_BEFORE_TRAINING and os.environ.get("LOCAL_RANK") == "1":
        raise ValueError("an option is missing")
    folder = Path(HydraConfig.get().runtime.output_dir)
    trainer = pl.Trainer(
        accelerator="cpu", devices=config.trainer.devices, strategy=config.trainer.strategy, max_epochs=1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(Reporting(folder, config.get("text")), DataLoader(NumberedRows(32), batch_size=4))
    print("TRAINED", trainer.world_size)


main()
"""
SECONDS_UNTIL_RANKS_ARE_GONE = 20.0
TEXT = "Grüße, a=b 'c' \"d\" [e] {f: g} $h\\"
IN_HYDRA = "'" + TEXT.replace("'", "\\'").replace("$h\\", "$h\\\\") + "'"


@pytest.mark.parametrize("strategies", [("ddp", "boa"), ("boa_fork",)])
def test_each_job_has_its_own_ranks_in_one_folder_and_all_get_its_values(
    tmp_path: Path, strategies: tuple[str, ...]
) -> None:
    done = _run(
        tmp_path,
        "-m",
        "hydra/callbacks=own_ranks",
        f"+trainer.strategy={','.join(strategies)}",
        "+trainer.devices=2,3",
        f"+text={IN_HYDRA}",
        "hydra.sweep.dir=sweep",
        "hydra.sweep.subdir=${hydra.job.num} ${hydra.job.override_dirname}",
    )
    assert done.returncode == 0, done.stderr
    jobs = [_said(folder) for folder in sorted((tmp_path / "sweep").iterdir()) if folder.is_dir()]
    assert [(len(job), {rank["strategy"] for rank in job}) for job in jobs] == [
        (ranks, {"DDPStrategy" if strategy == "ddp" else "BoaStrategy"})
        for strategy in strategies
        for ranks in (2, 3)
    ]
    for job in jobs:
        for rank in job:
            assert rank["text"] == TEXT
            assert rank["ranks"] == rank["group"] == len(job)
    assert not (tmp_path / "outputs").exists()
    assert not (tmp_path / "multirun").exists()


def test_without_the_callback_another_number_of_ranks_is_refused(tmp_path: Path) -> None:
    done = _run(tmp_path, "-m", "+trainer.strategy=boa", "+trainer.devices=1,2")
    assert done.returncode != 0
    assert "TRAINED 1" in done.stdout
    assert "TRAINED 2" not in done.stdout
    assert "Expected a process group of 2 ranks, got one of 1" in done.stderr
    assert "hydra/callbacks=own_ranks" in done.stderr


@pytest.mark.parametrize(
    ("fails", "strategy"),
    [
        ("rank 0 in a step", "boa"),
        ("rank 1 before it trains", "boa"),
        ("rank 0 in a step", "ddp"),
    ],
)
def test_a_job_that_fails_ends_the_sweep_and_leaves_no_process(
    tmp_path: Path, fails: str, strategy: str
) -> None:
    done = _run(
        tmp_path,
        "-m",
        "hydra/callbacks=own_ranks",
        f"+trainer.strategy={strategy}",
        "+trainer.devices=2,1",
        FAILS=fails,
    )
    assert done.returncode != 0
    assert "ValueError: " in done.stderr
    assert "TRAINED" not in done.stdout
    ends = time.monotonic() + SECONDS_UNTIL_RANKS_ARE_GONE
    while _running(tmp_path) and time.monotonic() < ends:
        time.sleep(0.1)
    assert not _running(tmp_path)


def _running(folder: Path) -> list[str]:
    """The processes whose command names the folder."""
    listed = subprocess.run(["ps", "-eo", "args="], capture_output=True, text=True, check=True)
    return [line for line in listed.stdout.splitlines() if str(folder / "train.py") in line]


def _said(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("rank *.json"))
    ]


def _run(folder: Path, *overrides: str, **environment: str) -> subprocess.CompletedProcess[str]:
    script = folder / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    return subprocess.run(
        [sys.executable, str(script), *overrides],
        capture_output=True,
        text=True,
        timeout=150,
        cwd=folder,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(Path(__file__).parents[2]),
            **environment,
        },
        check=False,
    )
