"""The file of a profile is written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from lightning_boa.for_pytorch_lightning import BoaStrategy
from lightning_boa.reports.whole_file import write_whole
from lightning_boa.strategies.saved_profile import installed_software


def test_a_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    for text in ("old", "new"):
        write_whole(path, text)
        assert path.read_text() == text
    assert list(tmp_path.iterdir()) == [path]


def test_the_old_file_stays_where_the_new_one_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "p.json"
    path.write_text("old")

    def fail(self: Path, text: str, **options: Any) -> int:
        self.touch()
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", fail)
        with pytest.raises(OSError, match="no space left"):
            write_whole(path, "new")
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", lambda *paths: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write_whole(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_versions_are_those_of_the_strategys_lightning() -> None:
    import pytorch_lightning as pl
    import torch

    found = installed_software(BoaStrategy)
    assert found["pytorch_lightning"] == pl.__version__
    assert found["torch"] == torch.__version__
    assert found.get("cuda") == torch.version.cuda
    assert "lightning.pytorch" not in found
