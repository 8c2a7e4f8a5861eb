"""A device becomes slower or faster in mid-run: the plan follows it and the training stays that of one device.

Time is virtual, so nothing depends on the machine's speed.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from lightning_utilities.core import rank_zero

from lightning_boa import BoaCallback, BoaStrategy, EmulatedCluster
from lightning_boa.planning import LinearTime, Orchestration, plan_batches
from lightning_boa.profiling import HostTimeline, MemoryProfile, StepClock
from tests.processes.ranks import run_ranks
from tests.processes.training import (
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
    with_options,
)
from tests.processes.virtual_time import VirtualTime

pytestmark = pytest.mark.full

RANKS = 4
ROWS = 80
STEPS_OF_EPOCH = 40
TRAINING = Training(
    rows=ROWS * (STEPS_OF_EPOCH - 1) + 7, global_batch_size=ROWS, epochs=2, schedules=False
)
UNEQUAL = (
    LinearTime(2.0, 1.0),
    LinearTime(2.0, 1.0),
    LinearTime(4.0, 2.0),
    LinearTime(0.0, 4.0),
)
EQUAL = (LinearTime(2.0, 1.0),) * RANKS
EFFICIENCY = 0.97
STEPS_TO_NOTICE = 20
LOADER_SECONDS = 20.0
CHANGES, SAVED, RECOVERS = 28, 53, 80

Throttle = Mapping[int, Mapping[int, float]]


class ClockBesideLoader(StepClock):
    """Waits so many virtual seconds for each batch."""

    waits = 0.0
    sleep: Any

    def begin(self, step: int, rows: int, step_rows: int, loader_wait: float) -> None:
        if self.waits:
            self.sleep(self.waits)
        super().begin(step, rows, step_rows, self.waits)


class InVirtualTime(BoaStrategy):
    """Measures by a clock that the test moves."""

    time: VirtualTime
    slow_loader: int | None = None

    def new_clock(self) -> StepClock:
        clock = ClockBesideLoader(self.global_rank, HostTimeline(self.time), clock=self.time)
        clock.sleep = self.time.sleep
        clock.waits = LOADER_SECONDS if self.global_rank == self.slow_loader else 0.0
        return clock

    def new_memory_profile(self) -> MemoryProfile | None:
        return None


class Losses(Regression):
    """Keeps the loss of every step."""

    def __init__(self) -> None:
        super().__init__(schedules=False)
        self.losses: list[float] = []

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.losses.append(float(self.trainer.callback_metrics["loss_step"]))

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.validation_step(batch, batch_idx)


class Saves(pl.Callback):
    """Saves once, after a step."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_batch_end(self, trainer: pl.Trainer, *arguments: Any) -> None:
        if trainer.fit_loop.total_batch_idx == SAVED - 1:
            trainer.save_checkpoint(self.path)


class StopsWhileFiguresTravel(pl.Callback):
    """Ends the training, in its second epoch, after a step at which figures have been sent and not yet received."""

    watch: Any = None

    def on_train_batch_end(self, trainer: pl.Trainer, *arguments: Any) -> None:
        watch = watch_of(trainer)
        if trainer.current_epoch == 1 and watch is not None and watch._exchange.is_under_way:
            self.watch = watch
            trainer.should_stop = True


def watch_of(trainer: pl.Trainer) -> Any:
    (callback,) = (each for each in trainer.callbacks if isinstance(each, BoaCallback))
    return callback._watch


@dataclass(frozen=True)
class Scene:
    """A training on devices of which one may change; loader workers by rank, each of which reads two steps ahead."""

    throttle: Throttle = field(default_factory=dict)
    models: tuple[LinearTime, ...] = UNEQUAL
    training: Training = TRAINING
    slow_loader: int | None = None
    workers: tuple[int, ...] = (0,) * RANKS

    @property
    def ahead(self) -> int:
        return 1 + 2 * max(self.workers)

    @property
    def changes(self) -> int:
        """The step at which a device changes first."""
        ((_, factors),) = self.throttle.items()
        return min(factors)

    def models_at(self, step: int) -> list[LinearTime]:
        factors = {
            rank: [factor for first, factor in sorted(stretches.items()) if first <= step]
            for rank, stretches in self.throttle.items()
        }
        scales = [[1.0, *factors.get(rank, [])][-1] for rank in range(RANKS)]
        return [
            LinearTime(scale * model.overhead, scale * model.seconds_per_sample)
            for scale, model in zip(scales, self.models, strict=True)
        ]

    def optimum(self, step: int) -> float:
        """Seconds of a full step under the best plan for the devices as they are at a step."""
        seconds = plan_batches(self.models_at(step), ROWS).step_seconds
        assert seconds is not None
        return seconds

    def cluster(self, time: VirtualTime) -> EmulatedCluster:
        return EmulatedCluster(
            [model.seconds_per_sample for model in self.models],
            [model.overhead for model in self.models],
            throttle=self.throttle,
            clock=time,
            sleep=time.sleep,
            work_clock=lambda: 0.0,
        )


