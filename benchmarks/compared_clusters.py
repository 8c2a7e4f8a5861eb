"""A cluster of conf/train/cluster on which policies are compared, emulated and simulated."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median

from compared_policies import ComparedPolicy
from hydra import compose, initialize_config_module
from hydra.utils import instantiate
from torch import nn

from lightning_boa import EmulatedCluster, plan_batches, simulation
from lightning_boa.cli.clusters import EmulatedDevices
from lightning_boa.cli.simulated import simulated_cluster
from lightning_boa.emulation import bytes_of

SETTLED = 0.01


@dataclass(frozen=True)
class Prediction:
    """What the simulator says of some steps.

    Args:
        step_seconds: of each.
        dropped_share: of the rows handed out.
        idle_share: of each rank's time.
    """

    step_seconds: tuple[float, ...]
    dropped_share: float
    idle_share: tuple[float, ...]


@dataclass(frozen=True)
class ComparedCluster:
    """Emulated devices and the same in the simulator.

    Args:
        name: of the file in conf/train/cluster.
        devices: emulated.
        rows_per_device: under the equal split.
        gradient_bytes: of the model that is trained.
    """

    name: str
    devices: EmulatedDevices
    rows_per_device: int
    gradient_bytes: int

    @property
    def ranks(self) -> int:
        return len(self.devices.devices)

    @property
    def global_batch_size(self) -> int:
        return self.ranks * self.rows_per_device

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(device.name for device in self.devices.devices)

    @property
    def changes(self) -> tuple[int, ...]:
        """The steps in which a device becomes slower or faster."""
        return tuple(
            sorted(step for device in self.devices.devices for step in device.throttle or ())
        )

    @cached_property
    def simulated(self) -> simulation.Cluster:
        return simulated_cluster(
            self.devices.devices, self.gradient_bytes, latency=self.devices.latency
        )

    @property
    def slowest_seconds(self) -> float:
        """Seconds that the slowest device computes for an equal share."""
        return max(float(m.seconds(self.rows_per_device)) for m in self.simulated.time_models)

    @property
    def optimum_seconds(self) -> float:
        """Seconds of a step under the best split, until all gradients are reduced."""
        plan = plan_batches(self.simulated.time_models, self.global_batch_size)
        assert plan.step_seconds is not None
        reduced = self.simulated.links.reduced_by(range(self.ranks))
        return float(reduced.seconds(plan.step_seconds))

    def updates_per_step(self, policy: ComparedPolicy) -> int:
        """Updates, and batches of the trainer, in which one global batch is used up."""
        return self.ranks if policy.is_asynchronous else 1

    def emulation(self) -> EmulatedCluster:
        """The callback that makes the ranks slow."""
        (callback,) = self.devices.callbacks("auto")
        return callback

    def prediction(
        self, policy: ComparedPolicy, first: int, steps: int, rest: float = 0.0
    ) -> Prediction:
        """What the simulator says of the steps from `first` on.

        Args:
            rest: seconds of a step in which a worker does something else than computing and sending what it has.
        """
        before, after = (self._simulate(policy, last, rest) for last in (first, first + steps))
        step_seconds = after.step_seconds[first:]
        dropped, used = sum(after.rows_dropped[first:]), sum(after.rows_used[first:])
        computing = zip(before.computing_seconds, after.computing_seconds, strict=True)
        return Prediction(
            step_seconds,
            dropped / (dropped + used),
            tuple(max(0.0, 1 - (end - begin) / sum(step_seconds)) for begin, end in computing),
        )

    def settled_after(self, policy: ComparedPolicy, steps: int) -> int:
        """The first step from which on the simulated median of so many steps is what it stays."""
        horizon = 2 * self.global_batch_size + steps
        seconds = self._simulate(policy, horizon).step_seconds
        medians = [median(seconds[first : first + steps]) for first in range(horizon - steps)]
        lasting = median(medians[len(medians) // 2 :])
        return next(
            first for first, each in enumerate(medians) if abs(each / lasting - 1) <= SETTLED
        )

    def _simulate(
        self, policy: ComparedPolicy, steps: int, rest: float = 0.0
    ) -> simulation.Simulated:
        links = self.simulated.links
        messages = 2 if policy.has_server else 2 * (self.ranks - 1)
        latency = self.devices.latency + rest / messages
        return simulation.simulate(
            replace(self.simulated, links=replace(links, latency=latency)),
            policy.simulated,
            global_batch_size=self.global_batch_size,
            steps=steps,
        )


def cluster_of(
    name: str, *, slowest: float | None, rows_per_device: int, model: nn.Module
) -> ComparedCluster:
    """A cluster of conf/train/cluster that trains `model`; its slowest device computes for `slowest` seconds in a step
    of the equal split, or as long as the file says."""
    with initialize_config_module("lightning_boa.conf.train", version_base="1.3"):
        config = compose("train", [f"cluster={name}"]).cluster

    def at(times: float) -> ComparedCluster:
        devices = instantiate(config, times=times, _convert_="all")
        return ComparedCluster(name, devices, rows_per_device, bytes_of(model.parameters()))

    return at(1.0) if slowest is None else at(slowest / at(1.0).slowest_seconds)
