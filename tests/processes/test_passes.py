"""Shares that run in several passes, in real processes: exact, whatever runs out of memory and where."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import StochasticWeightAveraging
from torch import Tensor, nn

from lightning_boa import BoaStrategy
from lightning_boa.errors import UnsupportedError
from lightning_boa.planning import BatchPlan, InPasses, LinearTime, Schedule, plan_batches
from lightning_boa.profiling import HostTimeline, MemoryProfile, StepClock
from tests.processes.ranks import run_ranks
from tests.processes.training import (
    FEATURES,
    NumberedRows,
    Outcome,
    Regression,
    Training,
    loaders,
    outcome,
    quiet,
    relative_error,
    train_alone,
    trainer_options,
)
from tests.processes.virtual_time import VirtualTime, emulated

pytestmark = pytest.mark.full

RANKS = 3
ROWS = 60
PLAIN = Training(rows=ROWS * 6 + 31, global_batch_size=ROWS, epochs=2, schedules=False)
IN_WINDOWS = Training(
    rows=ROWS * 6 + 31,
    global_batch_size=ROWS,
    epochs=2,
    schedules=False,
    trainer={"accumulate_grad_batches": 3, "gradient_clip_val": 0.1},
)
PLAN = BatchPlan((20, 24, 16), rows_per_pass=(None, 9, 10))


class Divided(BoaStrategy):
    """Has a plan by which ranks run 1, 3 and 2 passes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(max_batch_size="auto", **options)

    def begin_planning(self) -> None:
        super().begin_planning()
        self.orchestration = None
        self.fixed_schedule = Schedule.starting_with(PLAN)


class ShortOfMemory(BoaStrategy):
    """A row takes 10 bytes of a memory of which the model has 100."""

    available_bytes: tuple[int, ...]
    time: VirtualTime

    def new_clock(self) -> StepClock:
        return StepClock(self.global_rank, HostTimeline(self.time), clock=self.time)

    def new_memory_profile(self) -> MemoryProfile | None:
        self.peak_rows = 0
        return MemoryProfile(self)

    def begin_step(self) -> int:
        self.peak_rows = 0
        return 100

    def peak(self) -> int:
        return 100 + 10 * self.peak_rows

    def available(self) -> int:
        return self.available_bytes[self.global_rank]

    def allocate(self, rows: int) -> None:
        if 100 + 10 * rows > self.available():
            raise torch.OutOfMemoryError("CUDA out of memory. (injected)")
        self.peak_rows = max(self.peak_rows, rows)


class Counted(Regression):
    """Logs the numbers of its rows, for its rank alone and over ranks; may run out of memory."""

    def __init__(self, fails: str = "nowhere") -> None:
        super().__init__(schedules=False)
        self.fails = fails
        self.logged: list[tuple[float, float]] = []
        self.forwards: list[int] = []
        self.hooks: list[tuple[str, int]] = []
        self.validated: list[int] = []

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        super().validation_step(batch, batch_idx)
        if self.trainer.strategy.share.rows:
            self.validated.append(len(batch[0]))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        rows = len(batch[0])
        strategy: Any = self.trainer.strategy
        loss = super().training_step(batch, batch_idx)
        self.forwards.append(rows)
        numbers = batch[2].double()
        self.log("alone", numbers.mean(), on_step=True, on_epoch=True)
        self.log("together", numbers.mean(), on_step=True, on_epoch=True, sync_dist=True)
        if self.fails == "forward":
            strategy.allocate(rows)
        elif self.fails == "backward":
            self.fail_in_backward(rows)
        return loss

    def fail_in_backward(self, rows: int) -> None:
        """Once the gradients of the last layer are there."""
        strategy: Any = self.trainer.strategy

        def fail(gradient: Tensor) -> None:
            handle.remove()
            strategy.allocate(rows)

        handle = self.net[0].weight.register_hook(fail)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.hooks.append(("batch", len(batch[0])))

    def on_before_backward(self, loss: Tensor) -> None:
        self.hooks.append(("before", self.forwards[-1]))

    def on_after_backward(self) -> None:
        self.hooks.append(("after", self.forwards[-1]))

    def on_train_batch_end(self, *arguments: Any) -> None:
        metrics = self.trainer.callback_metrics
        self.logged.append((float(metrics["alone_step"]), float(metrics["together_step"])))


def trainer_with(strategy: BoaStrategy, training: Training, *callbacks: Any) -> pl.Trainer:
    quiet()
    pl.seed_everything(training.seed)
    options = {**trainer_options(training), "callbacks": list(callbacks)}
    return pl.Trainer(strategy=strategy, devices=RANKS, **options)


