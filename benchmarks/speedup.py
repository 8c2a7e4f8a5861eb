"""Step time under "ddp" and "boa" on an emulated cluster of eight devices of three kinds, interleaved in one run.

    python benchmarks/speedup.py

BOA finds its plan in its own warm-up. The step under BOA is compared with the optimum that the true device figures
allow plus what "ddp" itself loses above its slowest device in the same run. Prints a table and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_boa.planning import LinearTime, equal_split, plan_batches

FAST, MIDDLE, SLOW = 1.0, 2.04, 4.9
DEVICES = (FAST,) * 4 + (MIDDLE,) * 3 + (SLOW,)
ROWS = 512
FEATURES = 316
ALLOWED = 1.03


@dataclass(frozen=True)
class Cluster:
    """Eight devices; times in seconds, scaled so that the slowest equal-split step lasts `slowest`."""

    name: str
    overhead: tuple[float, ...] = (0.0,) * 8
    floor: tuple[float, ...] = (0.0,) * 8

    def models(self, slowest: float) -> list[LinearTime]:
        share = ROWS / len(DEVICES)
        unit = slowest / (share * SLOW + max(self.overhead) * share * SLOW)
        return [
            LinearTime(
                overhead * share * SLOW * unit, kind * unit, floor * share * SLOW * unit
            )
            for kind, overhead, floor in zip(DEVICES, self.overhead, self.floor, strict=True)
        ]


CLUSTERS = (
    Cluster("proportional"),
    Cluster("fixed costs", overhead=(0.02, 0.02, 0.08, 0.08, 0.05, 0.05, 0.1, 0.1)),
    Cluster("latency floor", floor=(0.26,) * 4 + (0.0,) * 4),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8, help="measured steps in each repetition")
    parser.add_argument("--slowest", type=float, default=1.0, help="seconds of the slowest equal-split step")
    options = parser.parse_args()
    console = Console()
    results = []
    for cluster in CLUSTERS:
        console.print(f"[bold]{cluster.name}[/]: {options.repetitions} x (ddp, boa) on 8 ranks …")
        results.append(measure(cluster, options))
    console.print(table(results))
    print(json.dumps({"benchmark": "speedup", "ranks": 8, "clusters": results}))
    return 0 if all(result["within_3_percent"] for result in results) else 1


def measure(cluster: Cluster, options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.start_processes(
            run_rank, (cluster, options, folder), nprocs=len(DEVICES), start_method="fork"
        )
        with open(f"{folder}/result.json") as file:
            measured = json.load(file)
    models = cluster.models(options.slowest)
    equal = equal_split(8, ROWS).batch_sizes
    slowest = max(float(m.seconds(rows)) for m, rows in zip(models, equal, strict=True))
    optimum = plan_batches(models, ROWS).step_seconds
    assert optimum is not None
    ddp, boa = median(measured["ddp"]), median(measured["boa"])
    reachable = optimum + max(0.0, ddp - slowest)
    return {
        "cluster": cluster.name,
        "ddp_seconds": ddp,
        "boa_seconds": boa,
        "speedup": ddp / boa,
        "optimum_seconds": optimum,
        "ddp_loss_seconds": ddp - slowest,
        "boa_over_reachable": boa / reachable,
        "within_3_percent": boa <= ALLOWED * reachable,
        "linear_ceiling": slowest * 8 / ROWS * sum(1 / (float(m.seconds(64)) / 64) for m in models) / 8,
        "plans": measured["plans"],
        "warmup_steps": measured["warmup_steps"],
    }


def run_rank(rank: int, cluster: Cluster, options: argparse.Namespace, folder: str) -> None:
    import pytorch_lightning as pl

    from benchmarks.ranks import quiet_rank
    from lightning_boa import BoaStrategy, EmulatedCluster

    quiet_rank(rank, len(DEVICES), folder)
    models = cluster.models(options.slowest)
    measured: dict[str, Any] = {"ddp": [], "boa": [], "plans": [], "warmup_steps": []}
    for _ in range(options.repetitions):
        for name in ("ddp", "boa"):
            strategy: Any = "ddp" if name == "ddp" else BoaStrategy(global_batch_size=ROWS)
            timer = StepTimer(options.steps)
            trainer = pl.Trainer(
                strategy=strategy,
                devices=len(DEVICES),
                accelerator="cpu",
                max_steps=1000,
                callbacks=[
                    EmulatedCluster(
                        [model.seconds_per_sample for model in models],
                        [model.overhead for model in models],
                        [model.floor for model in models],
                    ),
                    timer,
                ],
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
            )
            rows = TensorDataset(torch.randn(ROWS * 100, FEATURES), torch.randn(ROWS * 100, 1))
            trainer.fit(Network(), DataLoader(rows, batch_size=ROWS // len(DEVICES), shuffle=True))
            measured[name].append(timer.seconds)
            if name == "boa":
                measured["plans"].append(trainer.strategy.plan.batch_sizes)
                measured["warmup_steps"].append(timer.skipped)
    if rank == 0:
        with open(f"{folder}/result.json", "w") as file:
            json.dump(measured, file)
    torch.distributed.barrier()
    sys.stdout.flush()
    import os

    os._exit(0)
