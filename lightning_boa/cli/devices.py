"""Devices as files and commands describe them: their times, links and memory. Nothing here needs torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from msgspec.structs import asdict, replace

from lightning_boa.cli.checked import checked
from lightning_boa.errors import OptionError
from lightning_boa.planning import InPasses, LinearTime, TableTime, TimeModel

MOST_SECONDS = 1e9
MOST_EQUAL = 100_000

Seconds = Annotated[float, Meta(ge=0, le=MOST_SECONDS)]
SomeSeconds = Annotated[float, Meta(gt=0, le=MOST_SECONDS)]
Count = Annotated[int, Meta(ge=1, le=1_000_000)]
Step = Annotated[int, Meta(ge=0)]
Factor = Annotated[float, Meta(gt=0, le=MOST_SECONDS)]
Bandwidth = Annotated[float, Meta(gt=0)]


class Device(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A device and the seconds of its training step: max(floor, overhead + rows x seconds_per_sample), or what
    ``seconds`` at some ``batch_sizes`` say.

    Args:
        name: what it is called.
        throttle: {step: factor}: from this step on it takes so many times as long.
        bandwidth: of its link to the others, in bytes per second.
        rows_at_once: the most rows that its memory holds; more of them run in several passes.
        fails_at: the step from which on it has no part.
    """

    name: str
    seconds_per_sample: SomeSeconds | None = None
    overhead: Seconds = 0.0
    floor: Seconds = 0.0
    batch_sizes: list[Count] | None = None
    seconds: list[SomeSeconds] | None = None
    throttle: dict[Step, Factor] = {}
    bandwidth: Bandwidth = math.inf
    rows_at_once: Count | None = None
    fails_at: Step | None = None

    def __post_init__(self) -> None:
        if not self.name.strip() or not self.name.isprintable():
            raise ValueError(f"name: expected a text that can be printed, got {self.name!r}.")
        measured = self.batch_sizes is not None and self.seconds is not None
        if measured == (self.seconds_per_sample is not None) or (
            (self.batch_sizes is None) != (self.seconds is None)
        ):
            raise ValueError(
                "expected either seconds_per_sample (with overhead and floor, if wanted) or both batch_sizes and "
                "seconds, as they were measured."
            )
        if measured and (self.overhead or self.floor):
            raise ValueError(
                "overhead and floor belong to seconds_per_sample; measured seconds contain them."
            )
        _ = self.time_model

    @classmethod
    def of_model(cls, name: str, model: TimeModel, **others: Any) -> Device:
        """The device with the times of ``model``, a line or a table."""
        if isinstance(model, TableTime):
            times: dict[str, Any] = {
                "batch_sizes": list(model.batch_sizes),
                "seconds": list(model.seconds_at),
            }
        else:
            assert isinstance(model, LinearTime)
            times = {
                "seconds_per_sample": model.seconds_per_sample,
                "overhead": model.overhead,
                "floor": model.floor,
            }
        return cls(name=name, **times, **others)

    @property
    def is_measured(self) -> bool:
        """Whether its times are a table, and not a line."""
        return self.batch_sizes is not None

    @property
    def is_falling(self) -> bool:
        """Whether more rows were measured to take less time, which its time model evens out."""
        if self.batch_sizes is None or self.seconds is None:
            return False
        rising = [
            seconds for _, seconds in sorted(zip(self.batch_sizes, self.seconds, strict=True))
        ]
        return rising != sorted(rising)

    @property
    def time_model(self) -> TimeModel:
        """Seconds of a share of some rows, in passes where the memory holds fewer of them."""
        one: TimeModel
        if self.batch_sizes is not None and self.seconds is not None:
            one = TableTime(self.batch_sizes, self.seconds)
        else:
            one = LinearTime(self.overhead, self.seconds_per_sample or 0.0, self.floor)
        return one if self.rows_at_once is None else InPasses(one, self.rows_at_once)

    def slowed(self, times: float) -> Device:
        """The device that takes so many times as long, with a link that does too."""
        return replace(
            self,
            seconds_per_sample=self.seconds_per_sample and self.seconds_per_sample * times,
            overhead=self.overhead * times,
            floor=self.floor * times,
            seconds=self.seconds and [each * times for each in self.seconds],
            bandwidth=self.bandwidth / times,
        )


class ListedDevice(Device, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry of a list of devices: ``count`` equal ones."""

    count: Annotated[int, Meta(ge=1, le=MOST_EQUAL)] = 1

    def each(self) -> tuple[Device, ...]:
        """The devices that it stands for."""
        fields = asdict(self)
        return (Device(**{name: fields[name] for name in Device.__struct_fields__}),) * self.count


FIELDS = ListedDevice.__struct_fields__


def devices_of(values: object, place: str) -> tuple[Device, ...]:
    """The devices of a list as it stands in a file.

    Args:
        place: where the list comes from, the beginning of every message.

    Raises:
        OptionError: no list, an empty one, or an entry that is no device.
    """
    if values == []:
        raise OptionError(f"{place}: expected at least one device, got an empty list.")
    entries = checked(list[ListedDevice], with_texts_as_names(values), place, FIELDS)
    return tuple(device for entry in entries for device in entry.each())


def with_texts_as_names(devices: object) -> object:
    """The list with names that are texts, where YAML has read a number: ``name: 3090``."""
    if not isinstance(devices, list):
        return devices
    return [
        {**entry, "name": str(entry["name"])}
        if isinstance(entry, Mapping) and type(entry.get("name")) is int
        else entry
        for entry in devices
    ]
