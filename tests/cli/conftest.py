from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hydra.core.global_hydra import GlobalHydra

pytest.importorskip(
    "sklearn", reason="it sets variables at its first import, which a test must not"
)

BoaTrain = Callable[..., dict[str, Any]]


@pytest.fixture
def boa_train(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> BoaTrain:
    """Runs the command in this process (its ranks are forked) and returns what it wrote into report.json."""
    from lightning_boa.cli.train import main

    def run(*overrides: str) -> dict[str, Any]:
        GlobalHydra.instance().clear()
        arguments = [f"hydra.run.dir={tmp_path}", "trainer.enable_progress_bar=false"]
        monkeypatch.setattr(sys, "argv", ["boa-train", *arguments, *overrides])
        main()
        report: dict[str, Any] = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
        return report

    return run
