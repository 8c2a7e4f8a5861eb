"""The warm-up in real processes finds the plan; time is virtual, so nothing depends on the machine's speed."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import pytest
import pytorch_lightning as pl
from torch.utils.data import DataLoader

from lightning_boa import BoaStrategy, EmulatedCluster
from lightning_boa.planning import LinearTime, Orchestration, plan_batches
from lightning_boa.profiling import HostTimeline, MemoryProfile, StepClock
from tests.processes.ranks import run_ranks
from tests.processes.training import (
    NumberedRows,
    Outcome,
    Regression,
    Training,
    loaders,
    outcome,
    quiet,
    relative_error,
    rows_of_steps,
    train_alone,
    trainer_options,
)
from tests.processes.virtual_time import VirtualTime

RANKS = 3
ROWS = 60
TRAINING = Training(rows=ROWS * 40 + 7, global_batch_size=ROWS, epochs=1)
CLUSTERS = {
    "three kinds": [LinearTime(0.0, 1.0), LinearTime(0.0, 2.04), LinearTime(0.0, 4.9)],
    "fixed costs": [LinearTime(4.0, 1.0), LinearTime(20.0, 1.0), LinearTime(1.0, 2.0)],
    "latency floor": [LinearTime(0.0, 1.0, 30.0), LinearTime(0.0, 2.0), LinearTime(0.0, 4.0)],
    "equal": [LinearTime(1.0, 1.0)] * 3,
    "little memory": [LinearTime(0.0, 1.0), LinearTime(0.0, 2.04), LinearTime(0.0, 4.9)],
}
AVAILABLE_BYTES = (400, 10_000, 10_000)
ROWS_THAT_FIT = (26, ROWS, ROWS)
WITH_WORKERS = "three kinds"
ANY_SIZE = "batches of any size"
RELOADED = "other batches from the second epoch on"


class InVirtualTime(BoaStrategy):
    """Measures by a clock that the test moves, and by a gauge for which a row takes 10 bytes of memory."""

    time: VirtualTime
    limited: bool

    def new_clock(self) -> StepClock:
        return StepClock(self.global_rank, HostTimeline(self.time), clock=self.time)

    def new_memory_profile(self) -> MemoryProfile | None:
        return MemoryProfile(self) if self.limited else None

    def begin_step(self) -> int:
        return 100

    def peak(self) -> int:
        assert self.share is not None
        return 100 + 10 * self.share.rows

    def available(self) -> int:
        return AVAILABLE_BYTES[self.global_rank]


def batch_lists() -> list[list[int]]:
    """120 lists of 5 to 33 rows, one after the other."""
    sizes = [5 + 7 * (number % 5) + 11 * number % 3 for number in range(120)]
    ends = list(accumulate(sizes, initial=0))
    return [list(range(start, end)) for start, end in pairwise(ends)]


def train(rank: int) -> dict[tuple[str, int], tuple[Outcome, Orchestration, tuple[str, ...]]]:
    found = {}
    for name, workers in [*((name, 0) for name in CLUSTERS), (WITH_WORKERS, 1)]:
        training = Training(**{**vars(TRAINING), "workers": workers})
        loader = loaders(training, 1)[0]
        found[name, workers] = fit(name, loader, global_batch_size=ROWS)
    lists = DataLoader(NumberedRows(sum(map(len, batch_lists()))), batch_sampler=batch_lists())
    found[ANY_SIZE, 0] = fit("three kinds", lists)
    found[RELOADED, 0] = fit("three kinds", ReloadedRows(), epochs=3)
    return found


class ReloadedRows(pl.LightningDataModule):
    """Batches of 20 rows in the first epoch, of 11 later."""

    def train_dataloader(self) -> Any:
        assert self.trainer is not None
        rows = 11 if self.trainer.current_epoch else 20
        return DataLoader(NumberedRows(40 * 3 * rows), batch_size=rows, shuffle=True)


def fit(
    name: str, data: Any, *, epochs: int = 1, **options: Any
) -> tuple[Outcome, Orchestration, tuple[str, ...]]:
    models = CLUSTERS[name]
    virtual = VirtualTime()
    quiet()
    pl.seed_everything(TRAINING.seed)
    strategy = InVirtualTime(**options)
    strategy.time = virtual
    strategy.limited = name == "little memory"
    cluster = EmulatedCluster(
        [model.seconds_per_sample for model in models],
        [model.overhead for model in models],
        [model.floor for model in models],
        names=["one", "two", "three"],
        clock=virtual,
        sleep=virtual.sleep,
        work_clock=lambda: 0.0,
    )
    flags = {**trainer_options(TRAINING), "max_epochs": epochs, "callbacks": [cluster]}
    trainer = pl.Trainer(
        strategy=strategy, devices=RANKS, reload_dataloaders_every_n_epochs=1, **flags
    )
    module = Regression(schedules=epochs == 1)
    trainer.fit(module, data)
    assert strategy.orchestration is not None
    return outcome(trainer, module), strategy.orchestration, strategy.device_names


@pytest.fixture(scope="module")
def found() -> list[dict[Any, Any]]:
    return run_ranks(train, RANKS)


CASES = [*((name, 0) for name in CLUSTERS), (WITH_WORKERS, 1)]


@pytest.mark.parametrize(("name", "workers"), CASES)
def test_finds_the_fastest_plan(found: Any, name: str, workers: int) -> None:
    models = CLUSTERS[name]
    fits = ROWS_THAT_FIT if name == "little memory" else (ROWS,) * RANKS
    optimum = plan_batches(models, ROWS, max_batch_size=fits).step_seconds
    assert optimum is not None
    for by_rank in found:
        outcome, orchestration, names = by_rank[name, workers]
        seconds = [float(m.seconds(b)) for m, b in zip(models, outcome.plan, strict=True)]
        assert max(seconds) <= 1.03 * optimum
        assert outcome.plan == found[0][name, workers][0].plan
        assert orchestration.phase == "planned"
        assert orchestration.exchange_after is None
        assert names == ("one", "two", "three")


@pytest.mark.parametrize(("name", "workers"), CASES)
def test_learns_what_one_device_learns(found: Any, name: str, workers: int) -> None:
    alone = train_alone(TRAINING)
    together = [by_rank[name, workers][0] for by_rank in found]
    for each in together:
        assert relative_error(each.weights, alone.weights) < 1e-10
    assert rows_of_steps(together) == alone.seen


def test_measures_what_the_devices_take(found: Any) -> None:
    _, orchestration, _ = found[0]["fixed costs", 0]
    measured = orchestration.equal_measurement
    assert measured is not None
    assert measured.rank_compute == pytest.approx((24.0, 40.0, 41.0), rel=1e-9)
    for fit, model in zip(orchestration.fits, CLUSTERS["fixed costs"], strict=True):
        assert fit.model.overhead == pytest.approx(model.overhead, abs=1e-6)
        assert fit.model.seconds_per_sample == pytest.approx(model.seconds_per_sample, rel=1e-6)


def test_no_split_is_predicted_to_need_more_than_90_percent_of_memory(found: Any) -> None:
    outcome, orchestration, _ = found[0]["little memory", 0]
    assert outcome.plan[0] == ROWS_THAT_FIT[0]
    for _, plan in orchestration.schedule.entries:
        assert 100 + 10 * plan.batch_sizes[0] <= 0.9 * AVAILABLE_BYTES[0]


def test_equal_devices_keep_the_equal_split(found: Any) -> None:
    outcome, orchestration, _ = found[0]["equal", 0]
    assert outcome.plan == (20, 20, 20)
    splits = [plan.batch_sizes for _, plan in orchestration.schedule.entries]
    assert splits == [(20, 20, 20), (25, 25, 10), (20, 20, 20)]


def test_batches_of_any_size_are_measured_and_learned_from_exactly(found: Any) -> None:
    lists = batch_lists()
    steps = [[row for each in lists[n : n + RANKS] for row in each] for n in range(0, 120, RANKS)]
    together = [by_rank[ANY_SIZE, 0][0] for by_rank in found]
    assert rows_of_steps(together) == steps
    assert together[0].plan == together[1].plan == together[2].plan

    models = CLUSTERS["three kinds"]
    last = [len(each.seen[-1]) for each in together]
    optimum = plan_batches(models, sum(last)).step_seconds
    assert optimum is not None
    seconds = [float(m.seconds(rows)) for m, rows in zip(models, last, strict=True)]
    assert max(seconds) <= 1.06 * optimum

    quiet()
    pl.seed_everything(TRAINING.seed)
    alone = Regression()
    trainer = pl.Trainer(devices=1, **trainer_options(TRAINING))
    trainer.fit(alone, DataLoader(NumberedRows(sum(map(len, lists))), batch_sampler=steps))
    for each in together:
        assert relative_error(each.weights, outcome(trainer, alone).weights) < 1e-10


def test_other_batches_of_a_later_epoch_are_measured_anew(found: Any) -> None:
    outcome, orchestration, _ = found[0][RELOADED, 0]
    assert outcome.steps == 120
    assert sum(outcome.plan) == 33
    assert orchestration.first_step == 40
    models = CLUSTERS["three kinds"]
    optimum = plan_batches(models, 33).step_seconds
    assert optimum is not None
    seconds = [float(model.seconds(rows)) for model, rows in zip(models, outcome.plan, strict=True)]
    assert max(seconds) <= 1.03 * optimum
    assert orchestration.watch is not None
    steps = rows_of_steps([by_rank[RELOADED, 0][0] for by_rank in found])
    for epoch, rows in ((0, 2400), (1, 1320), (2, 1320)):
        seen = [row for step in steps[40 * epoch : 40 * epoch + 40] for row in step]
        assert sorted(seen) == list(range(rows))
