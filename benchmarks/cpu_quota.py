"""Two ranks of really different speed: their whole processes run under CPU quotas, the model computes in earnest.

    python benchmarks/cpu_quota.py

In each launch the policies train the same network on handwritten digits in the same two processes: after its own
warm-up each of them gets a few steps in turn, so that whatever else slows the machine down meets all of them. In the
same turns each rank measures its own forward and backward at a few sizes, under its quota and without any
communication; from these speeds follows what the best split could gain
over the equal one. Needs Linux control groups that may be written (as root), else it says why and exits with status 2.
Prints tables and one JSON line; status 1 if BOA gets less than 0.9 of what the speeds allow in any launch. Takes some
seven minutes, four with --policies alone. Where the ranks' own speeds spread by more than a few per cent from turn to
turn, something else has slowed the machine down and the launch says little.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import pytorch_lightning as pl
import torch
from compared_policies import POLICIES, ComparedPolicy
from cpu_groups import LEAST_QUOTA, MOUNTS, NoCpuGroupsError, cpu_groups, join
from local_ranks import Turns, has_measured, quiet_trainer, run_ranks
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import lightning_boa
from lightning_boa.cli.convnet import ConvNet
from lightning_boa.cli.digits import DigitsData
from lightning_boa.planning import TableTime, apportion, equal_split, plan_batches

WANTED = 0.9
NO_PLACE = 2
PARTS_OF_A_SHARE = (0.25, 0.5, 1.0, 1.5)
STEPS_ALONE = 2
EPOCH_STEPS = 60
REFERENCE, OURS, ALONE = "ddp", "boa", "alone"
BESIDE = ("proportional", "lb_bsp", "parameter_server", "asynchronous")
LB_BSP_MOVES = 64


M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8
GLIBC_KEEPS_MEMORY = {M_TRIM_THRESHOLD: 2**31 - 1, M_MMAP_MAX: 0, M_ARENA_MAX: 1}


@dataclass(frozen=True)
class Course:
    """How a policy takes part: what it is, and how many of its batches pass before they count."""

    policy: ComparedPolicy
    skip: int = 2


def courses_of(quotas: Sequence[float], rows: int) -> dict[str, Course]:
    """All policies; LB-BSP moves so many rows at once that it arrives within some twenty steps."""
    moved = max(1, rows // LB_BSP_MOVES)
    equal, wanted = equal_split(len(quotas), rows).batch_sizes, apportion(quotas, rows)
    away = sum(max(0, there - here) for here, there in zip(equal, wanted, strict=True))
    lb_bsp = replace(
        POLICIES["lb_bsp"], strategy=lambda: lightning_boa.LbBspStrategy(rows_moved=moved)
    )
    courses = {name: Course(policy) for name, policy in POLICIES.items()}
    return courses | {"lb_bsp": Course(lb_bsp, skip=4 + away // moved)}


def main(arguments: Sequence[str] | None = None, mounts: Path = MOUNTS) -> int:
    options = parse(arguments)
    console = Console()
    order = list(dict.fromkeys([REFERENCE, OURS, *options.policies]))
    launches = []
    try:
        for number in range(options.launches):
            with cpu_groups(options.quotas, mounts) as groups:
                console.print(f"launch {number + 1} of {options.launches}: {', '.join(order)} …")
                found = run_ranks(run_rank, len(groups), groups, order, options)
            launches.append(evaluate(found, options.rows))
            console.print(
                "  ddp / boa {gains[boa]:.2f}, allowed {allowed:.2f}".format(**launches[-1])
            )
    except NoCpuGroupsError as reason:
        console.print(
            f"Processors cannot be limited here: {reason}; run it as root on a Linux machine whose control groups"
            " may be written.",
            soft_wrap=True,
        )
        return NO_PLACE
    console.print(step_table(launches, options.quotas), gain_table(launches))
    reached = sum(launch["enough"] for launch in launches)
    summary = {"benchmark": "cpu_quota", "quotas": options.quotas, "rows": options.rows}
    print(json.dumps({**summary, "launches": launches, "reached": reached}))
    return 0 if reached == len(launches) else 1


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--quotas", nargs="+", type=_quota, default=[1.0, 0.33], help="cores for each rank"
    )
    parser.add_argument("--launches", type=int, default=5)
    parser.add_argument(
        "--policies", nargs="*", choices=POLICIES, default=BESIDE, help="beside ddp and boa"
    )
    parser.add_argument("--rows", type=int, default=1024, help="of a global batch")
    parser.add_argument("--channels", type=int, default=40, help="of the network's first layer")
    parser.add_argument("--turns", type=int, default=8, help="of each policy in a launch")
    parser.add_argument("--steps", type=int, default=3, help="measured steps of a turn")
    options = parser.parse_args(arguments)
    if options.turns < 2:
        parser.error(f"--turns: expected at least 2, got {options.turns}")
    if options.rows % len(options.quotas):
        parser.error(
            f"--rows: expected a multiple of {len(options.quotas)} ranks, got {options.rows}"
        )
    return options


def _quota(text: str) -> float:
    quota = float(text)
    if not LEAST_QUOTA <= quota <= 1:
        raise argparse.ArgumentTypeError(f"expected {LEAST_QUOTA} to 1 core, got {text}")
    return quota


class Digits(Dataset[tuple[Tensor, Tensor]]):
    """Handwritten digits, drawn over and over; a batch is fetched at once."""

    def __init__(self, rows: int) -> None:
        pictures, labels = DigitsData().train_set.tensors
        random = torch.Generator().manual_seed(0)
        chosen = torch.randint(len(labels), (rows,), generator=random)
        self._pictures = pictures[chosen]
        self._labels = labels[chosen]

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self._pictures[index], self._labels[index]

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        return self._pictures[indices], self._labels[indices]

    @staticmethod
    def as_it_is(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return batch


def run_rank(
    rank: int, groups: list[Path], order: list[str], options: argparse.Namespace
) -> dict[str, Any]:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    join(groups[rank])
    stay_on_own_core(rank, len(groups))
    keep_memory()
    digits = Digits(EPOCH_STEPS * options.rows)
    share = options.rows // len(groups)
    turns = Turns([*order, ALONE])
    courses = courses_of(options.quotas, options.rows)
    players = {name: Player(turns, name, courses[name], options) for name in order}
    alone = Alone(turns, share, digits, options)
    trainings = {name: partial(train, player, share, digits) for name, player in players.items()}
    turns.run({**trainings, ALONE: alone.measure})
    everyone: list[Any] = [None] * len(groups)
    torch.distributed.all_gather_object(everyone, alone.seconds)
    return {"runs": {name: player.found for name, player in players.items()}, "alone": everyone}


def stay_on_own_core(rank: int, ranks: int) -> None:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) >= ranks:
        os.sched_setaffinity(0, {cores[rank]})


def keep_memory() -> None:
    """Let glibc hand no memory back: a step that has to fetch it anew takes up to a quarter longer, by its rows."""
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        for option, value in GLIBC_KEEPS_MEMORY.items():
            set_option(option, value)


def train(player: Player, share: int, digits: Digits) -> None:
    options, policy = player.options, player.course.policy
    trainer = quiet_trainer(policy.strategy(), len(options.quotas), [player])
    trainer.fit(
        ConvNet(options.channels),
        DataLoader(digits, batch_size=share, shuffle=True, collate_fn=Digits.as_it_is),
    )


class Player(pl.Callback):
    """Measures a training's steps of each turn but its first one, which the hand-over disturbs."""

    def __init__(
        self, turns: Turns, name: str, course: Course, options: argparse.Namespace
    ) -> None:
        self.course = course
        self.options = options
        self.found: dict[str, Any] = {"seconds": [], "warmup_steps": 0, "plan": None}
        self._turns = turns
        self._name = name
        self._updates = len(options.quotas) if course.policy.is_asynchronous else 1
        self._skipped = 0
        self._batch: int | None = None
        self._began = 0.0

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self._batch is None:
            self._warm_up(trainer)
        elif self._batch == (1 + self.options.steps) * self._updates:
            self._end_turn(trainer)
        if self._batch == self._updates:
            self._began = time.perf_counter()
        if self._batch is not None:
            self._batch += 1

    def _warm_up(self, trainer: pl.Trainer) -> None:
        if self.course.policy.waits_for_plan and not has_measured(trainer):
            self.found["warmup_steps"] += 1
        elif self._skipped < self.course.skip:
            self._skipped += 1
        else:
            self._pass_on()

    def _end_turn(self, trainer: pl.Trainer) -> None:
        seconds = self.found["seconds"]
        seconds.append((time.perf_counter() - self._began) / self.options.steps)
        plan = getattr(trainer.strategy, "plan", None)
        self.found["plan"] = None if plan is None else plan.batch_sizes
        if len(seconds) == self.options.turns:
            trainer.should_stop = True
        else:
            self._pass_on()

    def _pass_on(self) -> None:
        self._turns.hand_over()
        self._turns.wait_for(self._name)
        self._batch = 0


