"""Where `boa plan` and `boa simulate` get devices from: a file, a profile, a shipped cluster, the command line."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from lightning_boa.cli.boa.files import read_values
from lightning_boa.cli.boa.typed_devices import SYNTAX, typed_devices
from lightning_boa.cli.checked import checked, nearest, shown
from lightning_boa.cli.devices import (
    FIELDS,
    Bandwidth,
    Device,
    Factor,
    Seconds,
    devices_of,
)
from lightning_boa.errors import OptionError
from lightning_boa.planning import Profile

EXPECTED = "a list of devices or a profile"
RANKS_NAMED = 8


@dataclass(frozen=True)
class Member:
    """A device of a set, and the least and most rows that it may have (None: any number)."""

    device: Device
    least: int = 1
    most: int | None = None


@dataclass(frozen=True)
class Source:
    """Devices, and what is known of their step.

    Args:
        name: of the file, the cluster, or "typed devices".
        members: in the order of their ranks.
        global_batch_size: rows of a step; None where the source does not tell.
        granularity: shares are multiples of it.
        parks: a device without rows takes no time.
        latency: of an empty message, in seconds.
        restart_seconds: what it costs to go on without a device that has failed.
        server_bandwidth: of the link of a parameter server, in bytes per second.
        plan_in_use: the rows of each device in the plan of the training that left the source; None where there is
            none, or not one for all of these devices.
        note: a sentence about what was left out or changed; empty else.
    """

    name: str
    members: tuple[Member, ...]
    global_batch_size: int | None = None
    granularity: int = 1
    parks: bool = False
    latency: float = 0.0
    restart_seconds: float = 0.0
    server_bandwidth: float = math.inf
    plan_in_use: tuple[int, ...] | None = None
    note: str = ""

    @property
    def devices(self) -> tuple[Device, ...]:
        return tuple(member.device for member in self.members)


class _File(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A file of devices; what Hydra needs of it besides is left alone."""

    devices: Any
    latency: Seconds = 0.0
    times: Factor = 1.0
    restart_seconds: Seconds = 0.0
    server_bandwidth: Bandwidth = math.inf
    target: str = msgspec.field(name="_target_", default="")
    accelerator: str = "cpu"
    start_method: Annotated[str, Meta(min_length=1)] = "fork"


_FILE_FIELDS = (*FIELDS, *(name for name in _File.__struct_encode_fields__))


def source_of(given: str | None, typed: Sequence[str], option: str = "--device") -> Source:
    """The one source that is given.

    Args:
        given: a path or the name of a cluster that is shipped.
        typed: devices as the command line gives them, see `typed_devices`.

    Raises:
        OptionError: none or both, an unknown name, a file that is neither of those read here.
    """
    if (given is None) == (not typed):
        came = "none" if given is None else f"{given} and {option}"
        raise OptionError(
            "devices: expected one source, a file (devices.yaml, profile.json), one of the clusters "
            f"{', '.join(shipped_clusters())}, or {option}, got {came}."
        )
    return _typed(option, typed) if given is None else _named(given)


def shipped_clusters() -> Mapping[str, Path]:
    """The clusters of emulated devices that the package brings, by name."""
    folder = Path(str(resources.files("lightning_boa.conf"))) / "train" / "cluster"
    return {path.stem: path for path in sorted(folder.glob("*.yaml")) if path.stem != "none"}


def _named(given: str) -> Source:
    shipped = shipped_clusters()
    if given in shipped:
        return _from_file(shipped[given], given)
    if not given.strip():
        raise OptionError(f"devices: expected a file or one of {', '.join(shipped)}, got no name.")
    path = Path(given)
    if not path.exists() and path.name == given and not path.suffix:
        raise OptionError(
            f"devices: expected a file or one of {', '.join(shipped)}, got {given!r}, and there is no such file"
            f"{nearest(given, shipped)}"
        )
    return _from_file(path, given)


def _from_file(path: Path, name: str) -> Source:
    text, values = read_values(path, EXPECTED)
    if isinstance(values, dict) and "made_for" in values:
        return _from_profile(Profile.from_json(text, str(path)), name)
    if isinstance(values, dict) and "file_version" in values:
        raise OptionError(
            f"{path}: expected {EXPECTED}, got the record of a training, which boa report reads; a training with "
            'profile="profile.json" leaves a profile.'
        )
    if not isinstance(values, dict):
        came = "an empty file" if values is None else shown(values)
        raise OptionError(f"{path}: expected the field devices with a list of devices, got {came}.")
    file = checked(_File, values, name, _FILE_FIELDS)
    devices = devices_of(file.devices, f"{name}: devices")
    return Source(
        name,
        tuple(Member(device.slowed(file.times)) for device in devices),
        latency=file.latency * file.times,
        restart_seconds=file.restart_seconds,
        server_bandwidth=file.server_bandwidth,
        note=_about_falling_times(devices),
    )


def _about_falling_times(devices: Sequence[Device]) -> str:
    falling = [device.name for device in devices if device.is_falling]
    if not falling:
        return ""
    names = ", ".join(list(dict.fromkeys(falling))[:RANKS_NAMED])
    return (
        f"The measured seconds of {names} fall where rows rise; neighbours are averaged until they do not, since more "
        "rows never take less time here: better measure again."
    )


def _from_profile(profile: Profile, name: str) -> Source:
    made_for, plan = profile.made_for, profile.plan
    caps = plan.rows_per_pass or (None,) * plan.world_size
    whole = made_for.global_batch_size
    members = tuple(
        Member(
            Device.of_model(device, fit.model, rows_at_once=cap),
            least,
            most if most < whole else None,
        )
        for device, fit, cap, least, most in zip(
            made_for.devices,
            profile.fits,
            caps,
            made_for.min_batch_size,
            made_for.max_batch_size,
            strict=True,
        )
        if fit is not None
    )
    unknown = [str(rank) for rank, fit in enumerate(profile.fits) if fit is None]
    note = (
        f"Left out: rank {', '.join(unknown[:RANKS_NAMED])}, which never had rows, so that nothing is known of its "
        "times; the ranks below are counted without it."
    )
    return Source(
        name,
        members,
        global_batch_size=whole,
        granularity=made_for.granularity,
        parks=made_for.parks,
        plan_in_use=None if unknown else plan.batch_sizes,
        note=note if unknown else "",
    )


def _typed(option: str, typed: Sequence[str]) -> Source:
    given = [typed_devices(option, text) for text in typed]
    names = Counter(devices[0].name for devices in given)
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        raise OptionError(
            f"{option}: expected each name once, got {twice[0]!r} {names[twice[0]]} times; several equal devices are "
            f"typed with their number, {SYNTAX.rpartition(' ')[2]}."
        )
    return Source("typed devices", tuple(Member(each) for devices in given for each in devices))
