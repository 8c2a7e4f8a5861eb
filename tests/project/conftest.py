"""What is released, and environments of users who have installed it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE")
FOLDERS = ("lightning_boa", "conf", "hydra_plugins")


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with wheel and sdist, the wheel made of the sdist."""
    folder = tmp_path_factory.mktemp("release")
    source = folder / "source"
    source.mkdir()
    for name in SOURCES:
        shutil.copy(ROOT / name, source / name)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    command_output(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder)], cwd=source
    )
    return folder


@pytest.fixture(scope="session")
def wheel(release: Path) -> Path:
    (wheel,) = release.glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def bare_environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs of a new environment with the wheel and what it needs, nothing else."""
    return _environment(tmp_path_factory.mktemp("bare"), str(wheel))


@pytest.fixture(scope="session")
def user_environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with what the examples need."""
    return _environment(tmp_path_factory.mktemp("user"), f"{wheel}[examples]")


def command_output(command: list[str], *, cwd: Path, codes: tuple[int, ...] = (0,)) -> str:
    """What a command prints that a user starts in a folder outside the checkout; no traceback is among it."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=outside_the_checkout(),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode in codes, f"{command}: {done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done.stdout


def outside_the_checkout() -> dict[str, str]:
    """The environment variables without those of this environment."""
    ours = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")
    kept = {name: value for name, value in os.environ.items() if name not in ours}
    return {**kept, "OMP_NUM_THREADS": "1"}


def _environment(folder: Path, what: str) -> Path:
    command_output([sys.executable, "-m", "venv", str(folder)], cwd=folder)
    programs = folder / "bin"
    pip = [str(programs / "python"), "-m", "pip", "install", "--quiet"]
    command_output([*pip, "-c", str(ROOT / "constraints.txt"), what], cwd=programs)
    return programs