class Alone:
    """Measures a rank's own forward and backward in each turn, at some sizes around the equal share."""

    def __init__(
        self, turns: Turns, share: int, digits: Digits, options: argparse.Namespace
    ) -> None:
        sizes = [max(1, round(part * share)) for part in PARTS_OF_A_SHARE]
        self.seconds: dict[int, list[float]] = {size: [] for size in sizes}
        self._batches = {size: digits.__getitems__(list(range(size))) for size in sizes}
        self._model = ConvNet(options.channels)
        self._turns = turns
        self._number_of_turns = options.turns

    def measure(self) -> None:
        for _ in range(self._number_of_turns):
            self._turns.hand_over()
            self._turns.wait_for(ALONE)
            torch.distributed.barrier()
            for size in self.seconds:
                self.seconds[size] += [self._step(size) for _ in range(STEPS_ALONE)][1:]

    def _step(self, size: int) -> float:
        began = time.perf_counter()
        self._model.training_step(self._batches[size]).backward()
        seconds = time.perf_counter() - began
        self._model.zero_grad()
        return seconds


def evaluate(found: dict[str, Any], rows: int) -> dict[str, Any]:
    """What the ranks' own speeds allow, and what each policy's steps got of it."""
    models = [TableTime(list(rank), [*map(median, rank.values())]) for rank in found["alone"]]
    equal = equal_split(len(models), rows).batch_sizes
    equal_seconds = [float(m.seconds(share)) for m, share in zip(models, equal, strict=True)]
    best = plan_batches(models, rows)
    assert best.step_seconds is not None
    allowed = max(equal_seconds) / best.step_seconds
    seconds = {name: run["seconds"] for name, run in found["runs"].items()}
    gains = {
        name: median(equal / own for equal, own in zip(seconds[REFERENCE], each, strict=True))
        for name, each in seconds.items()
    }
    return {
        "seconds": {name: round(median(each), 5) for name, each in seconds.items()},
        "gains": {name: round(gain, 4) for name, gain in gains.items()},
        "equal_seconds_alone": [round(each, 5) for each in equal_seconds],
        "best_seconds_alone": round(best.step_seconds, 5),
        "best_plan": best.batch_sizes,
        "spread_alone": [round(_spread(rank), 4) for rank in found["alone"]],
        "allowed": round(allowed, 4),
        "part_of_allowed": round(gains[OURS] / allowed, 4),
        "enough": gains[OURS] >= WANTED * allowed,
        "plans": {name: run["plan"] for name, run in found["runs"].items()},
        "warmup_steps": {name: run["warmup_steps"] for name, run in found["runs"].items()},
    }


