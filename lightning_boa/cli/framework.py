"""The Lightning package the command uses: pytorch_lightning where it is installed, else lightning.pytorch.

conf/train names these classes, never one of the two packages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = [
    "CSVLogger",
    "Callback",
    "EmulatedCluster",
    "LightningDataModule",
    "LightningModule",
    "MisconfigurationException",
    "ModelCheckpoint",
    "Trainer",
    "seed_everything",
]

if TYPE_CHECKING:
    from lightning_fabric.utilities.exceptions import MisconfigurationException
    from pytorch_lightning import (
        Callback,
        LightningDataModule,
        LightningModule,
        Trainer,
        seed_everything,
    )
    from pytorch_lightning.callbacks import ModelCheckpoint
    from pytorch_lightning.loggers import CSVLogger

    from lightning_boa.for_pytorch_lightning import EmulatedCluster
else:
    from importlib import import_module
    from importlib.util import find_spec

    has_pytorch_lightning = find_spec("pytorch_lightning") is not None
    lightning = "pytorch_lightning" if has_pytorch_lightning else "lightning.pytorch"
    fabric = "lightning_fabric" if has_pytorch_lightning else "lightning.fabric"
    ours = "for_pytorch_lightning" if has_pytorch_lightning else "for_lightning"
    places = {
        "CSVLogger": f"{lightning}.loggers",
        "EmulatedCluster": f"lightning_boa.{ours}",
        "MisconfigurationException": f"{fabric}.utilities.exceptions",
        "ModelCheckpoint": f"{lightning}.callbacks",
    }
    for name in __all__:
        globals()[name] = getattr(import_module(places.get(name, lightning)), name)
