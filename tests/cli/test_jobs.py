from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig

from lightning_boa.cli.jobs import one_job


@pytest.fixture
def sweep(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Job 1 of `boa-train -m -cd DIR trainer.devices=1,2`."""
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setattr(
        sys, "argv", ["boa-train", "-m", "-cd", "more conf", "trainer.devices=1,2", "--info"]
    )
    GlobalHydra.instance().clear()
    with initialize_config_module("lightning_boa.conf", version_base="1.3"):
        config = compose("train", ["trainer.devices=2"], return_hydra_config=True)
        config.hydra.runtime.output_dir = str(tmp_path)
        HydraConfig.instance().set_config(config)
        yield
    HydraConfig.instance().cfg = None


@pytest.mark.usefixtures("sweep")
def test_further_ranks_are_called_for_this_job_alone_and_share_its_folder(tmp_path: Path) -> None:
    with one_job():
        assert sys.argv == ["boa-train", "-cd", "more conf", "--info", "trainer.devices=2"]
        assert HydraConfig.get().run.dir == str(tmp_path)
    assert sys.argv[1] == "-m"


@pytest.mark.usefixtures("sweep")
def test_the_next_job_finds_the_environment_that_this_one_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    monkeypatch.delenv("MASTER_PORT", raising=False)
    with one_job():
        os.environ.update(LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="4242")
    assert os.environ["MASTER_ADDR"] == "10.0.0.1"
    assert "LOCAL_RANK" not in os.environ
    assert "MASTER_PORT" not in os.environ