THROTTLED = Scene({1: {CHANGES: 2.0}})
FOLLOWED = {
    "throttled": THROTTLED,
    "the slowest throttled": Scene({3: {CHANGES + 1: 2.0}}),
    "one of equal ones throttled": Scene({2: {CHANGES + 2: 2.0}}, models=EQUAL),
    "one grows faster": Scene({3: {CHANGES + 3: 0.25}}),
    "ranks read ahead unequally": Scene({1: {CHANGES + 5: 2.0}}, workers=(0, 1, 2, 0)),
    "accumulation": Scene(
        {0: {CHANGES + 4: 2.0}},
        training=with_options(TRAINING, trainer={"accumulate_grad_batches": 2}),
    ),
    "validation inside blocks": Scene(
        {2: {CHANGES: 2.0}},
        training=with_options(TRAINING, validation_rows=97, trainer={"val_check_interval": 7}),
    ),
    "epochs of four steps": Scene(
        THROTTLED.throttle,
        training=with_options(TRAINING, rows=ROWS * 3 + 2, epochs=18, validation_rows=5),
    ),
}
OFF = Scene(THROTTLED.throttle, training=with_options(TRAINING, strategy={"rebalance": "off"}))
BY_EPOCH = Scene(
    {1: {STEPS_OF_EPOCH + 4: 2.0}},
    training=with_options(TRAINING, epochs=3, strategy={"rebalance": "epoch"}),
)
RECOVERING = Scene({1: {CHANGES: 2.0, RECOVERS: 1.0}}, training=with_options(TRAINING, epochs=3))
USELESS = Scene(
    {3: {CHANGES: 60.0}, 1: {SAVED: 2.0}},
    training=with_options(TRAINING, strategy={"min_batch_size": 0}),
)
UNCHANGED = {
    "off": OFF,
    "equal devices": Scene(models=EQUAL),
    "nothing changes": Scene(),
    "slow loader": Scene(slow_loader=2),
}
SCENES = {**FOLLOWED, **UNCHANGED, "by epoch": BY_EPOCH, "useless": USELESS}


@dataclass(frozen=True)
class Played:
    """What a rank knows after a scene, and what it has said."""

    outcome: Outcome
    losses: list[float]
    orchestration: Orchestration
    said: list[str]


def play(scene: Scene, *callbacks: pl.Callback, **fit: Any) -> Played:
    module = Losses()
    with listening() as said:
        trainer = trainer_of(scene, *callbacks)
        training = with_options(scene.training, workers=scene.workers[trainer.global_rank])
        trainer.fit(module, *loaders(training, 20), **fit)
    orchestration = trainer.strategy.orchestration
    return Played(outcome(trainer, module), module.losses, orchestration, said)


def trainer_of(scene: Scene, *callbacks: pl.Callback) -> pl.Trainer:
    pl.seed_everything(scene.training.seed)
    strategy = InVirtualTime(global_batch_size=ROWS, **scene.training.strategy)
    strategy.time = VirtualTime()
    strategy.slow_loader = scene.slow_loader
    return pl.Trainer(
        strategy=strategy,
        devices=RANKS,
        callbacks=[scene.cluster(strategy.time), *callbacks],
        **trainer_options(scene.training),
    )


@contextmanager
def listening() -> Iterator[list[str]]:
    """What is logged and warned of meanwhile."""
    said: list[str] = []
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    level = rank_zero.log.level
    rank_zero.log.addHandler(handler)
    with warnings.catch_warnings(record=True) as caught:
        quiet()
        rank_zero.log.setLevel(logging.INFO)
        warnings.simplefilter("always")
        try:
            yield said
        finally:
            rank_zero.log.setLevel(level)
            rank_zero.log.removeHandler(handler)
            said += [str(warning.message) for warning in caught]


def play_all(rank: int, folder: str) -> dict[str, Any]:
    path = Path(folder, "changed.ckpt")
    found: dict[str, Any] = {name: play(scene) for name, scene in SCENES.items()}
    found["recovers"] = play(RECOVERING, Saves(path))
    found["goes on"] = play(RECOVERING, ckpt_path=str(path))
    found["ends early"] = end_early()
    return found


