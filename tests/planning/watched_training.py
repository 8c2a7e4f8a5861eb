"""A whole training with the real watch on every rank, on devices that become slower and faster as a test says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lightning_boa.callbacks.step_watch import StepWatch
from lightning_boa.planning import (
    BLOCK_STEPS,
    InPasses,
    Orchestration,
    OrchestrationSettings,
    Parkable,
    Rebalancing,
    StepRecord,
    TimeModel,
    allocate,
)
from lightning_boa.planning.time_models import scaled
from lightning_boa.profiling import BlockFigures

PARKED = 1e-9


class GatheredFigures:
    """The figures of all ranks; a rank that receives before all have sent would wait for ever."""

    def __init__(self, ranks: int) -> None:
        self._sent: list[list[float]] = [[] for _ in range(ranks)]
        self.exchanges = [MemoryExchange(self._sent, rank) for rank in range(ranks)]


class MemoryExchange:
    """One rank's end; a `BlockExchange` without processes."""

    def __init__(self, sent: list[list[float]], rank: int) -> None:
        self._sent, self._rank = sent, rank
        self.is_under_way = False

    def send(
        self, *, wants_change: bool, ratios: Sequence[float], period: float, loader_wait: float
    ) -> None:
        assert len(ratios) == BLOCK_STEPS
        assert not self.is_under_way
        self._sent[self._rank] = [float(wants_change), period, loader_wait, *ratios]
        self.is_under_way = True

    def receive(self) -> BlockFigures:
        assert self.is_under_way
        assert all(self._sent), "a rank has not sent its figures: all others would wait for it"
        self.is_under_way = False
        table = np.asarray(self._sent)
        return BlockFigures(bool(table[0, 0]), table[:, 3:], table[:, 1], table[:, 2])


@dataclass
class KeptRecords:
    """Stands for a rank's `StepClock`."""

    kept: list[StepRecord] = field(default_factory=list)

    def records(self, *, before: int) -> list[StepRecord]:
        given = [record for record in self.kept if record.step < before]
        self.kept = self.kept[len(given) :]
        return given