def _spread(alone: dict[int, list[float]]) -> float:
    """The width of the middle half of a rank's own times at a size, as a part of their median; median of all sizes."""
    parts = []
    for seconds in alone.values():
        low, _, high = quantiles(seconds, n=4, method="inclusive")
        parts.append((high - low) / median(seconds))
    return median(parts)


def step_table(launches: list[dict[str, Any]], quotas: list[float]) -> Table:
    cores = " and ".join(f"{quota:g}" for quota in quotas)
    table = Table(title=f"step time in ms, ranks limited to {cores} of a core")
    table.add_column("launch", justify="right")
    for name in launches[0]["seconds"]:
        table.add_column(POLICIES[name].name, justify="right")
    for number, launch in enumerate(launches, start=1):
        table.add_row(str(number), *(f"{1000 * each:.0f}" for each in launch["seconds"].values()))
    return table


def gain_table(launches: list[dict[str, Any]]) -> Table:
    table = Table(title="what BOA gained, and what the ranks' own speeds allow")
    columns = (
        "launch",
        "alone, equal\nsplit (ms)",
        "spread\n(%)",
        "ddp / boa",
        "allowed",
        "part of it",
    )
    for column in (*columns, "rows", "best rows"):
        table.add_column(column, justify="right")
    for number, launch in enumerate(launches, start=1):
        table.add_row(
            str(number),
            _joined(round(1000 * each) for each in launch["equal_seconds_alone"]),
            _joined(round(100 * each) for each in launch["spread_alone"]),
            f"{launch['gains'][OURS]:.2f} x",
            f"{launch['allowed']:.2f} x",
            f"{launch['part_of_allowed']:.3f}" + ("" if launch["enough"] else f"\n(< {WANTED})"),
            _joined(launch["plans"][OURS]),
            _joined(launch["best_plan"]),
        )
    return table


def _joined(numbers: Iterable[int]) -> str:
    return " / ".join(map(str, numbers))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    raise SystemExit(main())