def fit(strategy: BoaStrategy, training: Training, module: Regression, *callbacks: Any) -> Outcome:
    trainer = trainer_with(strategy, training, *callbacks)
    trainer.fit(module, loaders(training, RANKS)[0])
    return outcome(trainer, module)


def with_plan(training: Training, **options: Any) -> tuple[Outcome, Counted]:
    module = Counted()
    strategy = Divided(global_batch_size=ROWS, **options)
    return fit(strategy, training, module), module


@dataclass(frozen=True)
class Short:
    """A training in which memory was short."""

    outcome: Outcome
    forwards: list[int]
    rows: list[int]
    logged: list[tuple[float, float]]
    orchestration: Any
    network: Any


def with_little_memory(fails: str, available: tuple[int, ...], training: Training) -> Short:
    strategy = ShortOfMemory(max_batch_size="auto", global_batch_size=ROWS)
    strategy.available_bytes = available
    cluster = emulated(strategy, [1.0] * RANKS)
    module = Counted(fails)
    found = fit(strategy, training, module, cluster)
    rows = [row for step in module.seen for row in step]
    return Short(
        found, module.forwards, rows, module.logged, strategy.orchestration, strategy.network
    )


class Normed(Counted):
    """Has statistics that the averaging of weights has to find anew."""

    def __init__(self) -> None:
        super().__init__()
        self.net.insert(0, nn.BatchNorm1d(FEATURES).double())

    def on_train_batch_end(self, *arguments: Any) -> None: ...


class Gathers(Counted):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.all_gather(torch.zeros(1))
        return super().training_step(batch, batch_idx)


def refusal(rank: int) -> str:
    try:
        fit(Divided(global_batch_size=ROWS), PLAIN, Gathers())
    except UnsupportedError as error:
        return str(error)
    return "nothing"


def warnings_of(strategy: BoaStrategy) -> list[str]:
    trainer = trainer_with(strategy, PLAIN)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(Regression(schedules=False), loaders(PLAIN, RANKS)[0])
    return [str(each.message) for each in caught if "in several passes" in str(each.message)]


PLENTY = 10_000
MEMORIES = {
    "rank 1": (PLENTY, 190, PLENTY),
    "ranks 1 and 2": (PLENTY, 190, 160),
    "all": (240, 190, 160),
}
CAPS = {"rank 1": (None, 7, None), "ranks 1 and 2": (None, 7, 5), "all": (11, 7, 5)}


def play(rank: int) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for name, training in {"plain": PLAIN, "in windows": IN_WINDOWS}.items():
        result, module = with_plan(training)
        found["planned", name] = result, module.forwards, module.seen, module.logged
    result, module = with_plan(PLAIN, batch_weight=rows_of)
    found["planned", "function"] = result, module.forwards, module.seen, module.logged
    result, module = with_plan(replace(PLAIN, workers=1))
    found["planned", "workers"] = result, module.forwards, module.seen, module.logged
    found["hooks"] = module.hooks
    averaged = Normed()
    swa = StochasticWeightAveraging(0.05, swa_epoch_start=1, annealing_epochs=1)
    fit(Divided(global_batch_size=ROWS), PLAIN, averaged, swa)
    found["an epoch of forwards"] = averaged.seen
    normed = Normed()
    one_epoch = replace(PLAIN, rows=ROWS, epochs=1)
    fit(Divided(global_batch_size=ROWS), one_epoch, normed)
    found["batch norm"] = (
        normed.net[0].running_mean.clone(),
        normed.net[0].num_batches_tracked.item(),
    )
    validating = Counted()
    strategy = Divided(global_batch_size=ROWS)
    trainer = trainer_with(strategy, replace(PLAIN, epochs=1))
    trainer.fit(validating, *loaders(replace(PLAIN, validation_rows=100), 12))
    found["validated"] = validating.validated
    for where in ("forward", "backward"):
        for name, available in MEMORIES.items():
            found[where, name] = with_little_memory(where, available, PLAIN)
        found[where, "in windows"] = with_little_memory(where, MEMORIES["rank 1"], IN_WINDOWS)
    found["fast with little memory"] = fast_with_little_memory(rank)
    for name, arguments in EMULATED.items():
        found["emulated", name] = emulated_memory(rank, *arguments)
    found["warnings"] = warnings_of(BoaStrategy(max_batch_size="auto", find_unused_parameters=True))
    return found


def fast_with_little_memory(rank: int) -> tuple[Outcome, Any]:
    """Rank 0 is three times as fast as the others and holds a quarter of its share at once."""
    strategy = ShortOfMemory(max_batch_size="auto", global_batch_size=ROWS)
    strategy.available_bytes = (230, PLENTY, PLENTY)
    cluster = emulated(strategy, [1.0, 3.0, 3.0], overhead=OVERHEAD)
    return fit(strategy, MEASURED, Counted("backward"), cluster), strategy.orchestration


