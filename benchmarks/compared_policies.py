"""The policies that are compared: each as a strategy and as a policy of the simulator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import lightning_boa
from lightning_boa import simulation
from lightning_boa.simulation import Policy

STALENESS = 2
BACKUPS = 1


@dataclass(frozen=True)
class ComparedPolicy:
    """One way to train together.

    Args:
        name: in tables and pictures.
        strategy: makes it for a trainer.
        simulated: the same in the simulator.
        waits_for_plan: whether it measures first; its steps count once it has done so.
        has_server: whether each rank sends its gradients to a server, instead of reducing them in a ring.
        is_asynchronous: whether every gradient is an update of its own, and a batch of the trainer.
        costs_as: under which policy it is measured what its step costs beside what is emulated.
        exchanges: whether all ranks exchange figures and agree after every step, which comes on top of that.
    """

    name: str
    strategy: Callable[[], Any]
    simulated: Policy
    waits_for_plan: bool = False
    has_server: bool = False
    is_asynchronous: bool = False
    costs_as: str = "ddp"
    exchanges: bool = False


POLICIES = {
    "ddp": ComparedPolicy("equal split", lambda: "ddp", simulation.EqualSplit()),
    "parameter_server": ComparedPolicy(
        "parameter server",
        lightning_boa.ParameterServerStrategy,
        simulation.ParameterServer(),
        has_server=True,
        costs_as="parameter_server",
    ),
    "backup_workers": ComparedPolicy(
        f"{BACKUPS} backup worker",
        lambda: lightning_boa.BackupWorkersStrategy(backups=BACKUPS),
        simulation.BackupWorkers(BACKUPS),
        has_server=True,
        costs_as="parameter_server",
    ),
    "asynchronous": ComparedPolicy(
        "asynchronous",
        lightning_boa.AsynchronousStrategy,
        simulation.Asynchronous(),
        has_server=True,
        is_asynchronous=True,
    ),
    "bounded": ComparedPolicy(
        f"asynchronous, bound {STALENESS}",
        lambda: lightning_boa.AsynchronousStrategy(staleness=STALENESS),
        simulation.Asynchronous(STALENESS),
        has_server=True,
        is_asynchronous=True,
    ),
    "proportional": ComparedPolicy(
        "proportional",
        lightning_boa.ProportionalStrategy,
        simulation.Proportional(),
        waits_for_plan=True,
    ),
    "lb_bsp": ComparedPolicy(
        "LB-BSP", lightning_boa.LbBspStrategy, simulation.LbBsp(), exchanges=True
    ),
    "boa": ComparedPolicy("BOA", lightning_boa.BoaStrategy, simulation.Boa(), waits_for_plan=True),
}
