"""What-if questions: "add=2x3090", "drop=M2000", "add=5090=0.6ms,drop=rank 3"."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lightning_boa.cli.boa.sources import Member
from lightning_boa.cli.boa.typed_devices import counted, typed_devices
from lightning_boa.cli.checked import nearest
from lightning_boa.errors import OptionError

OPTION = "--what-if"
NAMES_LISTED = 12


def applied(
    scenario: str, members: Sequence[Member], newcomers: tuple[int, int | None] = (1, None)
) -> tuple[Member, ...]:
    """The members after the changes of one scenario; ranks and names are those of the present set.

    ``newcomers`` are the least and most rows of a device whose times are typed.

    An added device without times is one of the present set; of several with its name the one that is slowest with an
    equal share of 100 rows each. A dropped one is the last of its name.

    Raises:
        OptionError: another form, a device that is not there, or none that stays.
    """
    dropped: set[int] = set()
    added: list[Member] = []
    for change in scenario.split(","):
        kind, equals, what = change.strip().partition("=")
        if kind not in ("add", "drop") or not equals or not what.strip():
            raise OptionError(
                f"{OPTION}: expected add=DEVICE or drop=DEVICE, several with commas between them, got {scenario!r}."
            )
        if kind == "add":
            added += _added(what, members, newcomers)
        else:
            dropped |= _dropped(what, members, dropped)
    kept = [member for rank, member in enumerate(members) if rank not in dropped]
    if not kept and not added:
        raise OptionError(
            f"{OPTION}: expected a device that stays, got {scenario!r}, which drops all."
        )
    return (*kept, *added)


def _added(what: str, members: Sequence[Member], newcomers: tuple[int, int | None]) -> list[Member]:
    if "=" in what:
        return [Member(device, *newcomers) for device in typed_devices(OPTION, what)]
    count, name = counted(OPTION, what)
    known = [
        members[rank] for rank in _ranks_named(name, members, "or its times, as add=NAME=2.1ms")
    ]
    return [max(known, key=lambda member: float(member.device.time_model.seconds(100)))] * count


def _dropped(what: str, members: Sequence[Member], before: set[int]) -> set[int]:
    by_rank = re.fullmatch(r"\s*rank\s*(\d{1,6})\s*", what)
    if by_rank is not None:
        rank = int(by_rank.group(1))
        if rank >= len(members) or rank in before:
            raise OptionError(
                f"{OPTION}: expected a rank from 0 to {len(members) - 1}, each once, got rank {rank}."
            )
        return {rank}
    count, name = counted(OPTION, what)
    found = [rank for rank in _ranks_named(name, members, "or drop=rank N") if rank not in before]
    if len(found) < count:
        raise OptionError(
            f"{OPTION}: expected at most {len(found)} of {name!r} to drop, got {count}."
        )
    return set(found[-count:])


def _ranks_named(name: str, members: Sequence[Member], otherwise: str) -> list[int]:
    """The ranks of the devices with this name, or with the only name that it is a part of."""
    names = list(dict.fromkeys(member.device.name for member in members))
    words = f" {name.lower()} "
    meant = [each for each in names if each == name]
    meant = meant or [each for each in names if words in f" {each.lower()} "]
    if len(meant) != 1:
        listed = ", ".join([*names[:NAMES_LISTED], *["…"] * (len(names) > NAMES_LISTED)])
        rest = f", which may be {' or '.join(meant)}." if meant else nearest(name, names)
        raise OptionError(
            f"{OPTION}: expected a device of this set ({listed}), {otherwise}, got {name!r}{rest}"
        )
    return [rank for rank, member in enumerate(members) if member.device.name == meant[0]]
