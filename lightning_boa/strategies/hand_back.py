"""What the main process learns from rank 0 after spawn, fork and notebook."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from typing_extensions import override

if TYPE_CHECKING:
    from pytorch_lightning.strategies.launchers import _MultiProcessingLauncher as _Base
else:
    _Base = object

KEPT = ("orchestration", "device_names", "fixed_schedule")


class HandsBackResults(_Base):
    """A launcher that returns the plan, the measurements and the devices' names with the trainer's results.

    They travel as bytes, since Lightning would try to move the fields of our frozen values to the CPU.
    """

    @override
    def get_extra_results(self, trainer: Any) -> dict[str, Any]:
        extra = super().get_extra_results(trainer)
        extra["boa"] = pickle.dumps({name: getattr(trainer.strategy, name) for name in KEPT})
        return extra

    @override
    def update_main_process_results(self, trainer: Any, extra: dict[str, Any]) -> None:
        for name, value in pickle.loads(extra.pop("boa")).items():
            setattr(trainer.strategy, name, value)
        super().update_main_process_results(trainer, extra)
