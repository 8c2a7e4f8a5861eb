"""lightning-boa's classes for `lightning.pytorch`."""

from __future__ import annotations

from lightning.pytorch import Callback
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher
from typing_extensions import override

from lightning_boa.baselines.asynchronous import AsynchronousBehaviour
from lightning_boa.baselines.by_rows import LbBspBehaviour, ProportionalBehaviour
from lightning_boa.baselines.first_gradients import (
    BackupWorkersBehaviour,
    ParameterServerBehaviour,
)
from lightning_boa.callbacks import BoaCallbackBehaviour
from lightning_boa.emulation import EmulatedClusterBehaviour
from lightning_boa.strategies import BoaBehaviour, HandsBackResults
from lightning_boa.wrong_lightning import let_others_ask

__all__ = [
    "AsynchronousStrategy",
    "BackupWorkersStrategy",
    "BoaCallback",
    "BoaStrategy",
    "EmulatedCluster",
    "LbBspStrategy",
    "ParameterServerStrategy",
    "ProportionalStrategy",
]


class BoaCallback(BoaCallbackBehaviour, Callback):
    __doc__ = BoaCallbackBehaviour.__doc__


class EmulatedCluster(EmulatedClusterBehaviour, Callback):
    __doc__ = EmulatedClusterBehaviour.__doc__


class BoaLauncher(HandsBackResults, _MultiProcessingLauncher):
    __doc__ = HandsBackResults.__doc__


class BoaStrategy(BoaBehaviour, DDPStrategy):
    __doc__ = BoaBehaviour.__doc__
    callback_class = BoaCallback

    @override
    def _configure_launcher(self) -> None:
        if self._start_method == "popen":
            super()._configure_launcher()
        else:
            self._launcher = BoaLauncher(self, start_method=self._start_method)


class ProportionalStrategy(ProportionalBehaviour, BoaStrategy):
    __doc__ = ProportionalBehaviour.__doc__


class LbBspStrategy(LbBspBehaviour, BoaStrategy):
    __doc__ = LbBspBehaviour.__doc__


class ParameterServerStrategy(ParameterServerBehaviour, DDPStrategy):
    __doc__ = ParameterServerBehaviour.__doc__


class BackupWorkersStrategy(BackupWorkersBehaviour, DDPStrategy):
    __doc__ = BackupWorkersBehaviour.__doc__


class AsynchronousStrategy(AsynchronousBehaviour, DDPStrategy):
    __doc__ = AsynchronousBehaviour.__doc__


for strategy in (
    BoaStrategy,
    ParameterServerStrategy,
    BackupWorkersStrategy,
    AsynchronousStrategy,
):
    let_others_ask(strategy)
