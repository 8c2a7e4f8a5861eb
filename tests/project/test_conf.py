from __future__ import annotations

import gzip
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hydra import compose, initialize_config_dir, initialize_config_module
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

import lightning_boa

pytest.importorskip(
    "sklearn", reason="it sets variables at its first import, which a test must not"
)

CONF = Path(__file__).parents[2] / "conf"
STRATEGIES = sorted(path.stem for path in (CONF / "shared" / "strategy").glob("*.yaml"))
FIXED_SHARES = "strategy.batch_sizes=[10,6]"
CHOICES = sorted(
    f"{path.parent.name}={path.stem}"
    for folder in (CONF / "train", CONF / "shared")
    for path in folder.glob("*/*.yaml")
)
GROUPS = {
    "callbacks",
    "cluster",
    "data",
    "experiment",
    "model",
    "optimizer",
    "scaling",
    "strategy",
    "trainer",
}


@pytest.fixture(autouse=True)
def no_hydra() -> Iterator[None]:
    GlobalHydra.instance().clear()
    yield
    GlobalHydra.instance().clear()


@pytest.fixture
def clothes(tmp_path: Path) -> Path:
    for part in ("train", "t10k"):
        _write_idx(tmp_path / f"{part}-images-idx3-ubyte.gz", np.zeros((3, 28, 28), np.uint8))
        _write_idx(tmp_path / f"{part}-labels-idx1-ubyte.gz", np.zeros(3, np.uint8))
    return tmp_path


@pytest.fixture
def application(tmp_path: Path) -> Path:
    """The folder of a user's application that has nothing of ours but the group."""
    (tmp_path / "config.yaml").write_text("defaults:\n  - strategy: boa\n  - _self_\nvalue: 1\n")
    return tmp_path


def test_there_are_choices_in_every_group_and_help_explains_each() -> None:
    assert {choice.split("=")[0] for choice in CHOICES} == GROUPS
    help_ = OmegaConf.load(CONF / "train" / "train.yaml").hydra.help.header
    said = [line.split()[0] for line in help_.splitlines() if len(line.split()) > 1]
    assert set(said) >= GROUPS | set(STRATEGIES)


@pytest.mark.parametrize("choice", CHOICES)
def test_every_choice_composes_and_each_part_can_be_made(
    choice: str, tmp_path: Path, clothes: Path
) -> None:
    needed = [FIXED_SHARES] if choice.endswith("fixed_shares") else []
    with initialize_config_module("lightning_boa.conf.train", version_base="1.3"):
        config = compose("train", [choice, *needed, f"output_dir={tmp_path}"])
    if config.data._target_.endswith("FashionMnistData"):
        config.data.folder = str(clothes)
    for part in (config.data, config.model, config.strategy, config.trainer, config.cluster):
        instantiate(part, _convert_="all", _partial_=_needs_the_rest(part))
    for part in config.callbacks.values():
        instantiate(part, _convert_="all")
    assert config.strategy.start_method == config.cluster.start_method


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_user_application_has_every_strategy(application: Path, name: str) -> None:
    needed = [FIXED_SHARES] if name == "boa_fixed_shares" else []
    with initialize_config_dir(str(application), version_base="1.3"):
        config = compose(
            "config",
            [f"strategy={name}", *needed, "strategy.start_method=fork"],
            return_hydra_config=True,
        )
    assert list(config.hydra.callbacks) == ["own_ranks"]
    strategy = instantiate(config.strategy)
    assert type(strategy) is getattr(lightning_boa, config.strategy._target_.split(".")[1])


def test_the_file_of_boa_lists_every_option() -> None:
    listed = set(OmegaConf.load(CONF / "shared" / "strategy" / "boa.yaml"))
    options = {
        name
        for name, parameter in inspect.signature(lightning_boa.BoaStrategy).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    assert listed == options | {"defaults", "_target_", "start_method"}


def test_options_are_overridden_and_checked_by_name(application: Path) -> None:
    with initialize_config_dir(str(application), version_base="1.3"):
        off = compose("config", ["strategy.rebalance=off", "strategy.warmup=12"])
        wrong = compose("config", ["strategy.rebalance=x"])
        shares = compose("config", ["strategy=boa_fixed_shares"])
    assert instantiate(off.strategy).options.rebalance == "off"
    assert instantiate(off.strategy).options.warmup == 12
    with pytest.raises(InstantiationException, match=r"rebalance: expected[^$]+full_key: strategy"):
        instantiate(wrong.strategy)
    with pytest.raises(Exception, match=r"strategy\.batch_sizes"):
        instantiate(shares.strategy)


def test_the_group_takes_the_place_of_a_string(application: Path) -> None:
    (application / "string.yaml").write_text("trainer:\n  strategy: ddp\n")
    with initialize_config_dir(str(application), version_base="1.3"):
        config = compose(
            "string", ["+strategy@trainer.strategy=boa", "trainer.strategy.granularity=4"]
        )
    assert instantiate(config).trainer.strategy.options.granularity == 4


def test_what_the_application_has_itself_comes_first(
    application: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (application / "strategy").mkdir()
    (application / "strategy" / "boa.yaml").write_text("mine: 1\n")
    monkeypatch.setattr(ConfigStore.instance(), "repo", {**ConfigStore.instance().repo})
    ConfigStore.instance().store(group="strategy", name="ddp", node={"mine": 2})
    with initialize_config_dir(str(application), version_base="1.3"):
        assert compose("config").strategy == {"mine": 1}
        assert compose("config", ["strategy=ddp"]).strategy == {"mine": 2}


def test_nothing_of_the_command_is_visible_in_a_user_application(application: Path) -> None:
    with initialize_config_dir(str(application), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        assert loader.get_group_options("strategy") == STRATEGIES
        assert not {*loader.list_groups("")} & (GROUPS - {"strategy"})
        assert loader.get_group_options("", results_filter=None).count("train") == 0


def test_the_switch_hides_the_group(application: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTNING_BOA_HYDRA", "off")
    with initialize_config_dir(str(application), version_base="1.3"):
        assert GlobalHydra.instance().config_loader().get_group_options("strategy") == []


def test_an_application_without_the_group_does_not_import_us(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("value: 1\n")
    code = (
        "import sys; from hydra import compose, initialize_config_dir;"
        f"initialize_config_dir({str(tmp_path)!r}, version_base='1.3'); compose('config', ['value=2']);"
        "from hydra.core.plugins import Plugins;"
        "assert 'hydra_plugins.lightning_boa_search_path' in sys.modules;"
        "assert not {'lightning_boa', 'torch', 'pytorch_lightning', 'lightning'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def _needs_the_rest(part: DictConfig) -> bool:
    return str(part._target_).endswith(".Trainer")


def _write_idx(path: Path, values: np.ndarray) -> None:
    header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, dtype=">u4").tobytes()
    with gzip.open(path, "wb") as file:
        file.write(header + values.tobytes())
