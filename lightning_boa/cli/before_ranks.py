"""Refuses before any rank is started what would end the training later, below what Lightning and ranks print."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning_utilities.core import rank_zero
from omegaconf import DictConfig

from lightning_boa.cli.digits import DigitsData
from lightning_boa.cli.fashion_mnist import FashionMnistData
from lightning_boa.cli.framework import Trainer
from lightning_boa.errors import OptionError
from lightning_boa.reports.whole_file import why_not_written

WITH_ONE_LOADER = (DigitsData, FashionMnistData)


def check_output_places(config: DictConfig) -> None:
    """Refuse a folder of the configuration in which no file can be written; nothing is made yet.

    Raises:
        OptionError: the first such option.
    """
    for option, folder in _folders(config):
        if not isinstance(folder, str) or not folder:
            raise OptionError(f"{option}: expected the path of a folder, got {folder!r}.")
        reason = None if "://" in folder else why_not_written(Path(folder))
        if reason is not None:
            raise OptionError(
                f"{option}: expected a folder in which files can be written, got {folder} ({reason}). Name another one."
            )


def check_known_to_the_strategy(trainer: Trainer, data: object) -> None:
    """Refuse what the strategy knows to be wrong with so many devices and such batches.

    Raises:
        OptionError, PlanError: what each rank would say.
    """
    strategy: Any = trainer.strategy
    if isinstance(data, WITH_ONE_LOADER) and hasattr(strategy, "check_before_ranks"):
        strategy.check_before_ranks(trainer.num_devices * trainer.num_nodes, data.batch_size)


@contextmanager
def lightning_waits() -> Iterator[None]:
    """What Lightning tells comes after the block, and not at all where an error ends it."""
    told: list[logging.LogRecord] = []

    def keep(record: logging.LogRecord) -> bool:
        told.append(record)
        return False

    log = rank_zero.log
    log.addFilter(keep)
    try:
        yield
    finally:
        log.removeFilter(keep)
    for record in told:
        log.handle(record)


def _folders(config: DictConfig) -> Iterator[tuple[str, Any]]:
    yield "output_dir", config.output_dir
    callbacks = [f"callbacks.{name}.dirpath" for name in config.callbacks or ()]
    for option in ("trainer.default_root_dir", "trainer.logger.save_dir", *callbacks):
        folder = _value_of(config, option)
        if folder is not None:
            yield option, folder


def _value_of(config: DictConfig, option: str) -> Any:
    value: Any = config
    for name in option.split("."):
        value = value.get(name) if isinstance(value, DictConfig) else None
    return value
