"""What the main process learns from rank 0 after spawn, fork and notebook."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from typing_extensions import override

if TYPE_CHECKING:
    from pytorch_lightning.strategies.launchers import _MultiProcessingLauncher as _Base
else:
    _Base = object

ENDED_BY_SIGTERM = 143
KEPT = ("orchestration", "device_names", "fixed_schedule", "network", "record_path")


class HandsBackResults(_Base):
    """A launcher that returns the plan, the measurements and the devices' names with the trainer's results.

    They travel as bytes, since Lightning would try to move the fields of our frozen values to the CPU.
    """

    @override
    def _wrapping_function(self, *arguments: Any, **options: Any) -> None:
        """Lightning handles no exception here, and the main process would wait for the result of a rank that exits."""
        try:
            super()._wrapping_function(*arguments, **options)
        except BaseException as exception:
            self._strategy.on_exception(exception)
            if isinstance(exception, SystemExit):
                raise SystemExit(exception.code or ENDED_BY_SIGTERM) from exception
            raise

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
