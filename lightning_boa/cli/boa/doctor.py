"""`boa doctor`: what the machine and the process group are like, and what will hold boa back."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Annotated

import typer
from rich.console import Console

from lightning_boa.cli.boa.arguments import JsonOption, option
from lightning_boa.cli.doctor.examination import (
    Looks,
    ThisMachine,
    examination_of,
    look_at_machine,
)
from lightning_boa.cli.doctor.facts import BACKENDS, Accelerators, Examination, Group
from lightning_boa.cli.doctor.launches import Launch, launch_of
from lightning_boa.cli.doctor.meeting import UnreachableError
from lightning_boa.cli.doctor.tables import show
from lightning_boa.cli.options import number, whole_number
from lightning_boa.errors import OptionError

FAILURE_FOUND = 1
RANKS_ON_THE_PROCESSOR = 2
MOST_RANKS = 64
A_DAY = 86_400
GROUP = "Process group"


def doctor(
    ranks: Annotated[
        str | None,
        option(
            "--ranks",
            metavar="COUNT",
            panel=GROUP,
            help="Ranks to start, by default one per device, or two without devices.",
        ),
    ] = None,
    timeout: Annotated[
        str,
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            help="How long the ranks may take.",
            rich_help_panel=GROUP,
        ),
    ] = "30",
    group: Annotated[
        bool,
        typer.Option(
            "--group/--no-group",
            help="Starts real ranks that exchange messages.",
            rich_help_panel=GROUP,
        ),
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Looks at devices, links, versions and a process group, and says what will hold boa back.

    Under torchrun or srun it examines that launch, and rank 0 prints for all. It exits with 1 where it finds a problem.
    """
    seconds = number("--timeout", _read_as(float, timeout), least=1, below=A_DAY)
    wanted = None
    if ranks is not None:
        wanted = whole_number("--ranks", _read_as(int, ranks), least=1, most=MOST_RANKS)
    with Console(stderr=True, quiet=as_json).status("Looking at the machine") as status:
        try:
            examination = _examine(
                ThisMachine(),
                wanted,
                seconds if group else None,
                lambda what: status.update(f"Looking at: {what}"),
            )
        except UnreachableError as error:
            print(f"boa: {error}", file=sys.stderr)
            raise typer.Exit(FAILURE_FOUND) from None
    if examination is None:
        return
    if as_json:
        print(json.dumps(_plain(examination), indent=2, ensure_ascii=False))
    else:
        show(examination, Console())
    if examination.has_problem:
        raise typer.Exit(FAILURE_FOUND)


def _read_as(kind: Callable[[str], float], text: str) -> float | str:
    """The number that was typed, or the text where it is none."""
    try:
        return kind(text)
    except ValueError:
        return text


def _examine(
    looks: Looks, ranks: int | None, seconds: float | None, say: Callable[[str], None]
) -> Examination | None:
    """None on the ranks of a launch that have nothing to print."""
    say("torch")
    launch = launch_of(looks.environment)
    if launch is not None and ranks is not None:
        raise OptionError(
            f"--ranks: expected none in a launch of {launch.ranks} ranks, got {ranks}; its own ranks are examined."
        )
    if launch is not None and launch.rank > 0:
        if seconds is not None:
            _of_launch(launch, seconds, "", say)
        return None
    accelerators = looks.accelerators()
    here = ranks or _default_ranks(accelerators)
    backend = _backend(accelerators, here)
    found: Group | None = None
    if seconds is not None and launch is not None:
        found = _of_launch(launch, seconds, backend, say)
    elif seconds is not None:
        from lightning_boa.cli.doctor.preflight import group_of_own_ranks

        found = group_of_own_ranks(here, seconds, backend, say)
    machine = look_at_machine(looks, say)
    if launch is not None and found is not None:
        here = sum(facts.host == machine.host for facts in found.ranks)
    return examination_of(machine, found, max(1, here))


def _of_launch(
    launch: Launch, seconds: float, backend: str, say: Callable[[str], None]
) -> Group | None:
    from lightning_boa.cli.doctor.preflight import group_of_launch

    return group_of_launch(launch, seconds, backend, say)


def _default_ranks(accelerators: Accelerators) -> int:
    return len(accelerators.devices) or RANKS_ON_THE_PROCESSOR


def _backend(accelerators: Accelerators, ranks: int) -> str:
    devices = accelerators.devices
    backend = BACKENDS.get(devices[0].kind, "gloo") if devices else "gloo"
    if backend != "gloo" and ranks > len(devices):
        raise OptionError(
            f"--ranks: expected at most {len(devices)}, one per device, got {ranks}; two ranks cannot share a device."
        )
    return backend


def _plain(examination: Examination) -> object:
    import msgspec

    return msgspec.to_builtins(examination)
