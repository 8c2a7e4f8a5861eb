from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_module
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import DictConfig

from lightning_boa.cli.jobs import OwnRanks
from lightning_boa.strategies import process_group

ARGUMENTS = ["app", "-m", "-cd", "more conf", "trainer.devices=1,2", "--info"]


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[DictConfig]:
    """Job 1 of the sweep `app -m -cd DIR trainer.devices=1,2`, in a folder with quotes in its name."""
    for name in ("LOCAL_RANK", "MASTER_PORT", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "argv", list(ARGUMENTS))
    given = ["trainer.devices=2", "+text=${oc.env:HOME}", "hydra.job.chdir=false"]
    with initialize_config_module("lightning_boa.conf.train", version_base="1.3"):
        config = compose("train", [*given, "hydra.mode=MULTIRUN"], return_hydra_config=True)
        config.hydra.runtime.output_dir = str(tmp_path / 'a "b"')
        config.hydra.job.num = config.hydra.job.id = 1
        HydraConfig.instance().set_config(config)
        yield config
    HydraConfig.instance().cfg = None


def ended(status: JobStatus, value: Any = None) -> JobReturn:
    return JobReturn(status=status, _return_value=value)


def test_further_ranks_are_called_for_this_job_alone_and_share_its_folder(
    job: DictConfig, tmp_path: Path
) -> None:
    ranks = OwnRanks()
    ranks.on_job_start(job)
    assert sys.argv == [
        *["app", "-cd", "more conf", "--info", "hydra.job.chdir=false", "hydra.mode=MULTIRUN"],
        *["trainer.devices=2", "+text=${oc.env:HOME}"],
        *["hydra.mode=RUN", "hydra.job.num=1", "hydra.job.id=1"],
    ]
    override = f'hydra.run.dir="{HydraConfig.get().run.dir}"'  # as Lightning puts it
    assert OverridesParser.create().parse_override(override).value() == str(tmp_path / 'a "b"')
    ranks.on_job_end(job, ended(JobStatus.COMPLETED))
    assert sys.argv == ARGUMENTS


def test_the_next_job_finds_the_environment_that_this_one_found(
    job: DictConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    ranks = OwnRanks()
    ranks.on_job_start(job)
    os.environ.update(LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="4242")
    ranks.on_job_end(job, ended(JobStatus.COMPLETED))
    assert os.environ["MASTER_ADDR"] == "10.0.0.1"
    assert "LOCAL_RANK" not in os.environ
    assert "MASTER_PORT" not in os.environ


def test_a_job_that_failed_with_ranks_ends_the_sweep(
    job: DictConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failure = ended(JobStatus.FAILED, ValueError("no such row"))
    ranks = OwnRanks()
    for alone in (
        {},
        {"LOCAL_RANK": "0", "WORLD_SIZE": "1"},
    ):  # then Hydra goes on with the next job
        ranks.on_job_start(job)
        os.environ.update(alone)
        ranks.on_job_end(job, failure)
    ranks.on_job_start(job)
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit) as exit_:
        ranks.on_job_end(job, failure)
    assert exit_.value.code == 1
    assert "ValueError: no such row" in capsys.readouterr().err


def test_a_single_run_keeps_its_arguments(job: DictConfig) -> None:
    HydraConfig.get()._set_flag("readonly", False)
    HydraConfig.get().mode = "RUN"
    ranks = OwnRanks()
    ranks.on_job_start(job)
    assert sys.argv == ARGUMENTS
    os.environ["LOCAL_RANK"] = "0"
    ranks.on_job_end(job, ended(JobStatus.COMPLETED))
    assert os.environ.pop("LOCAL_RANK") == "0"


@pytest.mark.parametrize(
    ("mode", "status", "left"),
    [
        ("RUN", JobStatus.COMPLETED, True),
        ("RUN", JobStatus.FAILED, False),
        ("MULTIRUN", JobStatus.COMPLETED, True),
        ("MULTIRUN", JobStatus.FAILED, True),
    ],
)
def test_the_process_group_is_left_where_no_other_rank_waits_in_it(
    job: DictConfig, monkeypatch: pytest.MonkeyPatch, mode: str, status: JobStatus, left: bool
) -> None:
    leaves: list[bool] = []
    monkeypatch.setattr(process_group, "leave", lambda: leaves.append(True))
    HydraConfig.get()._set_flag("readonly", False)
    HydraConfig.get().mode = mode
    ranks = OwnRanks()
    ranks.on_job_start(job)
    ranks.on_job_end(job, ended(status))
    assert bool(leaves) == left
