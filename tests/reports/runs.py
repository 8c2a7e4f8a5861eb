"""Records of trainings that never were: figures follow from the devices' times, with a little noise."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from lightning_boa.planning import LinearTime, Rebalancing, StepRecord, equal_split, plan_batches
from lightning_boa.reports import PlanReport, RankReport
from lightning_boa.reports.run_record import BlockRecord, RunRecord, Saving

BLOCK = 5
SOFTWARE = {"lightning_boa": "0.1.0", "torch": "2.13.0", "pytorch_lightning": "2.6.6"}


@dataclass(frozen=True)
class Device:
    """``seconds`` a row, ``overhead`` a step, ``factor`` times as long from step ``hot`` on."""

    name: str
    seconds: float
    overhead: float = 0.002
    hot: int = 10**9
    factor: float = 2.0

    def compute(self, rows: int, step: int) -> float:
        return (self.overhead + self.seconds * rows) * (self.factor if step >= self.hot else 1.0)


@dataclass(frozen=True)
class Costs:
    """Seconds of a step besides computation, and the noise of a step as a share."""

    loader: float = 0.001
    communication: float = 0.004
    optimizer: float = 0.002
    rest: float = 0.0005
    noise: float = 0.01


def a_run(
    devices: Sequence[Device],
    rows: int,
    *,
    blocks: int = 60,
    costs: Costs | None = None,
    **fields: Any,
) -> RunRecord:
    """A training whose warm-up tried three splits, which was then watched and re-balanced once where one gets hot."""
    costs = costs or Costs()
    chance = random.Random(1)
    equal = equal_split(len(devices), rows).batch_sizes
    plan = _best(devices, rows, 0)
    between = tuple((one + other) // 2 for one, other in zip(equal, plan, strict=True))
    between = (between[0] + rows - sum(between), *between[1:])
    plans, steps = [], []
    for number, (sizes, length) in enumerate(((equal, 6), (between, 4), (plan, 10))):
        first = sum((6, 4, 10)[:number])
        plans.append((first, sizes))
        for step in range(first, first + length):
            steps += _step(devices, sizes, step, rows, costs, chance)
    watched = _blocks(devices, rows, plan, blocks, costs, chance)
    changes = _changes(devices, watched)
    ranks = tuple(
        RankReport(
            rank,
            device.name,
            equal[rank],
            plan[rank],
            equal_seconds=device.compute(equal[rank], 0) * 1.003,
            boa_seconds=device.compute(plan[rank], 0) * chance.gauss(1, 0.006),
            predicted_seconds=device.compute(plan[rank], 0),
            predicted_error=device.compute(plan[rank], 0) * 0.006,
        )
        for rank, device in enumerate(devices)
    )
    outside = costs.loader + costs.communication + costs.optimizer + costs.rest
    saved = sum(BLOCK * (block.equal_period - block.period) for block in watched)
    trained = sum(BLOCK * block.period for block in watched)
    record = RunRecord(
        strategy="BoaStrategy",
        devices=tuple(device.name for device in devices),
        global_batch_size=rows,
        outcome="finished",
        last_step=20 + BLOCK * blocks - 1,
        plan=PlanReport(
            ranks,
            equal_step_seconds=max(rank.equal_seconds or 0 for rank in ranks) + outside,
            boa_step_seconds=max(rank.boa_seconds or 0 for rank in ranks) + outside,
            reason="the plan of the fits, confirmed by 9 steps",
        ),
        plans=(*plans, *((change.step, change.batch_sizes) for change in changes)),
        rebalancings=changes,
        steps=tuple(steps),
        blocks=watched,
        saving=Saving(saved, 0.01 * trained, trained, BLOCK * blocks) if watched else None,
        software=SOFTWARE,
        started="2026-11-30T14:00:00",
    )
    return replace(record, **fields)


def unmeasured(devices: Sequence[str], rows: int, **fields: Any) -> RunRecord:
    """A training whose shares were given."""
    sizes = equal_split(len(devices), rows).batch_sizes
    ranks = tuple(
        RankReport(rank, name, sizes[rank], sizes[rank]) for rank, name in enumerate(devices)
    )
    record = RunRecord(
        strategy="BoaStrategy",
        devices=tuple(devices),
        global_batch_size=rows,
        outcome="running",
        last_step=-1,
        plan=PlanReport(ranks, reason="these shares were given"),
    )
    return replace(record, **fields)


PAIR = (Device("fast", 0.001), Device("slow", 0.003))
THESIS = tuple(
    {"a": Device("GTX 1080", 0.005), "b": Device("GTX 1060", 0.01), "c": Device("M2000", 0.0245)}[
        kind
    ]
    for kind in "abcababa"
)
THROTTLED = (
    Device("cool", 0.003),
    Device("hot", 0.003, hot=150),
    Device("cool", 0.003),
    Device("cool", 0.003),
)


def many(number: int) -> tuple[Device, ...]:
    """Devices of five kinds, no two of which are quite equal."""
    kinds: Mapping[str, float] = {
        "NVIDIA H100 80GB HBM3": 0.0004,
        "NVIDIA A100-SXM4-40GB": 0.0009,
        "NVIDIA GeForce RTX 4090": 0.0011,
        "NVIDIA GeForce RTX 3090": 0.002,
        "Tesla V100-PCIE-16GB": 0.0035,
    }
    chance = random.Random(2)
    names = [list(kinds)[rank % 7 % 5] for rank in range(number)]
    return tuple(Device(name, kinds[name] * chance.uniform(0.93, 1.07)) for name in names)


def _best(devices: Sequence[Device], rows: int, step: int) -> tuple[int, ...]:
    models = [
        LinearTime(device.compute(0, step), device.compute(1, step) - device.compute(0, step))
        for device in devices
    ]
    return plan_batches(models, rows).batch_sizes


def _step(
    devices: Sequence[Device],
    sizes: Sequence[int],
    step: int,
    step_rows: int,
    costs: Costs,
    chance: random.Random,
) -> list[StepRecord]:
    settling = 3.0 if step == 0 else 1.0
    compute = [
        device.compute(rows, step) * chance.lognormvariate(0, costs.noise) * settling
        for device, rows in zip(devices, sizes, strict=True)
    ]
    period = costs.loader + max(compute) + costs.communication + costs.optimizer + costs.rest
    return [
        StepRecord(
            step=step,
            rank=rank,
            rows=sizes[rank],
            step_rows=step_rows,
            compute=seconds,
            loader_wait=costs.loader,
            communication=max(compute) - seconds + costs.communication,
            optimizer=costs.optimizer,
            period=period,
        )
        for rank, seconds in enumerate(compute)
    ]


def _blocks(
    devices: Sequence[Device],
    rows: int,
    plan: tuple[int, ...],
    number: int,
    costs: Costs,
    chance: random.Random,
) -> tuple[BlockRecord, ...]:
    equal = equal_split(len(devices), rows).batch_sizes
    outside = costs.loader + costs.communication + costs.optimizer + costs.rest
    hot = min(device.hot for device in devices)
    found = []
    for step in range(20, 20 + BLOCK * number, BLOCK):
        sizes = plan if step < hot + 3 * BLOCK else _best(devices, rows, hot)
        compute = [device.compute(size, step) for device, size in zip(devices, sizes, strict=True)]
        slowest = max(compute) * chance.lognormvariate(0, costs.noise)
        as_equal = max(
            device.compute(size, step) for device, size in zip(devices, equal, strict=True)
        )
        found.append(
            BlockRecord(
                step=step,
                batch_sizes=sizes,
                period=slowest + outside,
                loader_wait=costs.loader,
                compute=slowest,
                busy=tuple(seconds / max(compute) for seconds in compute),
                equal_period=as_equal + outside,
            )
        )
    return tuple(found)


def _changes(devices: Sequence[Device], blocks: Sequence[BlockRecord]) -> tuple[Rebalancing, ...]:
    return tuple(
        Rebalancing(
            step=after.step,
            batch_sizes_before=before.batch_sizes,
            batch_sizes=after.batch_sizes,
            scales=tuple(device.factor if after.step >= device.hot else 1.0 for device in devices),
            expected_gain=before.period / after.period - 1.02,
            seconds_before=before.period,
            seconds_after=after.period,
        )
        for before, after in pairwise(blocks)
        if before.batch_sizes != after.batch_sizes
    )
