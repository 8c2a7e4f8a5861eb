from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.utils import instantiate
from omegaconf import DictConfig

pytest.importorskip(
    "sklearn", reason="it sets variables at its first import, which a test must not"
)

CONF = Path(__file__).parents[2] / "conf"
CHOICES = sorted(f"{path.parent.name}={path.stem}" for path in CONF.glob("*/*.yaml"))


@pytest.fixture(autouse=True)
def conf() -> Iterator[None]:
    GlobalHydra.instance().clear()
    with initialize_config_module("lightning_boa.conf", version_base="1.3"):
        yield


@pytest.fixture
def clothes(tmp_path: Path) -> Path:
    for part in ("train", "t10k"):
        _write_idx(tmp_path / f"{part}-images-idx3-ubyte.gz", np.zeros((3, 28, 28), np.uint8))
        _write_idx(tmp_path / f"{part}-labels-idx1-ubyte.gz", np.zeros(3, np.uint8))
    return tmp_path


def test_there_are_choices_in_every_group() -> None:
    groups = {choice.split("=")[0] for choice in CHOICES}
    assert groups == {
        "data",
        "optimizer",
        "scaling",
        "model",
        "trainer",
        "strategy",
        "cluster",
        "callbacks",
        "experiment",
    }


@pytest.mark.parametrize("choice", CHOICES)
def test_every_choice_composes_and_each_part_can_be_made(
    choice: str, tmp_path: Path, clothes: Path
) -> None:
    config = compose("train", [choice, f"output_dir={tmp_path}"])
    if config.data._target_.endswith("FashionMnistData"):
        config.data.folder = str(clothes)
    for part in (config.data, config.model, config.strategy, config.trainer, config.cluster):
        instantiate(part, _convert_="all", _partial_=_needs_the_rest(part))
    for part in config.callbacks.values():
        instantiate(part, _convert_="all")


def _needs_the_rest(part: DictConfig) -> bool:
    return str(part._target_).endswith(".Trainer")


def _write_idx(path: Path, values: np.ndarray) -> None:
    header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, dtype=">u4").tobytes()
    with gzip.open(path, "wb") as file:
        file.write(header + values.tobytes())
