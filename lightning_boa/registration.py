"""Makes strategy="boa" known to every Lightning that the script imports, without importing any."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import wrapt

from lightning_boa.wrong_lightning import CLASSES_FOR

START_METHODS = {
    "boa": "popen",
    "boa_spawn": "spawn",
    "boa_fork": "fork",
    "boa_notebook": "fork",
}


def register_strategies() -> None:
    """Register the strategies in each Lightning as soon as it is imported."""
    for package in CLASSES_FOR:
        wrapt.register_post_import_hook(_on_import, f"{package}.strategies")


def classes() -> ModuleType:
    """Our classes for the Lightning that the script has imported first, else for one that is installed.

    Raises:
        ImportError: neither pytorch-lightning nor lightning is installed.
    """
    for name in sys.modules:
        if name in CLASSES_FOR:
            return import_module(CLASSES_FOR[name])
    for package, module in CLASSES_FOR.items():
        if find_spec(package.partition(".")[0]) is not None:
            return import_module(module)
    raise ImportError(
        "lightning-boa needs pytorch-lightning or lightning, and found neither. Install one of them:"
        " pip install pytorch-lightning"
    )


def _on_import(strategies: ModuleType) -> None:
    package = strategies.__name__.removesuffix(".strategies")

    def create(**options: Any) -> Any:
        return import_module(CLASSES_FOR[package]).BoaStrategy(**options)

    registry = strategies.StrategyRegistry
    for name, start_method in START_METHODS.items():
        description = f"each rank's share of the batch fits its speed (start method {start_method})"
        registry.register(
            name, create, description=description, override=True, start_method=start_method
        )
        for finds in (False, True):
            registry.register(
                f"{name}_find_unused_parameters_{str(finds).lower()}",
                create,
                description=f"{description}, find_unused_parameters={finds}",
                override=True,
                start_method=start_method,
                find_unused_parameters=finds,
            )
