"""How long a simulation takes: `python benchmarks/simulator.py`.

Each policy once on a large mixed cluster with noise and links: with a parameter server every gradient is an
event, and BOA plans in earnest. The last line of stdout is JSON; the exit status is 1 when a policy takes longer
than the limit.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time

import numpy as np
from rich.console import Console
from rich.table import Table

from lightning_boa.planning import LinearTime
from lightning_boa.simulation import (
    Asynchronous,
    BackupWorkers,
    Boa,
    Cluster,
    EqualSplit,
    FixedShares,
    LbBsp,
    Links,
    ParameterServer,
    Policy,
    Proportional,
    simulate,
)

LIMIT_SECONDS = 10.0
ROWS_PER_WORKER = 16


def mixed_cluster(workers: int, seed: int) -> Cluster:
    random = np.random.default_rng(seed)
    models = tuple(
        LinearTime(float(random.uniform(0, 0.1)), float(random.choice([0.005, 0.01, 0.0245])))
        for _ in range(workers)
    )
    links = Links(
        gradient_bytes=4e7,
        bandwidth=1e9,
        latency=1e-5,
        server_bandwidth=1e12,
        ready=(0.25, 0.5, 0.75, 1.0),
    )
    return Cluster(models, noise=0.02, links=links)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    cluster = mixed_cluster(options.workers, options.seed)
    policies: list[Policy] = [
        EqualSplit(),
        FixedShares((ROWS_PER_WORKER,) * options.workers),
        Proportional(),
        LbBsp(),
        ParameterServer(),
        BackupWorkers(max(1, options.workers // 20)),
        Asynchronous(),
        Asynchronous(3),
        Boa(),
    ]
    table = Table("policy", "seconds", "step, s", "rows / s", "idle", "dropped")
    taken: dict[str, float] = {}
    for policy in policies:
        start = time.perf_counter()
        simulated = simulate(
            cluster,
            policy,
            global_batch_size=ROWS_PER_WORKER * options.workers,
            steps=options.steps,
            seed=options.seed,
        )
        taken[policy.name] = time.perf_counter() - start
        table.add_row(
            policy.name,
            f"{taken[policy.name]:.2f}",
            f"{simulated.median_step_seconds:.3f}",
            f"{simulated.rows_per_second:,.0f}",
            f"{np.mean(simulated.idle_share):.0%}",
            f"{simulated.dropped_share:.1%}",
        )
    passed = max(taken.values()) <= LIMIT_SECONDS
    console = Console()
    console.print(table)
    console.print(
        f"seconds to simulate {options.workers:,} workers and {options.steps:,} steps, at most {LIMIT_SECONDS:g}"
    )
    result = {
        "benchmark": "simulator",
        "workers": options.workers,
        "steps": options.steps,
        "seconds": {name: round(seconds, 3) for name, seconds in taken.items()},
        "limit_seconds": LIMIT_SECONDS,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "passed": passed,
    }
    print(json.dumps(result))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
