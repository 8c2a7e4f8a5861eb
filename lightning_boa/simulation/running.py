"""Simulating one policy, or several on the same cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from lightning_boa.simulation.cluster import Cluster
from lightning_boa.simulation.outcome import Simulated
from lightning_boa.simulation.trial import Trial


class Policy(Protocol):
    """A way to train together."""

    @property
    def name(self) -> str: ...

    def simulate(self, trial: Trial) -> Simulated: ...


def simulate(
    cluster: Cluster,
    policy: Policy,
    *,
    global_batch_size: int,
    steps: int,
    seed: int = 0,
    progress: Callable[[float], None] = lambda done: None,
) -> Simulated:
    """Train for ``steps`` steps of ``global_batch_size`` rows on ``cluster``, as ``policy`` says.

    The noise of a step depends on ``seed``, the worker and the step alone, so that all policies meet the same.
    ``progress`` is called again and again with the part that is done, from 0 to 1.

    Raises:
        OptionError: an option that does not fit the cluster, or is none.
        PlanError: fewer rows than workers.
    """
    return policy.simulate(Trial(cluster, global_batch_size, steps, seed, progress))


def compare(
    cluster: Cluster,
    policies: Sequence[Policy],
    *,
    global_batch_size: int,
    steps: int,
    seed: int = 0,
) -> list[Simulated]:
    """What comes out of each policy on the same cluster, in the order given; see `simulate`."""
    trial = Trial(cluster, global_batch_size, steps, seed)
    return [policy.simulate(trial) for policy in policies]
