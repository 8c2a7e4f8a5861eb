"""The devices a run trains on: the machine's own, or emulated ones on its processor."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from lightning_boa.cli.devices import Device, devices_of
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


class EmulatedDevices:
    """Emulated devices, one process each on this machine's processor; fewer ranks take the first ones.

    ``latency`` is that of an empty message between them, in seconds. Steps and messages take ``times`` times as long as
    is given.
    """

    def __init__(
        self,
        devices: Sequence[Mapping[str, object]],
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
        self.devices = tuple(
            device.slowed(times) for device in devices_of(devices, "cluster.devices")
        )
        self._seconds_per_sample = [
            _seconds_per_sample(rank, device) for rank, device in enumerate(self.devices)
        ]
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
        ranks = self.devices_for(requested)
        present = self.devices[:ranks]
        return [
            EmulatedCluster(
                seconds_per_sample=self._seconds_per_sample[:ranks],
                overhead=[device.overhead for device in present],
                floor=[device.floor for device in present],
                names=[device.name for device in present],
                throttle={
                    rank: device.throttle for rank, device in enumerate(present) if device.throttle
                },
                rows_at_once=[device.rows_at_once for device in present],
                bandwidth=[device.bandwidth for device in present],
                latency=self.latency,
            )
        ]


def _seconds_per_sample(rank: int, device: Device) -> float:
    if device.seconds_per_sample is None or device.fails_at is not None:
        raise OptionError(
            f"cluster.devices[{rank}]: expected seconds_per_sample and no fails_at, since an emulated device has the "
            f"times of a line and does not fail, got {device.name} with others; boa plan and boa simulate take them."
        )
    return device.seconds_per_sample
