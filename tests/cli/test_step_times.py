from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

from lightning_boa.cli.step_times import METRIC, StepTimes


def test_the_median_of_the_epoch_is_logged() -> None:
    ticks = iter([0.0, 1.0, 2.0, 12.0, 13.0])
    module = _train(StepTimes(clock=lambda: next(ticks)), steps=5)
    module.log.assert_called_once_with(METRIC, 1.0, sync_dist=True)


def test_a_step_is_the_updates_that_use_a_global_batch() -> None:
    ticks = iter([0.0, 1.0, 5.0, 5.5, 11.0])
    module = _train(StepTimes(clock=lambda: next(ticks)), steps=5, updates_per_step=2)
    module.log.assert_called_once_with(METRIC, 5.5, sync_dist=True)


def test_an_epoch_of_one_step_has_no_period() -> None:
    assert not _train(StepTimes(clock=lambda: 0.0), steps=1).log.called


def _train(callback: StepTimes, steps: int, **strategy: int) -> Any:
    trainer: Any = SimpleNamespace(strategy=SimpleNamespace(**strategy))
    module = Mock()
    callback.on_train_epoch_start(trainer, module)
    for step in range(steps):
        callback.on_train_batch_end(trainer, module, None, None, step)
    callback.on_train_epoch_end(trainer, module)
    return module
