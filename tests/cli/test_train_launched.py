"""The command as a user calls it, with ranks that Lightning starts by calling it again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

REAL_RANKS = (
    "cluster=none",
    "trainer.accelerator=cpu",
    "trainer.max_epochs=2",
    "trainer.enable_progress_bar=false",
)


def test_all_ranks_share_one_output_folder(tmp_path: Path) -> None:
    done = _boa_train(tmp_path, *REAL_RANKS, "trainer.devices=2")
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.glob("outputs/*/*")
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert sum(rank["boa_rows"] for rank in report["plan"]["ranks"]) == 32
    assert done.stdout.count("Equal split vs BOA") == 1


def test_a_sweep_over_the_number_of_devices_trains_each_with_its_own_ranks(tmp_path: Path) -> None:
    done = _boa_train(tmp_path, "-m", *REAL_RANKS, "trainer.devices=2,1", "strategy=boa,ddp")
    assert done.returncode == 0, done.stderr
    folders = sorted(tmp_path.glob("multirun/*/*/*/report.json"))
    assert len(folders) == 4
    assert not (tmp_path / "outputs").exists()
    ranks = [
        len(report["plan"]["ranks"])
        for report in (json.loads(path.read_text(encoding="utf-8")) for path in folders)
        if report["plan"]
    ]
    assert ranks == [2, 1]


def test_a_mistake_found_on_every_rank_ends_all_with_exit_code_2(tmp_path: Path) -> None:
    own_batches = ("+trainer.use_distributed_sampler=false", "strategy.global_batch_size=64")
    done = _boa_train(tmp_path, *REAL_RANKS, "trainer.devices=2", *own_batches)
    assert done.returncode == 2
    assert "boa-train: global_batch_size" in done.stderr
    assert "Traceback" not in done.stderr


def _boa_train(folder: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "lightning_boa.cli.train", *overrides],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
