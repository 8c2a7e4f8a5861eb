"""Devices in the simulator."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lightning_boa.cli.devices import Device
from lightning_boa.simulation import Cluster, Links


def simulated_cluster(
    devices: Sequence[Device],
    gradient_bytes: float,
    *,
    latency: float,
    noise: float = 0.0,
    restart_seconds: float = 0.0,
    server_bandwidth: float = math.inf,
) -> Cluster:
    """The cluster of ``devices`` that train a model with so many bytes of gradients; see `Cluster` and `Links`."""
    return Cluster(
        tuple(device.time_model for device in devices),
        noise=noise,
        throttle={
            worker: device.throttle for worker, device in enumerate(devices) if device.throttle
        },
        failures={
            worker: device.fails_at
            for worker, device in enumerate(devices)
            if device.fails_at is not None
        },
        restart_seconds=restart_seconds,
        links=Links(
            gradient_bytes, [device.bandwidth for device in devices], latency, server_bandwidth
        ),
    )