class InVirtualTime(BoaStrategy):
    time: VirtualTime

    def new_clock(self) -> StepClock:
        return StepClock(self.global_rank, HostTimeline(self.time), clock=self.time)


def emulated_memory(rank: int, at_once: Sequence[int | None], by_itself: bool) -> Any:
    """Memory is short on some ranks before their forward has begun, and the others' is not measured at all."""
    strategy = InVirtualTime(max_batch_size="auto" if by_itself else None, global_batch_size=ROWS)
    cluster = emulated(strategy, [1.0, 3.0, 3.0], overhead=OVERHEAD, rows_at_once=at_once)
    result = fit(strategy, MEASURED, Regression(schedules=False), cluster)
    return result, strategy.orchestration, strategy.network


EMULATED: dict[str, tuple[tuple[int | None, ...], bool]] = {
    "first": ((12, None, None), True),
    "two": ((None, 9, 12), True),
    "bounded": ((22, None, None), False),
}
OVERHEAD = 4.0
MEASURED = Training(rows=ROWS * 30, global_batch_size=ROWS, epochs=1, schedules=False)


def rows_of(batch: Any) -> int:
    return len(batch[0])


@pytest.fixture(scope="module")
def found() -> list[dict[Any, Any]]:
    return run_ranks(play, RANKS)


PLANNED = {"plain": PLAIN, "in windows": IN_WINDOWS, "function": PLAIN, "workers": PLAIN}


@pytest.mark.parametrize("name", PLANNED)
def test_uneven_passes_learn_what_one_device_learns(found: Any, name: str) -> None:
    alone = train_alone(PLANNED[name])
    for by_rank in found:
        assert relative_error(by_rank["planned", name][0].weights, alone.weights) < 1e-10
    for by_rank, passes in zip(found, ((20,), (8, 8, 8), (8, 8)), strict=True):
        assert tuple(by_rank["planned", name][1][: len(passes)]) == passes


@pytest.mark.parametrize("name", PLANNED)
def test_every_row_is_used_once_whatever_the_passes(found: Any, name: str) -> None:
    seen = [row for by_rank in found for rows in by_rank["planned", name][2] for row in rows]
    assert sorted(seen) == sorted([*range(PLAIN.rows)] * 2)


@pytest.mark.parametrize("name", PLANNED)
def test_a_step_logs_what_it_would_in_one_pass(found: Any, name: str) -> None:
    alone = train_alone(PLANNED[name])
    logged = [by_rank["planned", name][3] for by_rank in found]
    first = alone.seen[0]
    for rank, share in enumerate((first[:20], first[20:44], first[44:])):
        assert logged[rank][0] == pytest.approx((sum(share) / len(share), sum(first) / ROWS))
    together = [[step[1] for step in by_rank] for by_rank in logged]
    assert together[0] == together[1] == together[2]
    assert together[0] == pytest.approx([sum(rows) / len(rows) for rows in alone.seen])
    epoch = [by_rank["planned", name][0].metrics["together_epoch"] for by_rank in found]
    assert epoch == pytest.approx([sum(range(PLAIN.rows)) / PLAIN.rows] * RANKS)


OUT_OF_MEMORY = [
    (where, name) for where in ("forward", "backward") for name in (*MEMORIES, "in windows")
]


@pytest.mark.parametrize(("where", "name"), OUT_OF_MEMORY)
def test_a_step_that_ran_out_of_memory_learns_what_one_device_learns(
    found: Any, where: str, name: str
) -> None:
    alone = train_alone(IN_WINDOWS if name == "in windows" else PLAIN)
    for by_rank in found:
        assert relative_error(by_rank[where, name].outcome.weights, alone.weights) < 1e-10


@pytest.mark.parametrize(("where", "name"), OUT_OF_MEMORY)
def test_all_ranks_know_what_fits_where_memory_was_short(found: Any, where: str, name: str) -> None:
    for by_rank in found:
        caps = by_rank[where, name].orchestration.row_caps
        for cap, expected in zip(caps, CAPS.get(name, CAPS["rank 1"]), strict=True):
            assert cap == expected or (expected is None and cap > ROWS)
    for by_rank, cap in zip(found, CAPS.get(name, CAPS["rank 1"]), strict=True):
        forwards = by_rank[where, name].forwards
        if cap is None:
            assert forwards[0] == 20
            assert sum(forwards) == len(by_rank[where, name].rows)
        else:
            assert forwards[:2] == [20, 10]
            assert max(forwards[3:]) <= max(cap, 10)


