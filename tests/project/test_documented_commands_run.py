"""The trainings and examinations that the README and the pages name, as commands of their own; trainings cut short."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.project.pages import PAGES, ROOT, blocks_of

from .conftest import command_output

pytestmark = pytest.mark.full

SHORT = ("trainer.max_epochs=1", "trainer.enable_progress_bar=false")
CLOTHES = Path("/usr/share/datasets/fashion-mnist")


def commands(program: str) -> list[tuple[str, ...]]:
    """Without repetitions, and without those that only print the configuration."""
    named = {
        tuple(words[1:])
        for page in (ROOT / "README.md", *PAGES)
        for block in blocks_of(page)
        if block.language == "bash"
        for words in block.commands
        if words[0] == program
    }
    return sorted(each for each in named if not {"--help", "--cfg"} & set(each))


@pytest.mark.parametrize("overrides", commands("boa-train"), ids=" ".join)
def test_a_training_that_is_named_trains(overrides: tuple[str, ...], tmp_path: Path) -> None:
    if "experiment=fashion_mnist" in overrides and not CLOTHES.is_dir():
        pytest.skip("needs Debian's package dataset-fashion-mnist")
    printed = run("boa-train", *overrides, *SHORT, folder=tmp_path)
    assert "test accuracy: " in printed


@pytest.mark.parametrize(
    "arguments", [each for each in commands("boa") if each[0] == "doctor"], ids=" ".join
)
def test_an_examination_that_is_named_examines(arguments: tuple[str, ...], tmp_path: Path) -> None:
    assert "torch" in run("boa", *arguments, folder=tmp_path, codes=(0, 1))


def run(program: str, *arguments: str, folder: Path, codes: tuple[int, ...] = (0,)) -> str:
    here = str(Path(sys.executable).with_name(program))
    return command_output([here, *arguments], cwd=folder, codes=codes)
