"""Which policy is how fast on which cluster: discrete-event simulation of training together; numpy only.

::

    cluster = Cluster((LinearTime(0.01, 0.003), LinearTime(0.01, 0.012)), noise=0.02)
    for each in compare(cluster, [EqualSplit(), BackupWorkers(1), Boa()], global_batch_size=64, steps=500):
        print(each.policy, each.median_step_seconds, each.rows_per_second, each.dropped_share)
"""

from __future__ import annotations

from lightning_boa.simulation.asynchronous import Asynchronous
from lightning_boa.simulation.boa import Boa
from lightning_boa.simulation.cluster import Cluster, Links
from lightning_boa.simulation.first_gradients import BackupWorkers, ParameterServer
from lightning_boa.simulation.outcome import Simulated
from lightning_boa.simulation.running import Policy, compare, simulate
from lightning_boa.simulation.shares import EqualSplit, FixedShares, LbBsp, Proportional

__all__ = [
    "Asynchronous",
    "BackupWorkers",
    "Boa",
    "Cluster",
    "EqualSplit",
    "FixedShares",
    "LbBsp",
    "Links",
    "ParameterServer",
    "Policy",
    "Proportional",
    "Simulated",
    "compare",
    "simulate",
]
