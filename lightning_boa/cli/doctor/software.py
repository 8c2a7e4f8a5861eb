"""Versions, and in which Lightning the strategy is known."""

from __future__ import annotations

import platform
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from typing import Any

from packaging.requirements import Requirement

from lightning_boa.cli.doctor.facts import LightningPackage, Package, Software
from lightning_boa.wrong_lightning import CLASSES_FOR

TESTED = {
    "torch": "2.13.0",
    "pytorch-lightning": "2.6.6",
    "lightning": "2.6.6",
    "torchmetrics": "1.9.0",
}
_OURS = "lightning-boa"


def read_software(torch: Any) -> Software:
    """What is installed; imports each Lightning, which takes some seconds where it has not been imported."""
    ranges = _accepted_ranges()
    return Software(
        python=platform.python_version(),
        packages=tuple(
            _package(name, ranges) for name in (_OURS, *TESTED) if installed_version(name)
        ),
        lightnings=tuple(
            _lightning(name)
            for name in CLASSES_FOR
            if find_spec(name.partition(".")[0]) is not None
        ),
        cuda=str(torch.version.cuda or ""),
        nccl=_nccl(torch),
    )


def installed_version(name: str) -> str:
    """The version of a distribution, "" where it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _accepted_ranges() -> dict[str, Requirement]:
    try:
        lines = requires(_OURS) or []
    except PackageNotFoundError:
        lines = []
    wanted = [Requirement(line) for line in lines]
    return {each.name.lower().replace("_", "-"): each for each in wanted if each.specifier}


def _package(name: str, ranges: dict[str, Requirement]) -> Package:
    installed = installed_version(name)
    wanted = ranges.get(name)
    return Package(
        name,
        installed,
        "" if wanted is None else str(wanted.specifier),
        wanted is None or wanted.specifier.contains(installed, prereleases=True),
        TESTED.get(name, ""),
    )


def _lightning(name: str) -> LightningPackage:
    try:
        registry: Any = import_module(f"{name}.strategies").StrategyRegistry
    except Exception as error:
        said = str(error).strip().partition("\n")[0]
        return LightningPackage(name, False, f"{type(error).__name__}: {said}")
    return LightningPackage(name, "boa" in registry)


def _nccl(torch: Any) -> str:
    if torch.version.cuda is None or not torch.distributed.is_nccl_available():
        return ""
    found = torch.cuda.nccl.version()
    return ".".join(map(str, found)) if isinstance(found, tuple) else str(found)
