"""What "boa" costs where there is nothing to gain: two equal ranks, step time against "ddp".

    python benchmarks/overhead.py

Three trainings (ddp, boa, and ddp again as a control) run in the same two processes and take turns every few steps, so
that each pair of times lies a fraction of a second apart. They begin anew with fresh models several times, since where
memory happens to lie makes a difference of its own. Turns go on until the 95 % interval of boa / ddp over all sets is
within 0.5 %, or the minutes are over. Warm-up steps are left out and their cost is printed. Prints a table and one JSON
line.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from functools import partial
from statistics import fmean, median, stdev
from typing import Any

import pytorch_lightning as pl
import torch
from local_ranks import Network, Turns, has_measured, quiet_trainer, run_ranks
from rich.console import Console
from rich.table import Table
from torch.utils.data import DataLoader, TensorDataset

from lightning_boa import BoaStrategy

RANKS = 2
HALF_WIDTH = 0.005
AIM = 0.9
ALLOWED = 1.01
LEAST_TURNS = 30
Z_95 = 1.96
STRATEGIES = ("ddp", "boa", "control")
MODELS = {"1 million": (500, 2000, 12), "25 million": (2500, 10_000, 1)}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=6.0, help="at most, for each model")
    parser.add_argument("--sets", type=int, default=4, help="sets of fresh models")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    options = parser.parse_args()
    results = []
    console = Console()
    for name in options.models:
        console.print(f"{name} parameters: ddp, boa, ddp in turn on {RANKS} ranks …")
        found = run_ranks(run_rank, RANKS, name, options.minutes * 60, options.sets)
        results.append(evaluate(name, found))
    console.print(table_of(results))
    print(json.dumps({"benchmark": "overhead", "ranks": RANKS, "models": results}))
    return 0 if all(result["boa"]["low"] < ALLOWED for result in results) else 1


def evaluate(name: str, found: dict[str, Any]) -> dict[str, Any]:
    turns = found["turns"]
    return {
        "parameters": name,
        "turns": len(turns),
        "ddp_seconds": round(median(turn["ddp"] for turn in turns), 5),
        "boa": interval(_ratios(turns)),
        "control": interval([turn["control"] / turn["ddp"] for turn in turns]),
        "warmup_steps": median(found["warmup_steps"]),
        "warmup_extra_seconds": round(median(found["warmup_extra"]), 4),
        "equal_split_kept": fmean(found["kept_equal"]),
    }


def _ratios(turns: list[dict[str, float]]) -> list[float]:
    return [turn["boa"] / math.sqrt(turn["ddp"] * turn["control"]) for turn in turns]


def interval(ratios: list[float]) -> dict[str, float]:
    """Geometric mean of the ratios with its 95 % interval, the most extreme 5 % at each end left out."""
    logs = sorted(math.log(ratio) for ratio in ratios)
    cut = len(logs) // 20
    logs = logs[cut : len(logs) - cut]
    mean, half = fmean(logs), Z_95 * stdev(logs) / math.sqrt(len(logs))
    ends = {"ratio": mean, "low": mean - half, "high": mean + half}
    return {end: round(math.exp(value), 5) for end, value in ends.items()}


def run_rank(rank: int, name: str, seconds: float, sets: int) -> dict[str, Any]:
    found: dict[str, Any] = {"turns": [], "warmup_steps": [], "warmup_extra": [], "kept_equal": []}
    for number in range(sets):
        turns, boa = run_set(name, time.monotonic() + seconds / sets, number, sets)
        found["turns"] += turns
        spent = boa.warmup_seconds
        found["warmup_steps"].append(len(spent))
        found["warmup_extra"].append(sum(spent) - len(spent) * median(t["ddp"] for t in turns))
        found["kept_equal"].append(float(len(set(boa.plan)) == 1))
    return found


def run_set(
    name: str, ends: float, number: int, sets: int
) -> tuple[list[dict[str, float]], TakesTurns]:
    features, width, steps = MODELS[name]
    rows = TensorDataset(torch.randn(4096, features), torch.randn(4096, 1))
    order = STRATEGIES[number % 3 :] + STRATEGIES[: number % 3]
    stage = Stage(order, steps, AIM * HALF_WIDTH * math.sqrt(sets), ends)
    players = {each: TakesTurns(stage, each) for each in order}

    def play(strategy: str) -> None:
        chosen: Any = BoaStrategy() if strategy == "boa" else "ddp"
        trainer = quiet_trainer(chosen, RANKS, [players[strategy]])
        trainer.fit(Network(features, width), DataLoader(rows, batch_size=32, shuffle=True))

    stage.run({strategy: partial(play, strategy) for strategy in order})
    return stage.turns, players["boa"]


class Stage(Turns):
    """Turns that end once the ratio is known well enough, or the time is over."""

    def __init__(self, order: tuple[str, ...], steps: int, half_width: float, ends: float) -> None:
        super().__init__(order)
        self.steps = steps
        self._half_width = half_width
        self.turns: list[dict[str, float]] = []
        self.is_over = False
        self._ends = ends
        self._turn: dict[str, float] = {}

    def finish_turn(self, name: str, seconds: float | None) -> None:
        """A training's steps of this turn are over; None while it is still measuring."""
        if seconds is not None:
            self._turn[name] = seconds
        if name == self._order[-1]:
            if len(self._turn) == len(self._order):
                self.turns.append(self._turn)
            self._turn = {}
            self.is_over = _agreed(self._is_enough())
        self.hand_over()
        self.wait_for(name)

    def _is_enough(self) -> bool:
        if len(self.turns) < LEAST_TURNS:
            return False
        found = interval(_ratios(self.turns))
        half_width = (found["high"] - found["low"]) / 2
        return half_width <= self._half_width or time.monotonic() > self._ends


