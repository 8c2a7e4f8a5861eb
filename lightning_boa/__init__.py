"""Exact synchronous training on mixed GPUs, as fast as the devices allow: `Trainer(strategy="boa")`.

Importing this package registers the strategies; nothing else has to change in a script.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from lightning_boa import registration
from lightning_boa.planning import (
    BatchPlan,
    InPasses,
    LinearTime,
    MeasuredAllReduce,
    RingAllReduce,
    TableTime,
    WorkerSet,
    choose_workers,
    plan_batches,
)

if TYPE_CHECKING:
    from lightning_boa.for_pytorch_lightning import (
        AsynchronousStrategy,
        BackupWorkersStrategy,
        BoaCallback,
        BoaStrategy,
        EmulatedCluster,
        LbBspStrategy,
        ParameterServerStrategy,
        ProportionalStrategy,
    )
    from lightning_boa.strategies.gathering import gather_rows

__all__ = [
    "AsynchronousStrategy",
    "BackupWorkersStrategy",
    "BatchPlan",
    "BoaCallback",
    "BoaStrategy",
    "EmulatedCluster",
    "InPasses",
    "LbBspStrategy",
    "LinearTime",
    "MeasuredAllReduce",
    "ParameterServerStrategy",
    "ProportionalStrategy",
    "RingAllReduce",
    "TableTime",
    "WorkerSet",
    "choose_workers",
    "gather_rows",
    "plan_batches",
]

_FOR_A_LIGHTNING = (
    "AsynchronousStrategy",
    "BackupWorkersStrategy",
    "BoaCallback",
    "BoaStrategy",
    "DDPStrategy",  # Lightning's own, for the files of conf/shared
    "EmulatedCluster",
    "LbBspStrategy",
    "ParameterServerStrategy",
    "ProportionalStrategy",
)
_NEEDS_TORCH = {"gather_rows": "lightning_boa.strategies.gathering"}

try:
    __version__ = version("lightning-boa")
except PackageNotFoundError:
    __version__ = "0+uninstalled"

registration.register_strategies()


def __getattr__(name: str) -> Any:
    if name in _FOR_A_LIGHTNING:
        return getattr(registration.classes(), name)
    if name in _NEEDS_TORCH:
        return getattr(import_module(_NEEDS_TORCH[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_FOR_A_LIGHTNING, *_NEEDS_TORCH])
