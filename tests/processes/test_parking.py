"""Ranks that are parked and come back, in real processes: rank 0 among them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torchmetrics import MeanMetric

from lightning_boa import BoaStrategy
from lightning_boa.errors import UnsupportedError
from lightning_boa.planning import BatchPlan, LinearTime, Schedule, plan_batches
from tests.processes.ranks import outcomes_of_ranks, run_ranks
from tests.processes.training import (
    FEATURES,
    Outcome,
    Regression,
    Training,
    loaders,
    logged_values,
    outcome,
    quiet,
    relative_error,
    train_alone,
    trainer_options,
)
from tests.processes.virtual_time import MeasuresVirtualTime, emulated

pytestmark = pytest.mark.full

RANKS = 3
ROWS = 24
STEPS = 9
PLAIN = Training(rows=ROWS * STEPS + 7, global_batch_size=ROWS, epochs=3, schedules=False)
IN_WINDOWS = Training(
    rows=ROWS * STEPS + 7,
    global_batch_size=ROWS,
    epochs=3,
    schedules=False,
    trainer={"accumulate_grad_batches": 3, "gradient_clip_val": 0.1},
)
ALL, WITHOUT_0, WITHOUT_1, ONE_LEFT = (8, 8, 8), (0, 14, 10), (10, 0, 14), (0, 0, 24)
PLANS = {0: ALL, 4: WITHOUT_0, 13: WITHOUT_1, 16: ALL, 18: ONE_LEFT, 25: (9, 0, 15)}


class Parks(BoaStrategy):
    """Has plans in which ranks are parked and come back."""

    def __init__(self, plans: dict[int, tuple[int, ...]], **options: Any) -> None:
        super().__init__(worker_set="auto", global_batch_size=ROWS, **options)
        self.plans = plans

    def begin_planning(self) -> None:
        super().begin_planning()
        self.orchestration = None
        first, *later = self.plans.items()
        schedule = Schedule.starting_with(BatchPlan(first[1]), first[0])
        for step, sizes in later:
            schedule = schedule.then(step, BatchPlan(sizes))
        self.fixed_schedule = schedule


class Ghosts(Parks):
    """Runs the model on every rank in every step."""

    def begin_planning(self) -> None:
        super().begin_planning()
        self._plans.run_all()


class Watched(Regression):
    """Keeps what it has run, what its rank knows of each step and what the weights were after it."""

    def __init__(self) -> None:
        super().__init__(schedules=False)
        self.mean = MeanMetric()
        self.ran: list[int] = []
        self.known: list[dict[str, float]] = []
        self.weights: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.ran.append(self.trainer.fit_loop.total_batch_idx)
        errors = self.errors(batch)
        numbers = batch[2].double()
        share = self.trainer.strategy.share
        self.seen.append([] if share.rows == 0 else batch[2].tolist())
        self.log("alone", numbers.mean(), on_step=True, on_epoch=True)
        self.log("together", numbers.mean(), on_step=False, on_epoch=True, sync_dist=True)
        self.log(
            "most", numbers.max(), on_step=False, on_epoch=True, sync_dist=True, reduce_fx="max"
        )
        if batch_idx == 7:
            self.log("late", numbers.mean(), on_step=False, on_epoch=True, sync_dist=True)
        self.mean(numbers)
        self.log("metric", self.mean, on_step=False, on_epoch=True)
        return errors.mean()

    def on_train_batch_end(self, *arguments: Any) -> None:
        flat = torch.cat([each.detach().reshape(-1) for each in self.parameters()])
        self.weights.append(float(flat.dot(torch.arange(1.0, 1.0 + len(flat), dtype=flat.dtype))))


class Normed(Watched):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(FEATURES, momentum=None).double()

    def errors(self, batch: Any) -> Tensor:
        features, *rest = batch
        return super().errors([self.norm(features), *rest])


class Keeps(pl.Callback):
    """What a logger would get after each step, and after each epoch."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []
        self.epochs: list[dict[str, float]] = []

    def on_train_batch_start(self, trainer: Any, module: Any, *arguments: Any) -> None:
        logged = trainer.logged_metrics
        self.steps.append({name: float(logged[name]) for name in logged if name.endswith("_step")})

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        self.epochs.append(logged_values(trainer))