def _agreed(over: bool) -> bool:
    decision = torch.tensor([int(over)])
    torch.distributed.broadcast(decision, src=0)
    return bool(decision)


class TakesTurns(pl.Callback):
    """Measures a training's steps of each turn, and hands over to the next training after them."""

    def __init__(self, stage: Stage, name: str) -> None:
        self._stage = stage
        self._name = name
        self._began = 0.0
        self._steps = -1
        self._settled = False
        self.warmup_seconds: list[float] = []
        self.plan: tuple[int, ...] = ()

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._steps += 1
        if self._steps == self._stage.steps:
            self._finish_turn(trainer)
        if self._steps <= 0:
            self._began = time.perf_counter()

    def _finish_turn(self, trainer: pl.Trainer) -> None:
        step = (time.perf_counter() - self._began) / self._stage.steps
        if not self._settled:
            self.warmup_seconds += [step] * self._stage.steps
        self._stage.finish_turn(self._name, step if self._settled else None)
        self._settled = has_measured(trainer)
        plan = getattr(trainer.strategy, "plan", None)
        if plan is not None:
            self.plan = plan.batch_sizes
        trainer.should_stop = self._stage.is_over
        self._steps = -1


def table_of(results: list[dict[str, Any]]) -> Table:
    table = Table(title="step time on two equal ranks, 95 % intervals")
    for column in (
        "parameters",
        "ddp ms",
        "boa / ddp",
        "ddp / ddp",
        "turns",
        "warm-up steps",
        "their extra ms",
    ):
        table.add_column(column, justify="right")
    for result in results:
        table.add_row(
            result["parameters"],
            f"{result['ddp_seconds'] * 1000:.2f}",
            "{ratio:.4f}\n({low:.4f} to {high:.4f})".format(**result["boa"]),
            "{ratio:.4f}\n({low:.4f} to {high:.4f})".format(**result["control"]),
            str(result["turns"]),
            f"{result['warmup_steps']:.0f}",
            f"{result['warmup_extra_seconds'] * 1000:.0f}",
        )
    return table


if __name__ == "__main__":
    raise SystemExit(main())
