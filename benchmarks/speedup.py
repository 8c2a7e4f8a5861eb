"""Step time under "ddp" and "boa" on an emulated cluster of eight devices of three kinds, interleaved in one run.

    python benchmarks/speedup.py

BOA finds its plan in its own warm-up. The step under BOA is compared with the optimum that the true device figures
allow plus what "ddp" itself loses above its slowest device in the same run. Prints a table and one JSON line.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from local_ranks import Network, StepTimer, quiet_trainer, run_ranks
from rich.console import Console
from rich.table import Table
from torch.utils.data import DataLoader, TensorDataset

from lightning_boa import BoaStrategy, EmulatedCluster
from lightning_boa.planning import LinearTime, equal_split, plan_batches

SPEEDS = (1.0,) * 4 + (2.04,) * 3 + (4.9,)
RANKS = len(SPEEDS)
ROWS = 512
SHARE = ROWS // RANKS
ALLOWED = 1.03


@dataclass(frozen=True)
class Cluster:
    """Eight devices; fixed costs and latency floors as parts of the slowest device's equal-split step."""

    name: str
    overhead: tuple[float, ...] = (0.0,) * RANKS
    floor: tuple[float, ...] = (0.0,) * RANKS

    def models(self, slowest: float) -> list[LinearTime]:
        """The true time models, in seconds, if the slowest equal-split step lasts `slowest`."""
        per_row = (1.0 - self.overhead[-1]) * slowest / (SHARE * SPEEDS[-1])
        return [
            LinearTime(overhead * slowest, speed * per_row, floor * slowest)
            for speed, overhead, floor in zip(SPEEDS, self.overhead, self.floor, strict=True)
        ]


CLUSTERS = (
    Cluster("proportional"),
    Cluster("fixed costs", overhead=(0.02, 0.02, 0.08, 0.08, 0.05, 0.05, 0.1, 0.1)),
    Cluster("latency floor", floor=(0.26,) * 4 + (0.0,) * 4),
)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10, help="measured steps in each repetition")
    parser.add_argument(
        "--slowest", type=float, default=1.0, help="seconds of the slowest equal-split step"
    )
    options = parser.parse_args()
    console = Console()
    results = []
    for cluster in CLUSTERS:
        console.print(f"{cluster.name}: {options.repetitions} x (ddp, boa) on {RANKS} ranks …")
        results.append(measure(cluster, options))
    console.print(table_of(results))
    print(json.dumps({"benchmark": "speedup", "ranks": RANKS, "clusters": results}))
    return 0 if all(result["within_3_percent"] for result in results) else 1


def measure(cluster: Cluster, options: argparse.Namespace) -> dict[str, Any]:
    models = cluster.models(options.slowest)
    runs = run_ranks(run_rank, RANKS, models, options.repetitions, options.steps)
    equal = equal_split(RANKS, ROWS).batch_sizes
    equal_seconds = [float(m.seconds(rows)) for m, rows in zip(models, equal, strict=True)]
    optimum = plan_batches(models, ROWS)
    assert optimum.step_seconds is not None
    ddp, boa = (median(median(run["seconds"]) for run in runs[name]) for name in ("ddp", "boa"))
    reachable = optimum.step_seconds + ddp - max(equal_seconds)
    speeds = [1 / seconds for seconds in equal_seconds]
    return {
        "cluster": cluster.name,
        "ddp_seconds": round(ddp, 4),
        "boa_seconds": round(boa, 4),
        "speedup": round(ddp / boa, 3),
        "linear_ceiling": round(sum(speeds) / RANKS / min(speeds), 3),
        "optimum_seconds": round(optimum.step_seconds, 4),
        "ddp_loss_seconds": round(ddp - max(equal_seconds), 4),
        "boa_over_reachable": round(boa / reachable, 4),
        "within_3_percent": boa <= ALLOWED * reachable,
        "optimum_plan": optimum.batch_sizes,
        "plans": [run["plan"] for run in runs["boa"]],
        "warmup_steps": [run["warmup_steps"] for run in runs["boa"]],
    }


def run_rank(
    rank: int, models: list[LinearTime], repetitions: int, steps: int
) -> dict[str, list[dict[str, Any]]]:
    runs: dict[str, list[dict[str, Any]]] = {"ddp": [], "boa": []}
    rows = TensorDataset(torch.randn(ROWS * 60, 316), torch.randn(ROWS * 60, 1))
    for _ in range(repetitions):
        for name, strategy in (("ddp", "ddp"), ("boa", BoaStrategy())):
            timer = StepTimer(steps)
            cluster = EmulatedCluster(
                [model.seconds_per_sample for model in models],
                [model.overhead for model in models],
                [model.floor for model in models],
            )
            trainer = quiet_trainer(strategy, RANKS, [cluster, timer])
            trainer.fit(Network(316, 316), DataLoader(rows, batch_size=SHARE, shuffle=True))
            plan = getattr(trainer.strategy, "plan", None)
            runs[name].append(
                {
                    "seconds": timer.measured,
                    "warmup_steps": len(timer.warmup_seconds),
                    "plan": None if plan is None else plan.batch_sizes,
                }
            )
    return runs


def table_of(results: list[dict[str, Any]]) -> Table:
    table = Table(title="step time, eight emulated devices (4.9 : 2.4 : 1)")
    for column in (
        "cluster",
        "ddp s",
        "boa s",
        "speed-up",
        "ceiling",
        "optimum s",
        "boa / reachable",
    ):
        table.add_column(column, justify="left" if column == "cluster" else "right")
    for result in results:
        table.add_row(
            result["cluster"],
            f"{result['ddp_seconds']:.3f}",
            f"{result['boa_seconds']:.3f}",
            f"{result['speedup']:.2f} x",
            f"{result['linear_ceiling']:.2f} x",
            f"{result['optimum_seconds']:.3f}",
            f"{result['boa_over_reachable']:.3f}"
            + ("" if result["within_3_percent"] else " (> 1.03)"),
        )
    return table


if __name__ == "__main__":
    raise SystemExit(main())
