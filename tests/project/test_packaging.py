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
PACKAGES_OF_CONF = {
    "conf/train": "lightning_boa.conf.train",
    "conf/shared": "hydra_plugins.lightning_boa_conf",
}


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    settings: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return settings


def test_every_package_is_listed(pyproject: dict[str, Any]) -> None:
    code = {".".join(path.parent.relative_to(ROOT).parts) for path in _inits("lightning_boa")}
    conf = {
        ".".join((package, *path.relative_to(ROOT / folder).parts))
        for folder, package in PACKAGES_OF_CONF.items()
        for path in ((ROOT / folder), *(ROOT / folder).rglob("*"))
        if path.is_dir() and path.name != "__pycache__"
    }
    others = {"hydra_plugins", "lightning_boa.conf"}
    assert set(pyproject["tool"]["setuptools"]["packages"]) == code | conf | others


def test_every_folder_of_conf_ships_its_files(pyproject: dict[str, Any]) -> None:
    for folder, package in PACKAGES_OF_CONF.items():
        assert (ROOT / folder / "__init__.py").is_file()
        assert pyproject["tool"]["setuptools"]["package-data"][package] == ["**/*.yaml"]


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


def test_every_extra_that_is_named_exists(pyproject: dict[str, Any]) -> None:
    extras = pyproject["project"]["optional-dependencies"]
    texts = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    named = set()
    for path in (*texts, *(ROOT / "lightning_boa").rglob("*.py")):
        found = re.findall(r"(?:lightning-boa|\.)\[([a-z,-]+)\]", path.read_text(encoding="utf-8"))
        named |= {extra for each in found for extra in each.split(",")}
    assert {"demo", "plot", "examples", "optimizers"} <= named <= set(extras)


def test_the_examples_have_what_they_import(pyproject: dict[str, Any]) -> None:
    extras = pyproject["project"]["optional-dependencies"]
    imported = "".join(path.read_text("utf-8") for path in (ROOT / "examples").rglob("*.py"))
    assert "import lightning as L" in imported
    assert "lightning>=2.5" in extras["examples"]
    assert "lightning-boa[demo,plot,notebook]" in extras["examples"]


@pytest.mark.full
def test_a_wheel_holds_conf_and_the_typing_marker(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    source = tmp_path / "source"
    _copy_sources(source)
    subprocess.run([*build, "--wheel-dir", str(tmp_path), str(source)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert "lightning_boa/py.typed" in names
    assert {f"lightning_boa/reports/html/{name}" for name in ("page.html", "style.css")} <= names
    assert "hydra_plugins/lightning_boa_search_path.py" in names
    assert "hydra_plugins/__init__.py" not in names  # other plugins share the folder
    for folder in ("conf/train", "conf/shared"):
        package = PACKAGES_OF_CONF[folder].replace(".", "/")
        for path in (ROOT / folder).rglob("*.yaml"):
            assert f"{package}/{path.relative_to(ROOT / folder).as_posix()}" in names


def _inits(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("__init__.py"))


def _copy_sources(target: Path) -> None:
    import shutil

    target.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, target / name)
    for name in ("lightning_boa", "conf", "hydra_plugins"):
        shutil.copytree(ROOT / name, target / name)
