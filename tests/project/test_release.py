"""What is released: built, and used from an empty environment outside the checkout."""

from __future__ import annotations

import json
import tarfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

from lightning_boa import __version__

from .conftest import command_output

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]

APPLICATION = """\
import hydra, pytorch_lightning as pl
from pytorch_lightning.demos.boring_classes import BoringModel, RandomDataset
from torch.utils.data import DataLoader
@hydra.main(version_base="1.3", config_path=".", config_name="config")
def main(config):
    trainer = pl.Trainer(max_epochs=1, devices=2, strategy=hydra.utils.instantiate(config.strategy), logger=False)
    trainer.fit(BoringModel(), DataLoader(RandomDataset(32, 160), batch_size=8))
    if trainer.is_global_zero:
        print("rows", trainer.strategy.plan.batch_sizes, trainer.strategy.options.rebalance, trainer.global_step)
main()
"""


def test_wheel_and_sdist_hold_what_is_used(release: Path, wheel: Path) -> None:
    (sdist,) = release.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "lightning_boa/py.typed"} <= inside
    names = set(zipfile.ZipFile(wheel).namelist())
    assert "lightning_boa/py.typed" in names
    for folder, package in (
        ("conf/train", "lightning_boa/conf/train"),
        ("conf/shared", "hydra_plugins/lightning_boa_conf"),
    ):
        for path in (ROOT / folder).rglob("*.yaml"):
            assert f"{package}/{path.relative_to(ROOT / folder).as_posix()}" in names
    assert not [name for name in names if name.startswith(("tests", "benchmarks", "docs"))]


def test_the_metadata_say_what_it_is(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (place,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = HeaderParser().parsestr(archive.read(place).decode())
    assert metadata["Name"] == "lightning-boa"
    assert metadata["Version"] == __version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.10"
    assert "Typing :: Typed" in metadata.get_all("Classifier")
    assert "# lightning-boa" in metadata.get_payload()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["boa", "--help"], "Plans the rows of each device"),
        (["boa", "--version"], __version__),
        (["boa", "plan", "--device", "a=1ms", "--device", "b=3ms", "-b", "64"], "gain"),
        (["boa-train", "--help"], "strategy"),
    ],
    ids=lambda each: "" if isinstance(each, str) else " ".join(each[:2]),
)
def test_a_command_answers(
    command: list[str], words: str, bare_environment: Path, tmp_path: Path
) -> None:
    program, *arguments = command
    assert words in command_output([str(bare_environment / program), *arguments], cwd=tmp_path)


def test_a_hydra_application_of_ten_lines_says_strategy_boa(
    bare_environment: Path, tmp_path: Path
) -> None:
    assert len(APPLICATION.splitlines()) == 10
    (tmp_path / "application.py").write_text(APPLICATION, encoding="utf-8")
    (tmp_path / "config.yaml").write_text("defaults:\n  - strategy: boa\n", encoding="utf-8")
    overrides = ["strategy.rebalance=off", "strategy.batch_sizes=[12,4]"]
    python = str(bare_environment / "python")
    printed = command_output([python, "application.py", *overrides], cwd=tmp_path)
    assert [line for line in printed.splitlines() if line.startswith("rows")] == [
        "rows (12, 4) off 10"
    ]


def test_a_run_and_its_report(user_environment: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train = [str(user_environment / "boa-train"), "trainer.max_epochs=2", f"hydra.run.dir={run}"]
    printed = command_output([*train, "trainer.devices=2"], cwd=tmp_path)
    assert "Equal split vs BOA" in printed
    report = json.loads((run / "report.json").read_text(encoding="utf-8"))
    assert sum(rank["boa_rows"] for rank in report["plan"]["ranks"]) == 32
    command_output([str(user_environment / "boa"), "report", str(run)], cwd=tmp_path)
    assert "<html" in (run / "boa-report.html").read_text(encoding="utf-8")
