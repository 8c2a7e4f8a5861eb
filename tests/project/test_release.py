"""What is released: built, and used from an empty environment outside the checkout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

from lightning_boa import __version__

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
SOURCES = ("pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE")
FOLDERS = ("lightning_boa", "conf", "hydra_plugins")

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


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with wheel and sdist, the wheel made of the sdist."""
    folder = tmp_path_factory.mktemp("release")
    source = folder / "source"
    source.mkdir()
    for name in SOURCES:
        shutil.copy(ROOT / name, source / name)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    _run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder)], cwd=source)
    return folder


@pytest.fixture(scope="module")
def wheel(release: Path) -> Path:
    (wheel,) = release.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs of a new environment that holds the wheel and what it needs, nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    _run([sys.executable, "-m", "venv", str(folder)], cwd=folder)
    programs = folder / ("Scripts" if os.name == "nt" else "bin")
    _install(programs, str(wheel))
    return programs


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


def test_the_commands_answer(environment: Path, tmp_path: Path) -> None:
    for command in (["boa", "--help"], ["boa-train", "--help"], ["boa", "plan", "--help"]):
        assert "Usage" in _run([str(environment / command[0]), *command[1:]], cwd=tmp_path) or (
            command[0] == "boa-train"
        )
    assert __version__ in _run([str(environment / "boa"), "--version"], cwd=tmp_path)


def test_a_hydra_application_of_ten_lines_says_strategy_boa(
    environment: Path, tmp_path: Path
) -> None:
    assert len(APPLICATION.splitlines()) == 10
    (tmp_path / "application.py").write_text(APPLICATION, encoding="utf-8")
    (tmp_path / "config.yaml").write_text("defaults:\n  - strategy: boa\n", encoding="utf-8")
    overrides = ["strategy.rebalance=off", "strategy.batch_sizes=[12,4]"]
    python = str(environment / "python")
    printed = _run([python, "application.py", *overrides], cwd=tmp_path)
    assert [line for line in printed.splitlines() if line.startswith("rows")] == [
        "rows (12, 4) off 10"
    ]


def test_a_run_and_its_report(environment: Path, wheel: Path, tmp_path: Path) -> None:
    _install(environment, f"{wheel}[demo,plot]")
    run = tmp_path / "run"
    train = [str(environment / "boa-train"), "trainer.max_epochs=2", f"hydra.run.dir={run}"]
    printed = _run([*train, "trainer.devices=2"], cwd=tmp_path)
    assert "Equal split vs BOA" in printed
    report = json.loads((run / "report.json").read_text(encoding="utf-8"))
    assert sum(rank["boa_rows"] for rank in report["plan"]["ranks"]) == 32
    _run([str(environment / "boa"), "report", str(run)], cwd=tmp_path)
    assert "<html" in (run / "boa-report.html").read_text(encoding="utf-8")


def _install(programs: Path, what: str) -> None:
    pip = [str(programs / "python"), "-m", "pip", "install", "--quiet"]
    _run([*pip, "-c", str(ROOT / "constraints.txt"), what], cwd=programs)


def _run(command: list[str], *, cwd: Path) -> str:
    outside = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")
    }
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**outside, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
    return done.stdout
