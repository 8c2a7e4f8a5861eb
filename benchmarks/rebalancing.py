"""One of four emulated devices becomes slower in mid-run: step time before, right after, and under the new plan.

    python benchmarks/rebalancing.py

BOA finds its plan in its own warm-up. Once it runs, one device's steps last twice as long; the watch notices and makes
another plan. The step under it is compared with the optimum that the true figures of the changed devices allow. Prints
a table and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import time
from statistics import median
from typing import Any

import pytorch_lightning as pl
import torch
from local_ranks import Network, quiet_trainer, run_ranks
from rich.console import Console
from rich.table import Table
from torch.utils.data import DataLoader, TensorDataset

from lightning_boa import BoaStrategy, EmulatedCluster
from lightning_boa.planning import BatchPlan, LinearTime, plan_batches

SPEEDS = (1.0, 1.0, 2.04, 4.9)
OVERHEADS = (0.04, 0.04, 0.08, 0.1)
RANKS = len(SPEEDS)
ROWS = 256
THROTTLED = 1
SETTLING = 2
WANTED = 0.97


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--step", type=float, default=0.5, help="seconds of the first plan's step")
    parser.add_argument(
        "--factor", type=float, default=2.0, help="how much slower a device becomes"
    )
    parser.add_argument("--at", type=int, default=50, help="the step at which it becomes slower")
    parser.add_argument("--patience", type=int, default=60, help="steps to wait for a new plan")
    parser.add_argument("--steps", type=int, default=20, help="measured steps under the new plan")
    options = parser.parse_args()
    models = models_of(options.step)
    changed = throttled(models, options.factor)
    console = Console()
    console.print(f"rank {THROTTLED} becomes {options.factor:g} times as slow on {RANKS} ranks …")
    found = run_ranks(run_rank, RANKS, models, options)
    result = evaluate(found, plan_batches(models, ROWS), plan_batches(changed, ROWS), options.at)
    console.print(table_of(result))
    print(json.dumps({"benchmark": "rebalancing", "ranks": RANKS, "at": options.at, **result}))
    return 0 if result["ratio"] >= WANTED else 1


def models_of(step_seconds: float) -> list[LinearTime]:
    """The true time models, in seconds; overheads are parts of the best plan's step, which lasts `step_seconds`."""
    rows = sum((1 - part) / speed for part, speed in zip(OVERHEADS, SPEEDS, strict=True))
    per_row = step_seconds * rows / ROWS
    return [
        LinearTime(part * step_seconds, speed * per_row)
        for part, speed in zip(OVERHEADS, SPEEDS, strict=True)
    ]


def throttled(models: list[LinearTime], factor: float) -> list[LinearTime]:
    return [
        LinearTime(factor * model.overhead, factor * model.seconds_per_sample)
        if rank == THROTTLED
        else model
        for rank, model in enumerate(models)
    ]


class StepLog(pl.Callback):
    """Seconds of each step from its start to the next one's, until the new plan has run for so many steps."""

    def __init__(self, throttled_at: int, patience: int, steps: int) -> None:
        self.seconds: list[float] = []
        self._latest = throttled_at + patience
        self._steps = steps
        self._began: float | None = None

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        now = time.perf_counter()
        if self._began is not None:
            self.seconds.append(now - self._began)
        self._began = now
        changes = trainer.strategy.orchestration.rebalancings
        wanted = changes[0].step + SETTLING + self._steps if changes else self._latest
        if len(self.seconds) >= wanted:
            trainer.should_stop = True


def run_rank(rank: int, models: list[LinearTime], options: argparse.Namespace) -> dict[str, Any]:
    rows = TensorDataset(torch.randn(ROWS * 50, 128), torch.randn(ROWS * 50, 1))
    log = StepLog(options.at, options.patience, options.steps)
    cluster = EmulatedCluster(
        [model.seconds_per_sample for model in models],
        [model.overhead for model in models],
        throttle={THROTTLED: {options.at: options.factor}},
    )
    strategy = BoaStrategy()
    trainer = quiet_trainer(strategy, RANKS, [cluster, log])
    trainer.fit(Network(128, 128), DataLoader(rows, batch_size=ROWS // RANKS, shuffle=True))
    orchestration = strategy.orchestration
    assert orchestration is not None
    return {
        "seconds": log.seconds,
        "plans": [(step, plan.batch_sizes) for step, plan in orchestration.schedule.entries],
        "changes": orchestration.rebalancings,
    }


def evaluate(
    found: dict[str, Any], old: BatchPlan, new: BatchPlan, throttled_at: int
) -> dict[str, Any]:
    changes, seconds = found["changes"], found["seconds"]
    planned_at, planned = max(each for each in found["plans"] if each[0] < throttled_at)
    changed_at = changes[0].step if changes else len(seconds) - 1
    before = median(seconds[planned_at + SETTLING : throttled_at])
    slow = median(seconds[throttled_at:changed_at])
    after = median(seconds[changed_at + SETTLING :]) if changes else slow
    assert old.step_seconds is not None
    assert new.step_seconds is not None
    return {
        "before_seconds": round(before, 4),
        "throttled_seconds": round(slow, 4),
        "after_seconds": round(after, 4),
        "optimum_before_seconds": round(old.step_seconds, 4),
        "optimum_after_seconds": round(new.step_seconds, 4),
        "ratio_before": round(old.step_seconds / before, 4),
        "ratio": round(new.step_seconds / after, 4),
        "steps_until_new_plan": changed_at - throttled_at if changes else None,
        "changes": len(changes),
        "expected_gain": round(changes[0].expected_gain, 4) if changes else None,
        "gain": round(slow / after - 1, 4),
        "plan_before": planned,
        "plan": changes[-1].batch_sizes if changes else planned,
        "optimum_plan": new.batch_sizes,
    }


def table_of(result: dict[str, Any]) -> Table:
    steps = result["steps_until_new_plan"]
    outcome = "no new plan" if steps is None else f"a new plan {steps} steps later"
    table = Table(title=f"one of {RANKS} emulated devices becomes slower: {outcome}")
    for column in ("", "step s", "optimum s", "optimum / step", "rows"):
        table.add_column(column, justify="left" if column in ("", "rows") else "right")
    lines = (
        ("before", "before", "optimum_before_seconds", "plan_before"),
        ("right after", "throttled", "optimum_after_seconds", "plan_before"),
        ("in the end", "after", "optimum_after_seconds", "plan"),
    )
    for label, measured, optimum, plan in lines:
        seconds, best = result[f"{measured}_seconds"], result[optimum]
        rows = " / ".join(map(str, result[plan]))
        table.add_row(label, f"{seconds:.3f}", f"{best:.3f}", f"{best / seconds:.3f}", rows)
    return table


if __name__ == "__main__":
    raise SystemExit(main())
