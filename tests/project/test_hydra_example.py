"""The usual layout of a project with Lightning and Hydra works with one line and one override."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from .conftest import command_output

EXAMPLE = Path(__file__).parents[2] / "examples" / "lightning_hydra"
OPTIONS = ("+strategy@trainer.strategy=boa", "trainer.strategy.batch_sizes=[48,16]")


def test_one_line_is_new() -> None:
    lines = (EXAMPLE / "train.py").read_text(encoding="utf-8").splitlines()
    ours = [line for line in lines if "boa" in line]
    assert ours == [
        'import lightning_boa  # noqa: F401  registers strategy="boa": the one line that is new'
    ]


def test_the_strategy_is_a_string_or_the_group_with_its_options() -> None:
    with initialize_config_dir(str(EXAMPLE / "configs"), version_base="1.3"):
        assert compose("train").trainer.strategy == "ddp"
        assert compose("train", ["trainer.strategy=boa"]).trainer.strategy == "boa"
        strategy = instantiate(compose("train", OPTIONS).trainer.strategy)
    assert strategy.options.batch_sizes == (48, 16)


@pytest.mark.full
def test_it_trains_by_one_override(user_environment: Path, tmp_path: Path) -> None:
    record, metrics = _train(user_environment, tmp_path, "trainer.strategy=boa")
    first, second = (rank["boa_rows"] for rank in record["plan"]["ranks"])
    assert first + second == 64
    assert first > second  # the second device takes three times as long for a row
    assert float(metrics["test/accuracy"]) > 0.8


@pytest.mark.full
def test_it_trains_with_options(user_environment: Path, tmp_path: Path) -> None:
    _, metrics = _train(user_environment, tmp_path, *OPTIONS)
    assert float(metrics["test/accuracy"]) > 0.8


def _train(programs: Path, folder: Path, *overrides: str) -> tuple[dict[str, Any], dict[str, str]]:
    command_output([str(programs / "python"), str(EXAMPLE / "train.py"), *overrides], cwd=folder)
    (run,) = folder.glob("logs/runs/*")
    (record,) = run.rglob("boa-run.json")
    with (run / "csv" / "version_0" / "metrics.csv").open(encoding="utf-8") as file:
        (metrics,) = (row for row in csv.DictReader(file) if row["test/accuracy"])
    return json.loads(record.read_text(encoding="utf-8")), metrics
