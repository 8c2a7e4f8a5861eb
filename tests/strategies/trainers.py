"""Trainers of either Lightning."""

from __future__ import annotations

from typing import Any


def quiet_trainer(package: Any, **options: Any) -> Any:
    """A trainer on one CPU that prints and writes nothing, but for what `options` say."""
    quiet = {
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return package.Trainer(**{**quiet, **options})