def end_early() -> dict[str, Any]:
    quiet()
    stopper = StopsWhileFiguresTravel()
    trainer = trainer_of(Scene(), stopper)
    module = Losses()
    loader = loaders(TRAINING, 20)[0]
    trainer.fit(module, loader)
    first = {"steps": trainer.global_step, "under way": stopper.watch._exchange.is_under_way}
    watches = [watch_of(trainer)]
    stopper.on_train_batch_end = lambda *arguments: None  # type: ignore[method-assign]
    trainer.fit_loop.max_epochs = 3
    trainer.fit(module, loader)
    watches.append(watch_of(trainer))
    (tested,) = trainer.test(module, loader, verbose=False)
    return {**first, "watches": watches, "tested": tested, "outcome": outcome(trainer, module)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="module")
def found(folder: str) -> list[dict[str, Any]]:
    return run_ranks(play_all, RANKS, folder)


def rows_by_rank(found: Any, name: str) -> list[tuple[int, ...]]:
    seen = [by_rank[name].outcome.seen for by_rank in found]
    return [tuple(map(len, step)) for step in zip(*seen, strict=True)]


def step_seconds(scene: Scene, step: int, rows: tuple[int, ...]) -> float:
    models = scene.models_at(step)
    return max(float(model.seconds(each)) for model, each in zip(models, rows, strict=True))


def is_full(rows: tuple[int, ...]) -> bool:
    return sum(rows) == ROWS


@pytest.mark.parametrize("name", FOLLOWED)
def test_the_plan_follows_the_devices_at_once_and_once(found: Any, name: str) -> None:
    scene = FOLLOWED[name]
    (change,) = found[0][name].orchestration.rebalancings
    assert scene.changes < change.step <= scene.changes + STEPS_TO_NOTICE + scene.ahead
    rows = rows_by_rank(found, name)
    after = [(step, each) for step, each in enumerate(rows) if step >= change.step]
    assert {each for _, each in after if is_full(each)} == {change.batch_sizes}
    for step, each in after:
        if is_full(each):
            assert scene.optimum(step) >= EFFICIENCY * step_seconds(scene, step, each)
    before = [each for each in rows[scene.changes : change.step] if is_full(each)]
    assert set(before) == {change.batch_sizes_before}


@pytest.mark.parametrize("name", FOLLOWED)
def test_what_came_of_a_change_is_measured_and_said(found: Any, name: str) -> None:
    scene = FOLLOWED[name]
    (change,) = found[0][name].orchestration.rebalancings
    before, after = (
        step_seconds(scene, change.step, sizes)
        for sizes in (change.batch_sizes_before, change.batch_sizes)
    )
    assert change.seconds_before == pytest.approx(before, rel=1e-9)
    assert change.seconds_after == pytest.approx(after, rel=1e-9)
    assert change.expected_gain == pytest.approx(change.gain, rel=0.1)
    ((rank, factors),) = scene.throttle.items()
    (factor,) = factors.values()
    expected = (
        f"rank {rank} takes {factor:.2f} times as long"
        if factor > 1
        else f"rank {rank} is {1 / factor:.2f} times as fast"
    )
    assert expected in change.reason
    said = found[0][name].said
    (announced,) = (text for text in said if f"from step {change.step} on" in text)
    assert " / ".join(map(str, change.batch_sizes)) in announced
    assert expected in announced
    assert any(f"since step {change.step} a step takes {after:.3g} s" in text for text in said)


@pytest.mark.parametrize("name", [*SCENES, "recovers"])
def test_learns_what_one_device_learns(found: Any, name: str) -> None:
    training = {**SCENES, "recovers": RECOVERING}[name].training
    module = Losses()
    alone = train_alone(training, module)
    for by_rank in found:
        played = by_rank[name]
        assert relative_error(played.outcome.weights, alone.weights) < 1e-10
        assert played.losses == pytest.approx(module.losses, rel=1e-10)
    assert rows_of_steps([by_rank[name].outcome for by_rank in found]) == alone.seen
    rows_of_epochs = sorted(row for step in alone.seen for row in step)
    assert rows_of_epochs == sorted([*range(training.rows)] * training.epochs)


@pytest.mark.parametrize("name", [*SCENES, "recovers", "goes on"])
def test_all_ranks_know_the_same(found: Any, name: str) -> None:
    states = [by_rank[name].orchestration for by_rank in found]
    assert len({state.schedule.digest for state in states}) == 1
    for state in states:
        assert state.to_dict() == states[0].to_dict()


