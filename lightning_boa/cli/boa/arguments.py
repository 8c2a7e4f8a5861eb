"""Arguments that `boa plan` and `boa simulate` share, as their help shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import msgspec
import typer

from lightning_boa.cli.boa.fleet import Network
from lightning_boa.cli.boa.quantities import (
    byte_count,
    bytes_per_second,
    parameter_count,
    seconds,
)
from lightning_boa.cli.boa.sources import Member, Source
from lightning_boa.errors import OptionError

BYTES_OF_A_WEIGHT = 4
ROWS_PER_DEVICE = 16

DEVICES = "Devices"
NETWORK = "Network"
OUTPUT = "Output"


def option(*names: str, metavar: str, panel: str, help: str) -> Any:
    """An option of a command that need not be given, with its place in the help."""
    return typer.Option(
        *names, metavar=metavar, rich_help_panel=panel, help=help, show_default=False
    )


SourceArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="SOURCE",
        help="devices.yaml, profile.json of a training, or a cluster that is shipped, such as thesis_8gpu.",
        show_default=False,
    ),
]
DeviceOption = Annotated[
    list[str] | None,
    option(
        "--device",
        "-d",
        metavar="NAME=TIME[+FIXED]",
        panel=DEVICES,
        help="A device by its time per row, and a fixed time per step: 3090=2.1ms, 2x4090=0.9ms+12ms. Repeatable.",
    ),
]
GradientBytesOption = Annotated[
    str | None,
    option(
        "--gradient-bytes",
        metavar="BYTES",
        panel=NETWORK,
        help="Size of all gradients, as in 100MB: communication counts.",
    ),
]
ParametersOption = Annotated[
    str | None,
    option(
        "--parameters",
        metavar="COUNT",
        panel=NETWORK,
        help="The same by the number of weights, 4 bytes each, as in 25M.",
    ),
]
BandwidthOption = Annotated[
    str | None,
    option(
        "--bandwidth",
        metavar="RATE",
        panel=NETWORK,
        help="Of each link that the source does not know, as in 10Gbit/s or 1.25GB/s.",
    ),
]
LatencyOption = Annotated[
    str | None,
    option("--latency", metavar="TIME", panel=NETWORK, help="Of an empty message, as in 20us."),
]
PictureOption = Annotated[
    str | None,
    option(
        "--picture",
        metavar="FILE",
        panel=OUTPUT,
        help='Draws into this file (.png, .svg, .pdf); needs the extra "plot".',
    ),
]
JsonOption = Annotated[
    bool,
    typer.Option(
        "--json", help="Prints one JSON document instead of tables.", rich_help_panel=OUTPUT
    ),
]


def network_of(
    gradient_bytes: str | None, parameters: str | None, latency: str | None, source: Source
) -> Network:
    """What the options say of communication.

    Raises:
        OptionError: both sizes, a latency without either, or a quantity that is none.
    """
    if gradient_bytes is not None and parameters is not None:
        raise OptionError("--gradient-bytes: expected this or --parameters, got both.")
    size = 0.0
    if gradient_bytes is not None:
        size = byte_count("--gradient-bytes", gradient_bytes)
    if parameters is not None:
        size = BYTES_OF_A_WEIGHT * parameter_count("--parameters", parameters)
    if latency is None:
        return Network(size, source.latency)
    empty_message = seconds("--latency", latency)
    _refuse_without_size("--latency", size)
    return Network(size, empty_message)


def linked(
    members: Sequence[Member], bandwidth: str | None, network: Network
) -> tuple[Member, ...]:
    """The members with the bandwidth of ``--bandwidth`` where the source gives none.

    Raises:
        OptionError: a link of unknown bandwidth although communication counts, or one although it does not.
    """
    if bandwidth is None:
        unknown = [each for each in members if not _has_link(each)]
        if unknown and network.gradient_bytes and len(members) > 1:
            raise OptionError(
                "--bandwidth: expected the bandwidth of the links, as in 10Gbit/s, since communication counts, got "
                f"none for {unknown[0].device.name!r}."
            )
        return tuple(members)
    rate = bytes_per_second("--bandwidth", bandwidth)
    _refuse_without_size("--bandwidth", network.gradient_bytes)
    return tuple(
        member
        if _has_link(member)
        else replace(member, device=msgspec.structs.replace(member.device, bandwidth=rate))
        for member in members
    )


def _refuse_without_size(option: str, gradient_bytes: float) -> None:
    if not gradient_bytes:
        raise OptionError(
            f"{option}: expected --gradient-bytes or --parameters above 0 beside it, got neither."
        )


def _has_link(member: Member) -> bool:
    return member.device.bandwidth < float("inf")


def default_rows(source: Source) -> int:
    """The global batch where none is given: the source's, or 16 rows for each device."""
    return source.global_batch_size or ROWS_PER_DEVICE * len(source.members)