def fit(
    strategy: BoaStrategy, training: Training, module: Regression, *callbacks: Any
) -> tuple[Outcome, Regression]:
    quiet()
    pl.seed_everything(training.seed)
    options = {**trainer_options(training), "callbacks": list(callbacks)}
    trainer = pl.Trainer(strategy=strategy, devices=RANKS, **options)
    trainer.fit(module, loaders(training, RANKS)[0])
    return outcome(trainer, module), module


class Synchronises(Watched):
    def __init__(self, first: int) -> None:
        super().__init__()
        self.first = first

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if batch_idx >= self.first:
            self.log("now", batch[2].double().mean(), on_step=True, sync_dist=True)
        return super().training_step(batch, batch_idx)


class ComputesMetric(Watched):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.mean.compute()
        return loss


class ReturnsMore(Watched):
    """Its step returns more than a loss, and what is at the batch's end speaks to all ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[int] = []
        self.gathered: list[list[float]] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return {"loss": super().training_step(batch, batch_idx), "n": len(batch[0])}

    def on_train_batch_end(self, outputs: Any, *arguments: Any) -> None:
        self.counts.append(outputs["n"])
        self.gathered.append(self.all_gather(outputs["loss"]).tolist())


class Evaluated(Watched):
    def __init__(self) -> None:
        super().__init__()
        self.validated: list[int] = []

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        if self.trainer.strategy.share.rows:
            self.validated += batch[2].tolist()
        self.log("val_alone", batch[2].double().mean())


class NormedAndSynchronised(Normed):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log("now", loss, sync_dist=True)
        return loss


def never_with_rows(rank: int) -> tuple[list[int], dict[str, float]]:
    """Rank 0 is parked from the first step on; what was validated, and what is known at the end."""
    quiet()
    training = Training(
        rows=ROWS * 3, global_batch_size=ROWS, epochs=1, schedules=False, validation_rows=50
    )
    trainer = pl.Trainer(
        strategy=Parks({0: (0, 14, 10)}), devices=RANKS, **trainer_options(training)
    )
    trainer.fit(module := Evaluated(), *loaders(training, 8))
    return module.validated, logged_values(trainer)


def late_collective(rank: int) -> str:
    try:
        fit(Parks({0: ALL, 3: WITHOUT_1}), PLAIN, Synchronises(5))
    except UnsupportedError as error:
        return str(error)
    except RuntimeError:
        return "lost the others"
    return "nothing"


MEASURED = Training(rows=64 * 200, global_batch_size=64, epochs=1, schedules=False)
OVERHEAD, OF_A_ROW = (0.5, 0.5, 5.0), 0.1
THROTTLED = 12.0


class MayPark(MeasuresVirtualTime):
    def __init__(self) -> None:
        super().__init__(worker_set="auto", global_batch_size=64)


def measured(rank: int) -> tuple[Outcome, Any, list[int]]:
    """The last rank's fixed time costs more than it brings, until rank 1 becomes slow."""
    strategy, module = MayPark(), Watched()
    cluster = emulated(
        strategy,
        [OF_A_ROW] * RANKS,
        overhead=OVERHEAD,
        latency=1e-3,
        throttle={1: {150: THROTTLED}},
    )
    found, _ = fit(strategy, MEASURED, module, cluster)
    return found, strategy.orchestration, module.ran


HOT = range(40, 100)
RECOVERS = Training(rows=64 * 30, global_batch_size=64, epochs=8, schedules=False)


def recovers(rank: int) -> tuple[Outcome, Any]:
    """The last rank is hot for a while, in which it is parked."""
    strategy = MayPark()
    cluster = emulated(
        strategy,
        [OF_A_ROW] * RANKS,
        overhead=0.5,
        latency=1e-3,
        throttle={2: {HOT.start: 60.0, HOT.stop: 1.0}},
    )
    result, _ = fit(strategy, RECOVERS, Watched(), cluster)
    return result, strategy.orchestration