@dataclass
class WatchedTraining:
    """Plays the trainer and the callback.

    ``slower`` gives a device's factor at (step, rank), ``common`` that of a step on all ranks. ``noise`` is the
    standard deviation of a measured time as a share of it; ``outliers`` maps (step, rank) to a factor of what is
    measured. ``first_block`` are steps by which the first block begins later, ``beside`` a step's seconds beside the
    slowest rank's computation, ``loader_waits`` each rank's seconds of waiting for its batch. ``memory`` are the most
    rows that each device holds at once.
    """

    devices: Sequence[TimeModel]
    batch: int = 256
    slower: Callable[[int, int], float] = lambda step, rank: 1.0
    common: Callable[[int], float] = lambda step: 1.0
    noise: float = 0.0
    seed: int = 0
    outliers: Mapping[tuple[int, int], float] = field(default_factory=dict)
    read_ahead: int = 2
    first_block: int = 0
    beside: float = 0.01
    loader_waits: Sequence[float] = ()
    steps_per_epoch: int = 1_000_000
    row_caps: Sequence[int] | None = None
    memory: Sequence[int] | None = None
    options: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ranks = len(self.devices)
        bounds = {"lower": (1,) * ranks, "upper": (self.batch,) * ranks}
        self.settings = OrchestrationSettings(ranks, self.batch, **{**bounds, **self.options})
        self.states = [Orchestration.begin(self.settings, 0)] * ranks
        self.watches: list[StepWatch] = []
        self.clocks = [KeptRecords() for _ in self.devices]
        self.seconds: list[float] = []
        self.decided_at: list[int] = []
        self.wished_at: list[int] = []
        self.measured: list[int] = []
        self.slow_loaders: list[tuple[int, tuple[int, float]]] = []
        self._random = np.random.default_rng(self.seed)
        self._pending: list[StepRecord] = []

    @property
    def state(self) -> Orchestration:
        return self.states[0]

    @property
    def _passes_of_devices(self) -> Sequence[TimeModel]:
        """The true times of a pass."""
        return [Parkable(each) for each in self.devices] if self.settings.parks else self.devices

    @property
    def shares(self) -> Sequence[TimeModel]:
        """The true times of whole shares."""
        if self.memory is None:
            return self._passes_of_devices
        return [InPasses(*each) for each in zip(self._passes_of_devices, self.memory, strict=True)]

    @property
    def changes(self) -> tuple[Rebalancing, ...]:
        return self.state.rebalancings

    @property
    def watched_from(self) -> int:
        return self.measured[0]

    def run(self, until: int) -> WatchedTraining:
        """Go on up to the step ``until``."""
        for step in range(len(self.seconds), until):
            plan = self.state.schedule.plan_at(step)
            split = plan.batch_sizes
            passes = [plan.passes_of(rank, rows) for rank, rows in enumerate(split)]
            self._passes = [len(sizes) for sizes in passes]
            each = [
                sum(map(float, device.seconds(sizes)))
                for device, sizes in zip(self._passes_of_devices, passes, strict=True)
            ]
            seconds = self._factors(step) * np.asarray(each)
            self.seconds.append(float(seconds.max()))
            if self.state.exchange_after is not None:
                self._warm_up(step, self._records(step, split, seconds))
            elif self.watches:
                self._watch(step, split, seconds)
        assert all(state == self.state for state in self.states)
        return self

    def optimum(self, step: int) -> float:
        """Seconds of the fastest step that the bounds allow with the devices' speeds at ``step``."""
        factors = self._factors(step).tolist()
        devices = [scaled(each, factor) for each, factor in zip(self.shares, factors, strict=True)]
        return float(_times(devices, self.best_split(factors)).max())

    def best_split(self, factors: Sequence[float]) -> tuple[int, ...]:
        """The fastest split where each device takes so many times as long."""
        split: NDArray[np.int64] = allocate(
            [scaled(each, factor) for each, factor in zip(self.shares, factors, strict=True)],
            self.batch,
            lower=self.settings.lower,
            upper=self.settings.upper,
            granularity=self.settings.granularity,
        )
        return tuple(split.tolist())

    def efficiency(self, step: int) -> float:
        """The optimum's share of what the step takes."""
        return self.optimum(step) / self.seconds[step]

    def seconds_of_best_constant(self, victim: int, steps: range) -> float:
        """Seconds of these steps under the best split that never changes, where only the victim's speed does."""
        factors = np.asarray([self._factors(step) for step in steps])
        slownesses = np.linspace(factors[:, victim].min(), factors[:, victim].max(), 41)
        others = np.ones(len(self.devices))
        splits = {
            self.best_split(np.where(np.arange(len(others)) == victim, slowness, others).tolist())
            for slowness in slownesses
        }
        return min(
            float((factors * _times(self.shares, split)).max(axis=1).sum()) for split in splits
        )

    def _factors(self, step: int) -> NDArray[np.float64]:
        own = [self.slower(step, rank) for rank in range(len(self.devices))]
        return np.asarray(own) * self.common(step)

    def _records(
        self, step: int, split: Sequence[int], seconds: NDArray[np.float64]
    ) -> list[StepRecord]:
        noise = np.maximum(0.1, 1 + self.noise * self._random.standard_normal(len(split)))
        outliers = [self.outliers.get((step, rank), 1.0) for rank in range(len(split))]
        computed = (seconds * noise * outliers).tolist()
        waits = self.loader_waits or (0.0,) * len(split)
        slowest = max(computed)
        period = slowest + max(waits) + self.beside
        return [
            StepRecord(
                step,
                rank,
                rows,
                self.batch,
                max(time, PARKED),
                wait,
                slowest - time,
                0.0,
                period,
                self._passes[rank],
            )
            for rank, (rows, time, wait) in enumerate(zip(split, computed, waits, strict=True))
        ]

    def _warm_up(self, step: int, records: Sequence[StepRecord]) -> None:
        self._pending += records
        if step != self.state.exchange_after:
            return
        observed = self.state.observe(
            self._pending, first_free_step=step + 1 + self.read_ahead, row_caps=self.row_caps
        )
        self._pending = []
        self.states = [observed] * len(self.states)
        if observed.watch is not None:
            self.restart_watches(step + 1 + self.first_block)

    def restart_watches(self, first_step: int) -> None:
        """New watches, as at the start of a training."""
        exchanges = GatheredFigures(len(self.devices)).exchanges
        self.watches = [
            StepWatch(first_step, rank, exchange)  # type: ignore[arg-type]
            for rank, exchange in enumerate(exchanges)
        ]

    def _watch(self, step: int, split: Sequence[int], seconds: NDArray[np.float64]) -> None:
        if self.watches[0].measures(step):
            self.measured.append(step)
            for clock, record in zip(self.clocks, self._records(step, split, seconds), strict=True):
                clock.kept.append(record)
        wishes = set()
        for rank, watch in enumerate(self.watches):
            self.states[rank], wish = watch.end_step(
                step,
                self.clocks[rank],  # type: ignore[arg-type]
                self.states[rank],
            )
            wishes.add(wish)
            if watch.slow_loader is not None:
                self.slow_loaders.append((rank, watch.slow_loader))
                watch.slow_loader = None
        (wish,) = wishes
        self.wished_at += [step] * wish
        how = self.settings.rebalance
        if (wish and how == "auto") or (how == "epoch" and (step + 1) % self.steps_per_epoch == 0):
            self._rebalance(step)

    def _rebalance(self, step: int) -> None:
        before = self.state
        after = before.rebalanced(step + 1 + self.read_ahead, self.row_caps)
        self.states = [after] * len(self.states)
        self.decided_at += [step] * (after.rebalancings != before.rebalancings)


def _times(devices: Sequence[TimeModel], split: Sequence[int]) -> NDArray[np.float64]:
    return np.asarray(
        [float(each.seconds(rows)) for each, rows in zip(devices, split, strict=True)]
    )
