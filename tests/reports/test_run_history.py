"""What a record keeps of a training, and the time saved, against a simulated training whose truth is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest

from lightning_boa.planning import (
    EqualStep,
    LinearTime,
    Orchestration,
    Schedule,
    StepRecord,
    equal_split,
    fixed_plan,
)
from lightning_boa.reports.run_history import (
    EvenlyKept,
    RunHistory,
    Training,
    block_record,
    kept_steps,
    saving,
)
from lightning_boa.reports.run_record import BlockRecord, RunRecord
from lightning_boa.simulation import Boa

BATCH = 256
BESIDE = 0.02
MIXED = (LinearTime(0.02, 0.001), LinearTime(0.02, 0.001), LinearTime(0.02, 0.003))
ALIKE = (LinearTime(0.02, 0.002),) * 3


@dataclass
class Trained:
    history: RunHistory
    state: Orchestration
    devices: tuple[str, ...]
    saved: float
    last_step: int

    def record(self, outcome: str = "running") -> RunRecord:
        training = Training("BoaStrategy", self.devices, self.state.schedule, self.state)
        return self.history.record(training, outcome, self.last_step)


def trained(
    models: Sequence[LinearTime],
    steps: int,
    noise: float = 0.0,
    seed: int = 0,
    slower: dict[int, tuple[int, float]] | None = None,
    common: tuple[int, float] | None = None,
    forgets: bool = False,
    disturbed: tuple[int, float] = (0, 1.0),
) -> Trained:
    """A training under the real loop; ``saved`` are the seconds that the same steps would have taken more under the
    equal split, the same noise included, since the first block."""
    random = np.random.default_rng(seed)
    shares = Boa(options={"rebalance": "auto"}).begin(range(len(models)), BATCH, 0)
    equal_rows = equal_split(len(models), BATCH).batch_sizes
    history, known, saved, began = RunHistory("now"), None, 0.0, None
    for step in range(steps):
        rows = shares.rows(step)
        factors = np.exp(noise * random.standard_normal(len(models)))
        for rank, (first, factor) in (slower or {}).items():
            factors[rank] *= factor if step >= first else 1.0
        factors *= disturbed[1] if step < disturbed[0] else 1.0
        factors *= common[1] if common is not None and step >= common[0] else 1.0
        now, equal = (
            np.array([float(model.seconds(n)) for model, n in zip(models, split, strict=True)])
            * factors
            for split in (rows, equal_rows)
        )
        before = shares.orchestration
        shares.after(step, rows, now, float(now.max()) + BESIDE)
        after = shares.orchestration
        if after.watch is None or before.watch is None:
            continue
        began = step if began is None else began
        saved += float(equal.max() - now.max())
        if before.watch.blocks != after.watch.blocks and after.rebalancings == before.rebalancings:
            known = known or EqualStep.of(replace(after, records=()) if forgets else after)
            history.equal = known
            history.add(block_record(after.watch.blocks[-1], after, known))
    devices = tuple(f"device {rank}" for rank in range(len(models)))
    return Trained(history, shares.orchestration, devices, saved, steps - 1)


def test_without_noise_what_is_saved_is_the_truth() -> None:
    run = trained(MIXED, 400)
    found = run.record().saving
    assert found is not None
    assert found.seconds == pytest.approx(run.saved, rel=0.002)
    assert found.steps == pytest.approx(400 - run.record().blocks[0].step)
    assert found.gain == pytest.approx(1 + run.saved / found.trained_seconds, rel=0.002)


def test_a_training_that_never_ran_the_equal_split_tells_it_by_its_models() -> None:
    run = trained(MIXED, 400, noise=0.01, forgets=True)
    found = run.record().saving
    assert found is not None
    assert run.history.equal is not None
    assert run.history.equal.measured is None
    assert found.seconds == pytest.approx(run.saved, abs=3 * found.error)
    assert 0.01 < found.error / found.seconds < 0.1


def test_equal_devices_save_nothing_exactly() -> None:
    run = trained(ALIKE, 200, noise=0.01)
    found = run.record().saving
    assert found is not None
    assert (found.seconds, found.error) == (0, 0)
    assert "equally fast" in run.record().hindrance


@pytest.mark.parametrize("noise", [0.01, 0.05])
@pytest.mark.parametrize(
    "models", [MIXED, MIXED[::-1] + MIXED[2:] * 3], ids=["3", "6, mostly slow"]
)
def test_the_truth_lies_within_three_errors(models: Sequence[LinearTime], noise: float) -> None:
    misses = []
    for seed in range(8):
        run = trained(models, 150, noise, seed)
        found = run.record().saving
        assert found is not None
        misses.append((found.seconds - run.saved) / found.error)
    assert sum(abs(miss) <= 3 for miss in misses) >= 7
    assert np.sqrt(np.mean(np.square(misses))) > 0.1  # an error that is far too large says nothing


def test_a_device_that_becomes_slower_makes_the_equal_split_slower_too() -> None:
    run = trained(MIXED, 600, slower={2: (200, 2.0)})
    found = run.record().saving
    assert found is not None
    assert run.state.rebalancings
    assert found.seconds == pytest.approx(run.saved, rel=0.02)
    constant = trained(MIXED, 600)
    assert found.seconds > 1.5 * constant.saved


def test_batches_that_take_all_ranks_longer_are_longer_under_the_equal_split_too() -> None:
    run = trained(MIXED, 600, common=(200, 3.0))
    found = run.record().saving
    assert found is not None
    assert found.seconds == pytest.approx(run.saved, rel=0.02)
    assert found.seconds > 2 * trained(MIXED, 600).saved


def test_noise_in_the_few_equal_steps_is_no_saving() -> None:
    run = trained(MIXED, 300, disturbed=(7, 1.6))
    found = run.record().saving
    assert found is not None
    assert run.state.equal_step_seconds > 1.4 * 0.276
    assert found.seconds < 1.2 * run.saved


def test_steps_that_were_measured_together_stand_for_those_until_the_next_ones() -> None:
    blocks = [block(10, 1.0, 3.0), block(20, 2.0, 3.0)]
    found = saving(blocks, (8, 8), 24, 0.0)
    assert found is not None
    assert (found.seconds, found.trained_seconds, found.steps) == (10 * 2.0 + 5 * 1.0, 20.0, 15)
    assert saving([], (8, 8), 24, 0.0) is None


def test_the_error_of_the_equal_step_is_the_same_in_all_steps() -> None:
    blocks = [block(step, 1.0, 3.0) for step in range(0, 1000, 10)]
    found = saving(blocks, (8, 8), 999, 0.1)
    assert found is not None
    assert found.error == pytest.approx(100.0, rel=0.01)


def test_of_many_blocks_some_are_left_out_evenly() -> None:
    kept = EvenlyKept[int](100)
    for number in range(10_000):
        kept.add(number)
    gaps = set(np.diff(kept.kept).tolist())
    assert 50 <= len(kept.kept) <= 101
    assert kept.kept[0] == 0
    assert len(gaps) == 1
    assert kept.kept[-1] >= 10_000 - 2 * max(gaps)


def test_of_many_steps_whole_ones_are_kept_those_of_the_two_splits_first() -> None:
    splits = {0: (8, 8), 1: (10, 6), 2: (12, 4)}
    records = [
        StepRecord(step, rank, splits[step % 3][rank], 16, 1.0, 0.0, 0.0, 0.0, 1.0)
        for step in range(30)
        for rank in range(2)
    ]
    assert kept_steps(records, ((8, 8), (12, 4)), most=60) == tuple(records)
    kept = kept_steps(records, ((8, 8), (12, 4)), most=48)
    assert len(kept) == 48
    assert {each.step for each in records if each.step % 3 != 1} <= {each.step for each in kept}
    few = kept_steps(records, ((8, 8), (12, 4)), most=8)
    assert [each.step % 3 == 1 for each in few] == [False] * 8
    assert [each.rank for each in few] == [0, 1] * 4


def test_a_record_is_read_again_and_gone_on_with() -> None:
    run = trained(MIXED, 400, noise=0.01)
    record = run.record("stopped")
    again = RunRecord.from_json(record.to_json())
    assert again == record
    resumed = RunHistory(again.started, again, 300)
    training = Training("BoaStrategy", run.devices, run.state.schedule, run.state)
    after = resumed.record(training, "running", 300)
    assert after.blocks == tuple(each for each in record.blocks if each.step < 300)
    assert after.steps == record.steps
    assert after.plans == record.plans
    assert after.started == "now"


def test_the_plans_of_the_warm_up_are_in_it_and_each_change_once() -> None:
    record = trained(MIXED, 100).record()
    rows = [split for _, split in record.plans]
    assert record.plans[0] == (0, equal_split(3, BATCH).batch_sizes)
    assert len(rows) > 2
    assert all(one != other for one, other in pairwise(rows))
    assert record.blocks[0].busy == pytest.approx((1, 1, 1), abs=0.02)


def test_a_fixed_plan_has_a_record_too() -> None:
    schedule = Schedule.starting_with(fixed_plan([12, 4], world_size=2))
    training = Training("BoaStrategy", ("a", "b"), schedule, fixed_reason="fixed plan")
    record = RunHistory("now").record(training, "finished", 9)
    assert record.saving is None
    assert record.hindrance == "fixed plan: nothing was measured"
    assert record.plans == ((0, (12, 4)),)


def test_a_schedule_that_forgets_is_remembered_but_not_without_end() -> None:
    history = RunHistory("now")
    plan = fixed_plan([12, 4], world_size=2)
    for step in range(5000):
        rows = (12, 4) if step % 2 else (8, 8)
        history.note_plans(Schedule.starting_with(replace(plan, batch_sizes=rows), step))
    training = Training("LbBspStrategy", ("a", "b"), Schedule.starting_with(plan, 5000))
    plans = history.record(training, "finished", 5000).plans
    assert 100 < len(plans) <= 2000
    assert plans[0][0] == 0


def block(step: int, period: float, equal_period: float) -> BlockRecord:
    return BlockRecord(step, (12, 4), period, 0.0, period, (1.0, 1.0), equal_period)
