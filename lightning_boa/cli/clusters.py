"""The devices a run trains on: the machine's own, or emulated ones on its processor."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from lightning_boa.cli.framework import Callback, EmulatedCluster
from lightning_boa.cli.options import START_METHODS, number, one_of, whole_number
from lightning_boa.errors import OptionError


class Cluster(Protocol):
    def prepare_process(self) -> None:
        """Called once, before anything computes."""

    def devices_for(self, requested: object) -> object:
        """What the trainer's argument `devices` becomes."""

    def callbacks(self, requested: object) -> list[Callback]:
        """The callbacks that make the devices as fast as the cluster says."""


class RealDevices:
    """The devices this machine really has."""

    def __init__(self, accelerator: str = "auto", start_method: str = "popen") -> None:
        self.accelerator = accelerator
        self.start_method = one_of("cluster.start_method", start_method, START_METHODS)

    def prepare_process(self) -> None:
        return

    def devices_for(self, requested: object) -> object:
        return requested

    def callbacks(self, requested: object) -> list[Callback]:
        return []


class EmulatedDevice:
    """A device whose training step lasts at least max(floor, overhead + rows x seconds_per_sample) seconds.

    ``throttle`` multiplies them by a factor from a step on: {step: factor}. ``bandwidth`` is that of its link to the
    others, in bytes per second. ``rows_at_once`` are the most rows that its memory holds.
    """

    def __init__(
        self,
        name: str,
        seconds_per_sample: float,
        overhead: float = 0.0,
        floor: float = 0.0,
        throttle: Mapping[int, float] | None = None,
        bandwidth: float = math.inf,
        rows_at_once: int | None = None,
    ) -> None:
        self.name = str(name)
        self.seconds_per_sample = number(
            "cluster.devices.seconds_per_sample", seconds_per_sample, above=0
        )
        self.overhead = number("cluster.devices.overhead", overhead, least=0)
        self.floor = number("cluster.devices.floor", floor, least=0)
        self.throttle = throttle
        self.rows_at_once = (
            None
            if rows_at_once is None
            else whole_number("cluster.devices.rows_at_once", rows_at_once, least=1)
        )
        self.bandwidth = (
            bandwidth
            if bandwidth == math.inf
            else number("cluster.devices.bandwidth", bandwidth, above=0)
        )

    def slowed(self, times: float) -> EmulatedDevice:
        """The device that takes so many times as long, with a link that does too."""
        return EmulatedDevice(
            self.name,
            self.seconds_per_sample * times,
            self.overhead * times,
            self.floor * times,
            self.throttle,
            self.bandwidth / times,
            self.rows_at_once,
        )


class EmulatedDevices:
    """Emulated devices, one process each on this machine's processor; fewer ranks take the first ones.

    ``latency`` is that of an empty message between them, in seconds. Steps and messages take ``times`` times as long as
    is given.
    """

    def __init__(
        self,
        devices: Sequence[dict[str, object]],
        accelerator: str = "cpu",
        start_method: str = "fork",
        latency: float = 0.0,
        times: float = 1.0,
    ) -> None:
        if not devices:
            raise OptionError(
                "cluster.devices: expected at least one device, got an empty list; "
                "cluster=none takes the real ones."
            )
        number("cluster.times", times, above=0)
        self.devices = tuple(_device(values).slowed(times) for values in devices)
        self.latency = times * number("cluster.latency", latency, least=0)
        self.accelerator = one_of("cluster.accelerator", accelerator, ("cpu",))
        self.start_method = one_of("cluster.start_method", start_method, START_METHODS)

    def prepare_process(self) -> None:
        """One thread for each device: they share a processor, and a forked child hangs in OpenMP where its
        parent has used a pool of threads."""
        os.environ["OMP_NUM_THREADS"] = "1"
        torch.set_num_threads(1)

    def devices_for(self, requested: object) -> int:
        if requested == "auto":
            return len(self.devices)
        ranks = whole_number("trainer.devices", requested, least=1)
        if ranks > len(self.devices):
            raise OptionError(
                f"trainer.devices: the emulated cluster has {len(self.devices)} devices, got {ranks}; "
                "ask for fewer, or list more under cluster.devices."
            )
        return ranks

    def callbacks(self, requested: object) -> list[Callback]:
        present = self.devices[: self.devices_for(requested)]
        return [
            EmulatedCluster(
                seconds_per_sample=[device.seconds_per_sample for device in present],
                overhead=[device.overhead for device in present],
                floor=[device.floor for device in present],
                names=[device.name for device in present],
                throttle={
                    rank: device.throttle
                    for rank, device in enumerate(present)
                    if device.throttle is not None
                },
                rows_at_once=[device.rows_at_once for device in present],
                bandwidth=[device.bandwidth for device in present],
                latency=self.latency,
            )
        ]


def _device(values: dict[str, object]) -> EmulatedDevice:
    try:
        return EmulatedDevice(**values)  # type: ignore[arg-type]
    except TypeError as error:
        raise OptionError(
            "cluster.devices: expected name, seconds_per_sample and, if wanted, overhead, floor, throttle, "
            f"bandwidth and rows_at_once, got {values!r}."
        ) from error
