"""The ways to train together that `boa simulate` knows, by the names of conf/strategy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lightning_boa.cli.checked import nearest
from lightning_boa.errors import OptionError
from lightning_boa.simulation import (
    Asynchronous,
    BackupWorkers,
    Boa,
    EqualSplit,
    LbBsp,
    ParameterServer,
    Policy,
    Proportional,
)

OPTION = "--policies"
EQUAL = "ddp"
BACKUP_WORKERS = "backup_workers"


@dataclass(frozen=True)
class _Kind:
    usual: Callable[[], Policy]
    with_number: Callable[[int], Policy] | None = None


_KINDS = {
    EQUAL: _Kind(EqualSplit),
    "parameter_server": _Kind(ParameterServer),
    BACKUP_WORKERS: _Kind(lambda: BackupWorkers(1), BackupWorkers),
    "asynchronous": _Kind(Asynchronous, Asynchronous),
    "proportional": _Kind(Proportional, Proportional),
    "lb_bsp": _Kind(LbBsp, LbBsp),
    "boa": _Kind(Boa),
}
NAMES = tuple(_KINDS)


def policies_of(text: str) -> dict[str, Policy]:
    """The policies of "ddp,boa,backup_workers=2", in that order.

    A number is that of backup workers, of steps that an asynchronous worker may be ahead, of steps that are measured
    for proportional shares, or of rows that LB-BSP moves.

    Raises:
        OptionError: an unknown name, one that stands twice, a number that it does not take.
    """
    found: dict[str, Policy] = {}
    for part in (each.strip() for each in text.split(",")):
        name, equals, number = part.partition("=")
        kind = _KINDS.get(name)
        if kind is None:
            raise OptionError(
                f"{OPTION}: expected one or more of {', '.join(NAMES)}, got {name!r}{nearest(name, NAMES)}"
            )
        if part in found:
            raise OptionError(f"{OPTION}: expected each policy once, got {part} twice.")
        found[part] = _with_number(name, kind, number) if equals else kind.usual()
    return found


def _with_number(name: str, kind: _Kind, number: str) -> Policy:
    if kind.with_number is None:
        raise OptionError(f"{OPTION}: expected {name} without a number, got {name}={number}.")
    if not number.isdecimal() or len(number) > 9:
        raise OptionError(
            f"{OPTION}: expected a whole number after {name}=, as in {name}=2, got {number!r}."
        )
    try:
        return kind.with_number(int(number))
    except OptionError as error:
        raise OptionError(f"{OPTION} {name}={number}: {error}") from error
