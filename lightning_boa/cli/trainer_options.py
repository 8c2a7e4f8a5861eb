"""Checks what the command line says of the Trainer before any rank is started."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lightning_boa.cli.framework import MisconfigurationException, Trainer
from lightning_boa.cli.options import whole_number, yes_or_no
from lightning_boa.errors import OptionError

ALL_DEVICES = -1
_LEAST = {
    "accumulate_grad_batches": 1,
    "check_val_every_n_epoch": 1,
    "log_every_n_steps": 0,
    "max_epochs": -1,
    "max_steps": -1,
    "min_epochs": 0,
    "min_steps": 0,
    "num_nodes": 1,
    "num_sanity_val_steps": -1,
}
_SWITCHES = ("enable_checkpointing", "enable_model_summary", "enable_progress_bar")


def check_trainer_options(options: Mapping[str, Any]) -> None:
    """Refuses what the Trainer would take, or refuse in words of its own.

    Raises:
        OptionError: the first option of the wrong kind or range.
    """
    for name, least in _LEAST.items():
        if options.get(name) is not None:
            whole_number(f"trainer.{name}", options[name], least=least)
    for name in _SWITCHES:
        if options.get(name) is not None:
            yes_or_no(f"trainer.{name}", options[name])
    if "devices" in options:
        _check_devices(options["devices"])
    logger = options.get("logger")
    if logger is not None and not isinstance(logger, (bool, Mapping)):
        raise OptionError(
            f"trainer.logger: expected false or a group with _target_, got {logger!r}."
        )


def new_trainer(make: Callable[..., Trainer], **parts: Any) -> Trainer:
    """The Trainer; what its constructor refuses is a mistake in one of its options.

    Raises:
        OptionError: what the constructor said.
    """
    try:
        return make(**parts)
    except Exception as error:
        cause = error.__cause__ or error
        refused = (ValueError, TypeError, ModuleNotFoundError, MisconfigurationException)
        if isinstance(cause, refused) and not isinstance(cause, OptionError):
            raise OptionError(f"trainer: {' '.join(str(cause).split())}") from error
        raise


def _check_devices(devices: Any) -> None:
    numbers = devices.split(",") if isinstance(devices, str) else devices
    if devices == "auto" or devices == ALL_DEVICES or _is_count(devices):
        return
    if isinstance(numbers, Sequence) and numbers and all(map(_is_index, numbers)):
        return
    raise OptionError(
        f"trainer.devices: expected auto, a whole number of at least 1, {ALL_DEVICES} for all, or a list of devices'"
        f" numbers, got {devices!r}."
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_index(value: Any) -> bool:
    return str(value).strip().isdecimal() and not isinstance(value, bool)
