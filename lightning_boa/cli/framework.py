"""The Lightning package the command uses: pytorch_lightning where it is installed, else lightning.pytorch.

conf/ names these classes, never one of the two packages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    from pytorch_lightning.strategies import DDPStrategy

    from lightning_boa.for_pytorch_lightning import (
        AsynchronousStrategy,
        BackupWorkersStrategy,
        BoaStrategy,
        EmulatedCluster,
        LbBspStrategy,
        ParameterServerStrategy,
        ProportionalStrategy,
    )
else:
    try:
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
        from pytorch_lightning.strategies import DDPStrategy

        from lightning_boa.for_pytorch_lightning import (
            AsynchronousStrategy,
            BackupWorkersStrategy,
            BoaStrategy,
            EmulatedCluster,
            LbBspStrategy,
            ParameterServerStrategy,
            ProportionalStrategy,
        )
    except ModuleNotFoundError:
        from lightning.fabric.utilities.exceptions import MisconfigurationException
        from lightning.pytorch import (
            Callback,
            LightningDataModule,
            LightningModule,
            Trainer,
            seed_everything,
        )
        from lightning.pytorch.callbacks import ModelCheckpoint
        from lightning.pytorch.loggers import CSVLogger
        from lightning.pytorch.strategies import DDPStrategy

        from lightning_boa.for_lightning import (
            AsynchronousStrategy,
            BackupWorkersStrategy,
            BoaStrategy,
            EmulatedCluster,
            LbBspStrategy,
            ParameterServerStrategy,
            ProportionalStrategy,
        )

__all__ = [
    "AsynchronousStrategy",
    "BackupWorkersStrategy",
    "BoaStrategy",
    "CSVLogger",
    "Callback",
    "DDPStrategy",
    "EmulatedCluster",
    "LbBspStrategy",
    "LightningDataModule",
    "LightningModule",
    "MisconfigurationException",
    "ModelCheckpoint",
    "ParameterServerStrategy",
    "ProportionalStrategy",
    "Trainer",
    "seed_everything",
]
