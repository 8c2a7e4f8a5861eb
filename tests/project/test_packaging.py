from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has no reader for TOML")

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    settings: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return settings


def test_every_package_is_listed(pyproject: dict[str, Any]) -> None:
    code = {".".join(path.parent.relative_to(ROOT).parts) for path in _inits("lightning_boa")}
    conf = {
        ".".join(("lightning_boa", *path.parent.relative_to(ROOT).parts)) for path in _inits("conf")
    }
    assert set(pyproject["tool"]["setuptools"]["packages"]) == code | conf


def test_every_folder_of_conf_ships_its_files(pyproject: dict[str, Any]) -> None:
    data = pyproject["tool"]["setuptools"]["package-data"]
    for path in _inits("conf"):
        package = ".".join(("lightning_boa", *path.parent.relative_to(ROOT).parts))
        assert data[package] == ["*.yaml"], package


def test_the_changelog_begins_with_the_present_version() -> None:
    headings = re.findall(
        r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M
    )
    assert headings[0] == version("lightning-boa")


def test_the_readme_gives_the_commands_that_ci_runs() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for command in (
        'pip install -c constraints.txt -e ".[demo]"',
        'pip install -c constraints.txt -e ".[dev]"',
        'python -m pytest -m "not full and not gpu"',
        "python -m pytest -m full",
    ):
        assert command in readme
        assert command in (ROOT / ".ci" / "run").read_text(encoding="utf-8").replace("--quiet ", "")


@pytest.mark.full
def test_a_wheel_holds_conf_and_the_typing_marker(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    source = tmp_path / "source"
    _copy_sources(source)
    subprocess.run([*build, "--wheel-dir", str(tmp_path), str(source)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert "lightning_boa/py.typed" in names
    for path in (ROOT / "conf").rglob("*.yaml"):
        assert f"lightning_boa/{path.relative_to(ROOT).as_posix()}" in names


def _inits(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("__init__.py"))


def _copy_sources(target: Path) -> None:
    import shutil

    target.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, target / name)
    for name in ("lightning_boa", "conf"):
        shutil.copytree(ROOT / name, target / name)