def play(rank: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, training in {"plain": PLAIN, "in windows": IN_WINDOWS}.items():
        keeps = Keeps()
        found[name] = (*fit(Parks(PLANS), training, Watched(), keeps), keeps.steps, keeps.epochs)
    normed = fit(Parks(PLANS), PLAIN, Normed())[1]
    found["running statistics"] = [each.tolist() for each in normed.norm.buffers()]
    found["measured"] = measured(rank)
    found["recovers"] = recovers(rank)
    more = fit(Parks(PLANS), PLAIN, ReturnsMore())[1]
    found["returns more"] = more.counts, more.gathered
    found["never with rows"] = never_with_rows(rank)
    strategy = MayPark()
    cluster = emulated(strategy, [OF_A_ROW] * RANKS, overhead=OVERHEAD, latency=1e-3)
    fit(strategy, MEASURED, NormedAndSynchronised(), cluster)
    found["needs two rows"] = strategy.plan.batch_sizes
    ghosts = fit(Ghosts(PLANS), PLAIN, Normed())[1]
    found["running statistics of ghosts"] = [each.tolist() for each in ghosts.norm.buffers()]
    synced = fit(Parks(PLANS), PLAIN, Synchronises(0))
    found["collectives from the first step on"] = synced
    found["a metric that is computed in each step"] = fit(Parks(PLANS), PLAIN, ComputesMetric())
    return found


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    return run_ranks(play, RANKS)


TRAININGS = {"plain": PLAIN, "in windows": IN_WINDOWS}


WITH_COLLECTIVES = ("collectives from the first step on", "a metric that is computed in each step")


@pytest.mark.parametrize("name", [*TRAININGS, *WITH_COLLECTIVES])
def test_learns_what_one_device_learns(found: Any, name: str) -> None:
    alone = train_alone(TRAININGS.get(name, PLAIN))
    for by_rank in found:
        assert relative_error(by_rank[name][0].weights, alone.weights) < 1e-10


@pytest.mark.parametrize("name", TRAININGS)
def test_all_ranks_have_the_same_weights_after_every_step(found: Any, name: str) -> None:
    first, *others = (by_rank[name][1].weights for by_rank in found)
    assert len(first) == 3 * (STEPS + 1)
    for other in others:
        assert other == first


@pytest.mark.parametrize("name", TRAININGS)
def test_every_row_is_used_once(found: Any, name: str) -> None:
    rows = [row for by_rank in found for step in by_rank[name][1].seen for row in step]
    assert sorted(rows) == sorted([*range(PLAIN.rows)] * 3)


def planned(step: int) -> Sequence[int]:
    return PLANS[max(first for first in PLANS if first <= step)]


def test_a_parked_rank_runs_the_model_once_in_an_epoch(found: Any) -> None:
    for rank, by_rank in enumerate(found):
        ran = by_rank["plain"][1].ran
        for epoch in range(3):
            steps = range(epoch * (STEPS + 1), (epoch + 1) * (STEPS + 1))
            expected = [step for step in steps if planned(step)[rank] or step == steps.start]
            assert [step for step in ran if step in steps] == expected


def test_rank_0_has_the_values_of_a_rank_with_rows_to_log(found: Any) -> None:
    _, _, steps, _ = found[0]["plain"]
    rows = [by_rank["plain"][1].seen for by_rank in found]
    for step, logged in enumerate(steps[1:]):
        rank = next(rank for rank, share in enumerate(planned(step)) if share)
        ran = found[rank]["plain"][1].ran.index(step)
        mine = rows[rank][ran]
        assert logged["alone_step"] == pytest.approx(sum(mine) / len(mine))


def test_values_of_an_epoch_are_those_of_all_rows(found: Any) -> None:
    rows = range(PLAIN.rows)
    for by_rank in found:
        for epoch in by_rank["plain"][3]:
            assert epoch["together"] == pytest.approx(sum(rows) / len(rows))
            assert epoch["most"] == max(rows)
            assert epoch["metric"] == pytest.approx(sum(rows) / len(rows))
            assert 0 <= epoch["late"] < len(rows)
            assert 0 <= epoch["alone_epoch"] < len(rows)
    for name in ("together", "most", "metric", "late"):
        values = [[epoch[name] for epoch in by_rank["plain"][3]] for by_rank in found]
        assert values[0] == values[1] == values[2]


def test_a_rank_that_was_hot_comes_back_two_epochs_after_it_has_cooled_down(found: Any) -> None:
    alone = train_alone(RECOVERS)
    for by_rank in found:
        result, orchestration = by_rank["recovers"]
        assert relative_error(result.weights, alone.weights) < 1e-10
        parked, back, *_ = orchestration.rebalancings
        assert parked.batch_sizes[2] == 0
        assert HOT.start <= parked.step <= HOT.start + 30
        assert back.batch_sizes[2] > 15
        assert HOT.stop + 60 < back.step <= HOT.stop + 110
        assert min(result.plan) > 15
        assert orchestration == found[0]["recovers"][1]


def test_a_step_without_rows_returns_the_like_of_others(found: Any) -> None:
    first, *others = (by_rank["returns more"][1] for by_rank in found)
    for other in others:
        assert other == first
    for by_rank in found:
        assert all(count > 0 for count in by_rank["returns more"][0])
    for step, losses in enumerate(first):
        assert [loss > 0 for loss in losses] == [
            rows > 0 or step % (STEPS + 1) == 0 for rows in planned(step)
        ]


def test_a_rank_without_rows_in_an_epoch_knows_what_others_have_logged_alone(found: Any) -> None:
    validated = [by_rank["never with rows"][0] for by_rank in found]
    assert all(validated)
    assert sorted(row for rows in validated for row in rows) == list(range(50))
    known = [by_rank["never with rows"][1] for by_rank in found]
    assert known[0]["alone_epoch"] == known[1]["alone_epoch"] != known[2]["alone_epoch"]
    for rows, values in zip(validated, known, strict=True):
        assert values["val_alone"] == pytest.approx(sum(rows) / len(rows))
    assert found[1]["plain"][3][2]["alone_epoch"] == found[0]["plain"][3][2]["alone_epoch"]


def test_batch_norm_keeps_its_two_rows_where_nobody_is_parked(found: Any) -> None:
    for by_rank in found:
        assert min(by_rank["needs two rows"]) >= 2


def test_running_statistics_are_those_of_ranks_that_all_run_the_model(found: Any) -> None:
    for by_rank in found:
        for parked, ghosts in zip(
            by_rank["running statistics"], by_rank["running statistics of ghosts"], strict=True
        ):
            assert parked == pytest.approx(ghosts)
    assert found[0]["running statistics"][-1] == 3 * (STEPS + 1)


@pytest.mark.parametrize("name", WITH_COLLECTIVES)
def test_collectives_in_the_first_step_let_all_ranks_run_the_model(found: Any, name: str) -> None:
    for by_rank in found:
        assert by_rank[name][1].ran == [*range(3 * (STEPS + 1))]
        assert by_rank[name][1].mean.dist_sync_fn is None


def test_a_collective_that_parked_ranks_would_not_meet_is_an_error() -> None:
    said = [outcome for _, outcome in outcomes_of_ranks(late_collective, RANKS)]
    for each in (said[0], said[2]):
        assert each.startswith("Expected no collective inside training_step")
        assert "since rank 1 then" in each
    assert said[1] == "lost the others"


def test_a_rank_that_costs_more_than_it_brings_is_parked_until_another_is_slow(found: Any) -> None:
    alone = train_alone(MEASURED)
    fast, slow = LinearTime(OVERHEAD[0], OF_A_ROW), LinearTime(OVERHEAD[2], OF_A_ROW)
    throttled = LinearTime(THROTTLED * OVERHEAD[1], THROTTLED * OF_A_ROW)
    while_parked = plan_batches([fast, fast], 64).step_seconds
    afterwards = plan_batches([fast, slow], 64).step_seconds
    for by_rank in found:
        result, orchestration, _ = by_rank["measured"]
        assert relative_error(result.weights, alone.weights) < 1e-10
        plans = [plan.batch_sizes for step, plan in orchestration.schedule.entries if step < 150]
        assert plans[-1][2] == 0
        assert float(max(fast.seconds(plans[-1][:2]))) <= 1.03 * while_parked
        seconds = [
            float(model.seconds(rows)) if rows else 0.0
            for model, rows in zip((fast, throttled, slow), result.plan, strict=True)
        ]
        assert result.plan[2] > 0
        assert max(seconds) <= 1.03 * afterwards
        (change,) = orchestration.rebalancings
        assert 150 <= change.step <= 170
    parked_from = next(
        step for step, plan in found[0]["measured"][1].schedule.entries if not plan.batch_sizes[2]
    )
    back = found[0]["measured"][1].rebalancings[0].step
    assert found[2]["measured"][2] == [*range(parked_from), *range(back, 200)]
    assert len(found[0]["measured"][2]) == 200
