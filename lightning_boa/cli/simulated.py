"""Emulated devices in the simulator."""

from __future__ import annotations

from lightning_boa.cli.clusters import EmulatedDevice, EmulatedDevices
from lightning_boa.planning import InPasses, LinearTime, TimeModel
from lightning_boa.simulation import Cluster, Links


def simulated_cluster(emulated: EmulatedDevices, gradient_bytes: int) -> Cluster:
    """The cluster whose simulated steps last as long as the emulation of a model with so many bytes of gradients says.

    A device that holds fewer rows than its share runs it in several passes.
    """
    devices = emulated.devices
    return Cluster(
        tuple(_time_model(device) for device in devices),
        throttle={
            worker: device.throttle
            for worker, device in enumerate(devices)
            if device.throttle is not None
        },
        links=Links(gradient_bytes, [device.bandwidth for device in devices], emulated.latency),
    )


def _time_model(device: EmulatedDevice) -> TimeModel:
    line = LinearTime(device.overhead, device.seconds_per_sample, device.floor)
    return line if device.rows_at_once is None else InPasses(line, device.rows_at_once)
