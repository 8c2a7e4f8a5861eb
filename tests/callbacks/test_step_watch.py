"""A rank's part in watching: what it measures, sends and receives, and when, and what the callback does with it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from lightning_boa.callbacks import boa_callback
from lightning_boa.callbacks.boa_callback import BoaCallbackBehaviour
from lightning_boa.callbacks.step_watch import BLOCKS_OF_A_SLOW_LOADER, StepWatch
from lightning_boa.planning import (
    BatchPlan,
    LinearTime,
    Orchestration,
    OrchestrationSettings,
    Schedule,
    StepRecord,
)
from lightning_boa.planning.watching import Bounds, Watch
from lightning_boa.profiling import BlockFigures

MODELS = (LinearTime(0.1, 0.01), LinearTime(0.1, 0.02))
SPLIT = (171, 85)
FIRST = 20


def planned(rebalance: Any = "auto") -> Orchestration:
    settings = OrchestrationSettings(2, 256, (1, 1), (256, 256), rebalance=rebalance)
    return replace(
        Orchestration.begin(settings, 0),
        schedule=Schedule.starting_with(BatchPlan(SPLIT)),
        phase="planned",
        exchange_after=None,
        watch=Watch(MODELS, Bounds((1, 1), (256, 256), 1)),
    )


@dataclass
class ScriptedExchange:
    """What is received, block for block; the last of it again and again."""

    scales: list[tuple[float, float]] = field(default_factory=lambda: [(1.0, 1.0)])
    wishes: list[bool] = field(default_factory=lambda: [False])
    waits: list[float] = field(default_factory=lambda: [0.0])
    period: float = 2.0
    sent: list[dict[str, Any]] = field(default_factory=list)
    received: int = 0
    is_under_way: bool = False

    def send(self, **figures: Any) -> None:
        assert not self.is_under_way
        self.sent.append(figures)
        self.is_under_way = True

    def receive(self) -> BlockFigures:
        assert self.is_under_way
        self.is_under_way = False
        scales, wish, wait = (
            each[min(self.received, len(each) - 1)]
            for each in (self.scales, self.wishes, self.waits)
        )
        self.received += 1
        ratios = np.repeat(np.asarray(scales)[:, None], 5, axis=1)
        return BlockFigures(wish, ratios, np.full(2, self.period), np.asarray([0.0, wait]))


@dataclass
class Clock:
    """Measures every step while it is enabled, as `StepClock` does."""

    rank: int = 0
    rows: int = SPLIT[0]
    enabled: bool = False
    finished: list[StepRecord] = field(default_factory=list)
    left_out: set[int] = field(default_factory=set)

    def run(self, step: int) -> None:
        if self.enabled and step not in self.left_out:
            compute = 2 * (0.1 + 0.01 * self.rows)
            self.finished.append(
                StepRecord(step, 0, self.rows, 256, compute, 0.5, 0.0, 0.0, 4.0 + step)
            )

    def records(self, *, before: int) -> list[StepRecord]:
        given = [record for record in self.finished if record.step < before]
        self.finished = self.finished[len(given) :]
        return given


def go(
    watch: StepWatch, clock: Clock, until: int, state: Orchestration | None = None
) -> tuple[Orchestration, dict[str, list[int]]]:
    """The state after the steps before ``until``, and at which steps what happened."""
    state = state or planned()
    exchange = watch._exchange
    seen: dict[str, list[int]] = {"measured": [], "sent": [], "received": [], "wished": []}
    clock.enabled = watch.measures(0)
    for step in range(until):
        if clock.enabled:
            seen["measured"].append(step)
        clock.run(step)
        sent, received = len(exchange.sent), exchange.received
        state, wish = watch.end_step(step, clock, state)
        seen["sent"] += [step] * (len(exchange.sent) - sent)
        seen["received"] += [step] * (exchange.received - received)
        seen["wished"] += [step] * wish
        clock.enabled = watch.measures(step + 1)
    return state, seen


def test_a_block_is_sent_a_step_after_it_and_received_a_step_later():
    exchange = ScriptedExchange()
    state, seen = go(StepWatch(FIRST, 0, exchange), Clock(), FIRST + 17)
    assert seen["measured"] == list(range(FIRST, FIRST + 17))
    assert seen["sent"] == [FIRST + 5, FIRST + 10, FIRST + 15]
    assert seen["received"] == [FIRST + 6, FIRST + 11, FIRST + 16]
    assert len(state.watch.blocks) == 3
    assert [figures["ratios"] for figures in exchange.sent] == [pytest.approx([2.0] * 5)] * 3


def test_short_steps_are_sampled():
    exchange = ScriptedExchange(period=0.025)
    _, seen = go(StepWatch(FIRST, 0, exchange), Clock(), FIRST + 100)
    later = [step - FIRST for step in seen["measured"]]
    assert later[:10] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert later[10:] == [*range(45, 50), *range(85, 90)]


def test_what_is_sent_are_this_ranks_ratios_and_medians():
    exchange = ScriptedExchange()
    clock = Clock(left_out={FIRST + 1})
    go(StepWatch(FIRST, 0, exchange), clock, FIRST + 7)
    (figures,) = exchange.sent
    assert figures["ratios"] == pytest.approx([2.0, np.nan, 2.0, 2.0, 2.0], nan_ok=True)
    assert figures["period"] == 4.0 + FIRST + 2.5
    assert figures["loader_wait"] == 0.5
    assert figures["wants_change"] is False


def test_a_rank_that_measured_nothing_still_sends():
    exchange = ScriptedExchange()
    clock = Clock(left_out=set(range(FIRST, FIRST + 5)))
    go(StepWatch(FIRST, 0, exchange), clock, FIRST + 7)
    (figures,) = exchange.sent
    assert np.isnan([*figures["ratios"], figures["period"], figures["loader_wait"]]).all()


def test_steps_without_rows_are_not_measured():
    exchange = ScriptedExchange()
    go(StepWatch(FIRST, 0, exchange), Clock(rows=0), FIRST + 7)
    assert np.isnan(exchange.sent[0]["ratios"]).all()


@pytest.mark.parametrize(("scales", "period"), [((np.nan, np.nan), 2.0), ((1.0, 1.0), np.nan)])
def test_a_block_in_which_too_little_was_measured_changes_nothing(scales, period):
    exchange = ScriptedExchange(scales=[scales], period=period)
    before = planned()
    state, _ = go(StepWatch(FIRST, 0, exchange), Clock(), FIRST + 7, before)
    assert exchange.received == 1
    assert state is before


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_0_alone_says_after_one_block_what_all_do_after_the_next(rank):
    exchange = ScriptedExchange(scales=[(1.0, 1.0), (2.0, 1.0)], wishes=[False, False, True, False])
    _, seen = go(StepWatch(FIRST, rank, exchange), Clock(), FIRST + 21)
    assert [figures["wants_change"] for figures in exchange.sent] == [
        False,
        False,
        rank == 0,
        False,
    ]
    assert seen["wished"] == [FIRST + 16]


def test_the_end_of_a_training_waits_for_what_is_under_way():
    exchange = ScriptedExchange()
    watch = StepWatch(FIRST, 0, exchange)
    watch.finish()
    assert exchange.received == 0
    go(watch, Clock(), FIRST + 6)
    assert exchange.is_under_way
    watch.finish()
    assert not exchange.is_under_way


def told(waits: list[float]) -> list[tuple[int, float] | None]:
    watch = StepWatch(FIRST, 0, ScriptedExchange(waits=waits))
    seen = []
    state = planned()
    for step in range(FIRST, FIRST + 7 + 5 * len(waits)):
        state, _ = watch.end_step(step, Clock(), state)
        if watch.slow_loader is not None:
            seen.append(watch.slow_loader)
            watch.slow_loader = None
    return seen


def test_a_slow_loader_is_told_after_some_blocks_and_again_after_it_was_quick():
    blocks = BLOCKS_OF_A_SLOW_LOADER
    assert told([0.5] * (blocks - 1) + [0.0]) == []
    assert told([0.5] * 20) == [(1, 0.25)]
    assert told([0.5] * blocks + [0.0] + [1.0] * blocks) == [(1, 0.25), (1, 0.5)]
    assert told([0.4] * 20) == []


# The callback


@dataclass
class Strategy:
    orchestration: Orchestration | None
    clock: Clock = field(default_factory=Clock)
    first_free_step: int = 0
    memory: Any = None
    root_device: Any = "cpu"
    is_standing_still: int = 0

    def standing_still(self) -> Any:
        self.is_standing_still += 1
        return nullcontext()

    def measure(self, enabled: bool, *, memory: bool) -> None:
        assert not memory
        self.clock.enabled = enabled

    def finish_step(self) -> None: ...

    def log_epoch_rows(self) -> None: ...

    def end_epoch(self) -> None: ...

    def begin_planning(self) -> None: ...


@dataclass
class Played:
    """The callback beside a strategy of two ranks, the other of which is scripted."""

    callback: BoaCallbackBehaviour
    strategy: Strategy
    exchange: ScriptedExchange
    said: list[str]

    def steps(self, begin: int, end: int) -> None:
        for step in range(begin, end):
            self.strategy.clock.run(step)
            self.strategy.first_free_step = step + 3
            self.callback.on_train_batch_end(self._trainer(step))

    def end_epoch(self, step: int) -> None:
        self.strategy.first_free_step = step + 1
        self.callback.on_train_epoch_end(self._trainer(step), None)

    def _trainer(self, step: int) -> Any:
        class Loop:
            total_batch_idx = step

        class Trainer:
            fit_loop = Loop
            strategy = self.strategy

        return Trainer


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Any:
    def start(rebalance: str, **script: Any) -> Played:
        said: list[str] = []
        exchange = ScriptedExchange(**script)
        for name in ("rank_zero_info", "rank_zero_warn"):
            monkeypatch.setattr(boa_callback, name, said.append)
        monkeypatch.setattr(boa_callback, "BlockExchange", lambda *arguments: exchange)
        monkeypatch.setattr(boa_callback, "host_group", lambda: None)
        monkeypatch.setattr(boa_callback, "check_digest", lambda *arguments: None)
        monkeypatch.setattr(boa_callback, "decide_once", lambda decide, device: decide())
        monkeypatch.setattr(
            boa_callback,
            "exchange_records",
            lambda records, free, cap, device: boa_callback_exchange(free),
        )
        strategy = Strategy(planned(rebalance))
        callback = BoaCallbackBehaviour()
        callback._watch_from(strategy, FIRST)
        return Played(callback, strategy, exchange, said)

    return start


def boa_callback_exchange(first_free_step: int) -> Any:
    class Exchanged:
        row_caps = None

    Exchanged.first_free_step = first_free_step  # type: ignore[attr-defined]
    return Exchanged


DRIFT = {"scales": [(1.0, 1.0), (2.0, 1.0)], "wishes": [False, False, True, False]}


def test_the_callback_changes_the_plan_in_the_step_in_which_all_ranks_know(play):
    played = play("auto", **DRIFT)
    played.steps(FIRST, FIRST + 16)
    assert played.strategy.orchestration.rebalancings == ()
    played.steps(FIRST + 16, FIRST + 17)
    (change,) = played.strategy.orchestration.rebalancings
    assert change.step == FIRST + 16 + 3
    assert played.strategy.is_standing_still == 1
    assert played.said == [
        f"boa: {change.batch_sizes[0]} / {change.batch_sizes[1]} rows per rank from step"
        f" {change.step} on; {change.reason}."
    ]
    played.steps(FIRST + 17, FIRST + 50)
    assert len(played.said) == 2
    assert "a step takes 2 s; before it took 2 s" in played.said[1]


def test_the_callback_may_be_to_wait_for_the_end_of_an_epoch(play):
    played = play("epoch", scales=DRIFT["scales"], wishes=[False, False, True])
    played.steps(FIRST, FIRST + 42)
    assert played.strategy.orchestration.rebalancings == ()
    assert played.strategy.is_standing_still == 0
    played.end_epoch(FIRST + 41)
    (change,) = played.strategy.orchestration.rebalancings
    assert change.step == FIRST + 42


def test_the_end_of_an_epoch_is_nothing_special_where_the_plan_may_change_at_any_step(play):
    played = play("auto", scales=DRIFT["scales"])
    played.steps(FIRST, FIRST + 42)
    played.end_epoch(FIRST + 41)
    assert played.strategy.orchestration.rebalancings == ()


def test_the_callback_warns_once_of_a_slow_loader(play):
    played = play("auto", waits=[1.0])
    played.steps(FIRST, FIRST + 60)
    (warning,) = played.said
    assert "rank 1 waits for its loader in 50% of a step" in warning


def test_without_a_watch_nothing_is_measured(play):
    played = play("auto")
    played.callback._watch = None
    played.strategy.orchestration = replace(planned("off"), watch=None)
    played.callback._watch_from(played.strategy, FIRST)
    played.strategy.measure(False, memory=False)
    played.steps(FIRST, FIRST + 20)
    assert played.callback._watch is None
    assert not played.strategy.clock.enabled
    assert played.exchange.sent == []


def test_the_clock_runs_only_in_blocks(play):
    played = play("auto", period=0.025)
    enabled = []
    for step in range(FIRST, FIRST + 70):
        enabled += [step - FIRST] * played.strategy.clock.enabled
        played.steps(step, step + 1)
    assert enabled == [*range(10), *range(45, 50)]