@pytest.mark.parametrize("name", UNCHANGED)
def test_the_plan_stays(found: Any, name: str) -> None:
    state = found[0][name].orchestration
    assert state.rebalancings == ()
    assert (state.watch is None) == (name == "off")
    rows = [each for each in rows_by_rank(found, name) if is_full(each)]
    assert set(rows[STEPS_OF_EPOCH // 2 :]) == {state.plan.batch_sizes}


def test_between_epochs_only(found: Any) -> None:
    (change,) = found[0]["by epoch"].orchestration.rebalancings
    assert change.step == 2 * STEPS_OF_EPOCH
    rows = [each for each in rows_by_rank(found, "by epoch")[STEPS_OF_EPOCH:] if is_full(each)]
    assert set(rows[: STEPS_OF_EPOCH - 1]) == {change.batch_sizes_before}
    assert set(rows[STEPS_OF_EPOCH - 1 :]) == {change.batch_sizes}
    assert BY_EPOCH.optimum(change.step) >= EFFICIENCY * step_seconds(
        BY_EPOCH, change.step, change.batch_sizes
    )


def test_the_others_are_followed_beside_a_rank_that_has_lost_its_rows(found: Any) -> None:
    lost, followed = found[0]["useless"].orchestration.rebalancings
    assert lost.batch_sizes[3] == followed.batch_sizes[3] == 0
    assert SAVED < followed.step <= SAVED + STEPS_TO_NOTICE
    assert rows_by_rank(found, "useless")[-2] == followed.batch_sizes
    seconds = [
        float(model.seconds(rows))
        for model, rows in zip(USELESS.models_at(SAVED), followed.batch_sizes, strict=True)
    ]
    optimum = plan_batches(USELESS.models_at(SAVED)[:3], ROWS).step_seconds
    assert optimum is not None
    assert optimum >= EFFICIENCY * max(seconds[:3])


@pytest.mark.parametrize("name", ["recovers", "goes on"])
def test_a_device_that_recovers_gets_its_rows_back(found: Any, name: str) -> None:
    slowed, recovered = found[0][name].orchestration.rebalancings
    first = recovered.batch_sizes_before
    assert first == slowed.batch_sizes
    assert RECOVERS < recovered.step <= RECOVERS + STEPS_TO_NOTICE
    last = rows_by_rank(found, name)[-2]
    assert last == recovered.batch_sizes
    assert last == pytest.approx(slowed.batch_sizes_before, abs=1)
    seconds = step_seconds(RECOVERING, recovered.step, last)
    assert RECOVERING.optimum(recovered.step) == pytest.approx(seconds)
    assert "as fast as their first measurements say" in recovered.reason


def test_a_checkpoint_keeps_the_watch_and_what_it_has_decided(found: Any, folder: str) -> None:
    saved = torch.load(Path(folder, "changed.ckpt"), weights_only=True)
    state = Orchestration.from_dict(saved["lightning_boa"]["orchestration"])
    (change,) = state.rebalancings
    whole, rest = (found[0][name].orchestration for name in ("recovers", "goes on"))
    assert change.batch_sizes == state.plan.batch_sizes == whole.rebalancings[0].batch_sizes
    assert (change.seconds_after, rest.rebalancings[0].seconds_after) == (
        None,
        pytest.approx(RECOVERING.optimum(change.step)),
    )
    assert state.watch is not None
    assert state.watch.blocks
    assert rest.schedule.entries[0] == (SAVED, state.plan)


def test_goes_on_where_it_stopped(found: Any) -> None:
    for by_rank in found:
        whole, rest = by_rank["recovers"].outcome, by_rank["goes on"].outcome
        assert relative_error(rest.weights, whole.weights) < 1e-10
        assert rest.steps == whole.steps
    whole, rest = (
        rows_of_steps([by_rank[name].outcome for by_rank in found])
        for name in ("recovers", "goes on")
    )
    assert rest == whole[SAVED:]


def test_a_slow_loader_is_named(found: Any) -> None:
    scene = UNCHANGED["slow loader"]
    (warning,) = (text for text in found[0]["slow loader"].said if "waits for its loader" in text)
    rows = rows_by_rank(found, "slow loader")[STEPS_OF_EPOCH]
    own = float(scene.models[2].seconds(rows[2]))
    share = LOADER_SECONDS / (LOADER_SECONDS + own)
    assert f"rank 2 waits for its loader in {share:.0%} of a step" in warning
    for name in {**SCENES, "recovers": RECOVERING}:
        if name != "slow loader":
            assert not any("waits for its loader" in text for text in found[0][name].said)


def test_no_collective_is_warned_of(found: Any) -> None:
    for name in SCENES:
        for by_rank in found:
            assert not any("torch.distributed" in text for text in by_rank[name].said)


def test_a_training_may_end_while_figures_travel(found: Any) -> None:
    for by_rank in found:
        ended = by_rank["ends early"]
        assert not ended["under way"]
        assert STEPS_OF_EPOCH < ended["steps"] < STEPS_OF_EPOCH + 10
        assert ended["watches"] == [None, None]
        assert ended["outcome"].steps > ended["steps"]
        assert ended["tested"] == found[0]["ends early"]["tested"]
        assert ended["tested"]["one"] == 1.0
        weights = found[0]["ends early"]["outcome"].weights
        assert relative_error(ended["outcome"].weights, weights) == 0.0