@pytest.mark.parametrize(("where", "name"), OUT_OF_MEMORY)
def test_a_step_that_ran_out_of_memory_logs_what_any_other_does(
    found: Any, where: str, name: str
) -> None:
    alone = train_alone(IN_WINDOWS if name == "in windows" else PLAIN)
    means = [sum(rows) / len(rows) for rows in alone.seen]
    for by_rank in found:
        assert [step[1] for step in by_rank[where, name].logged] == pytest.approx(means)
        epoch = by_rank[where, name].outcome.metrics["together_epoch"]
        assert epoch == pytest.approx(sum(range(PLAIN.rows)) / PLAIN.rows)


def test_memory_does_not_cap_the_share_of_a_fast_rank(found: Any) -> None:
    alone = train_alone(MEASURED)
    fast, slow = LinearTime(OVERHEAD, 1.0), LinearTime(OVERHEAD, 3.0)
    at_once = 10
    optimum = plan_batches([InPasses(fast, at_once), slow, slow], ROWS).step_seconds
    bounded = plan_batches([fast, slow, slow], ROWS, max_batch_size=[at_once, ROWS, ROWS])
    assert optimum is not None
    assert bounded.step_seconds is not None
    assert optimum < 0.7 * bounded.step_seconds
    for by_rank in found:
        result, orchestration = by_rank["fast with little memory"]
        assert relative_error(result.weights, alone.weights) < 1e-10
        assert orchestration.row_caps[0] == at_once
        assert orchestration.plan.rows_per_pass[0] <= at_once
        seconds = [
            float(model.seconds(rows))
            for model, rows in zip((InPasses(fast, at_once), slow, slow), result.plan, strict=True)
        ]
        assert max(seconds) <= 1.03 * optimum


@pytest.mark.parametrize("name", EMULATED)
def test_memory_may_be_short_on_some_ranks_only(found: Any, name: str) -> None:
    alone = train_alone(MEASURED)
    at_once, by_itself = EMULATED[name]
    for by_rank in found:
        result, orchestration, network = by_rank["emulated", name]
        assert relative_error(result.weights, alone.weights) < 1e-10
        assert orchestration.phase == "planned"
        for rows, cap in zip(at_once, orchestration.row_caps, strict=True):
            assert cap <= rows if rows is not None else cap > ROWS
        assert (network is None) == by_itself
        if not by_itself:
            assert result.plan[0] <= 22
            assert orchestration.plan.rows_per_pass is None


def test_batch_norm_takes_each_pass_for_a_batch(found: Any) -> None:
    order = train_alone(replace(PLAIN, rows=ROWS, epochs=1)).seen[0]
    features = NumberedRows(ROWS).features
    expected = torch.zeros(FEATURES, dtype=torch.float64)
    shares = {
        0: [order[:20]],
        1: [order[20:28], order[28:36], order[36:44]],
        2: [order[44:52], order[52:]],
    }
    for passes in shares.values():
        mean = torch.zeros(FEATURES, dtype=torch.float64)
        for rows in passes:
            mean = 0.9 * mean + 0.1 * features[rows].mean(0)
        expected += mean * sum(map(len, passes)) / ROWS
    for by_rank, passes in zip(found, (1, 3, 2), strict=True):
        mean, counted = by_rank["batch norm"]
        assert torch.allclose(mean, expected)
        assert counted == passes


def test_an_epoch_of_forwards_runs_all_passes(found: Any) -> None:
    seen = [row for by_rank in found for step in by_rank["an epoch of forwards"] for row in step]
    assert sorted(seen) == sorted([*range(PLAIN.rows)] * (PLAIN.epochs + 1))


def test_hooks_of_a_pass_and_of_a_batch(found: Any) -> None:
    for by_rank, passes in zip(found, ((20,), (8, 8, 8), (8, 8)), strict=True):
        of_passes = [(name, rows) for rows in passes for name in ("before", "after")]
        assert by_rank["hooks"][: 1 + len(of_passes)] == [("batch", passes[0]), *of_passes]


def test_an_evaluation_keeps_to_what_fits_at_once(found: Any) -> None:
    validated = [by_rank["validated"] for by_rank in found]
    assert sum(map(sum, validated)) == 100
    assert [max(rows) for rows in validated] == [17, 9, 10]


def test_steps_that_reduce_after_their_backward_say_nothing_of_the_network(found: Any) -> None:
    for by_rank in found:
        played = by_rank["backward", "rank 1"]
        assert played.orchestration.planned_measurement is not None
        assert played.network is None


def test_a_training_that_cannot_run_in_passes_says_why(found: Any) -> None:
    assert found[0]["warnings"] == [
        "boa: memory bounds the shares, which cannot run in several passes: find_unused_parameters counts the forwards"
        " of a step."
    ]


def test_a_collective_beside_passes_is_refused_on_every_rank() -> None:
    for said in run_ranks(refusal, RANKS):
        assert said.startswith("Expected no collective")
