"""What "boa" costs where there is nothing to gain: two equal ranks, step time against "ddp".

    python benchmarks/overhead.py

Blocks of steps under ddp, boa and ddp again alternate in one run until the 95 % interval of boa / ddp is within
0.5 % (or the minutes are over); the second ddp is the control. Warm-up steps are left out and their cost is printed.
Prints a table and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from statistics import fmean, median, stdev
from typing import Any

import torch
from local_ranks import Network, StepTimer, quiet_trainer, run_ranks
from rich.console import Console
from rich.table import Table
from torch.utils.data import DataLoader, TensorDataset

from lightning_boa import BoaStrategy

RANKS = 2
HALF_WIDTH = 0.005
ALLOWED = 1.01
MODELS = {"1 million": (500, 2000, 300), "25 million": (2500, 10_000, 24)}
Z_95 = 1.96


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=6.0, help="at most, for each model")
    parser.add_argument("--least-blocks", type=int, default=8)
    options = parser.parse_args()
    results = []
    console = Console()
    for name in MODELS:
        console.print(f"{name} parameters: ddp, boa, ddp in turn on {RANKS} ranks …")
        blocks = run_ranks(run_rank, RANKS, name, options.minutes * 60, options.least_blocks)
        results.append(evaluate(name, blocks))
    console.print(table_of(results))
    print(json.dumps({"benchmark": "overhead", "ranks": RANKS, "models": results}))
    return 0 if all(result["boa"]["low"] < ALLOWED for result in results) else 1


def evaluate(name: str, blocks: list[dict[str, float]]) -> dict[str, Any]:
    return {
        "parameters": name,
        "blocks": len(blocks),
        "ddp_seconds": round(median(block["ddp"] for block in blocks), 5),
        "boa": interval(
            [block["boa"] / math.sqrt(block["ddp"] * block["again"]) for block in blocks]
        ),
        "control": interval([block["again"] / block["ddp"] for block in blocks]),
        "warmup_steps": median(block["warmup_steps"] for block in blocks),
        "warmup_extra_seconds": round(median(block["warmup_extra"] for block in blocks), 4),
        "equal_split_kept": round(fmean(block["kept_equal"] for block in blocks), 2),
    }


def interval(ratios: list[float]) -> dict[str, float]:
    """Geometric mean of the blocks' ratios with its 95 % interval."""
    logs = [math.log(ratio) for ratio in ratios]
    mean, half = fmean(logs), Z_95 * stdev(logs) / math.sqrt(len(logs))
    ends = {"ratio": mean, "low": mean - half, "high": mean + half}
    return {end: round(math.exp(value), 5) for end, value in ends.items()}


def run_rank(rank: int, name: str, seconds: float, least_blocks: int) -> list[dict[str, float]]:
    features, width, steps = MODELS[name]
    rows = TensorDataset(torch.randn(4096, features), torch.randn(4096, 1))
    ends = time.monotonic() + seconds
    blocks: list[dict[str, float]] = []
    while not _is_over(blocks, least_blocks, time.monotonic() > ends):
        ddp = _block("ddp", rows, features, width, steps)
        boa = _block("boa", rows, features, width, steps)
        again = _block("ddp", rows, features, width, steps)
        spent = boa["warmup"]
        blocks.append(
            {
                "ddp": ddp["step"],
                "boa": boa["step"],
                "again": again["step"],
                "warmup_steps": float(len(spent)),
                "warmup_extra": sum(spent) - len(spent) * ddp["step"],
                "kept_equal": boa["kept_equal"],
            }
        )
    return blocks


def _block(strategy: str, rows: Any, features: int, width: int, steps: int) -> dict[str, Any]:
    timer = StepTimer(steps)
    chosen: Any = BoaStrategy() if strategy == "boa" else strategy
    trainer = quiet_trainer(chosen, RANKS, [timer])
    trainer.fit(Network(features, width), DataLoader(rows, batch_size=32, shuffle=True))
    plan = getattr(trainer.strategy, "plan", None)
    return {
        "step": fmean(sorted(timer.measured)[: max(1, len(timer.measured) * 9 // 10)]),
        "warmup": timer.warmup_seconds,
        "kept_equal": float(plan is None or len(set(plan.batch_sizes)) == 1),
    }


def _is_over(blocks: list[dict[str, float]], least_blocks: int, late: bool) -> bool:
    over = torch.tensor([0])
    if len(blocks) >= max(2, least_blocks):
        found = interval([b["boa"] / math.sqrt(b["ddp"] * b["again"]) for b in blocks])
        narrow = (found["high"] - found["low"]) / 2 <= HALF_WIDTH
        over = torch.tensor([int(narrow or late)])
    if torch.distributed.is_initialized():
        torch.distributed.broadcast(over, src=0)
    return bool(over)


def table_of(results: list[dict[str, Any]]) -> Table:
    table = Table(title="step time on two equal ranks, 95 % intervals")
    for column in (
        "parameters",
        "ddp ms",
        "boa / ddp",
        "ddp / ddp",
        "blocks",
        "warm-up steps",
        "their extra ms",
    ):
        table.add_column(column, justify="right")
    for result in results:
        table.add_row(
            result["parameters"],
            f"{result['ddp_seconds'] * 1000:.2f}",
            "{ratio:.4f} ({low:.4f} to {high:.4f})".format(**result["boa"]),
            "{ratio:.4f} ({low:.4f} to {high:.4f})".format(**result["control"]),
            str(result["blocks"]),
            f"{result['warmup_steps']:.0f}",
            f"{result['warmup_extra_seconds'] * 1000:.0f}",
        )
    return table


if __name__ == "__main__":
    raise SystemExit(main())
