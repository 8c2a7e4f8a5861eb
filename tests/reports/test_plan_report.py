from __future__ import annotations

import pytest

from lightning_boa.planning import (
    BatchPlan,
    LinearTime,
    NetworkFindings,
    Orchestration,
    OrchestrationSettings,
    RingAllReduce,
    StepRecord,
    choose_workers,
)
from lightning_boa.reports import PlanReport, RankReport, describe_plan

RANKS = (
    RankReport(0, "fast", 8, 12, equal_seconds=0.008, boa_seconds=0.012, predicted_seconds=0.012),
    RankReport(1, "slow", 8, 4, equal_seconds=0.024, boa_seconds=0.0108, predicted_seconds=0.012),
)
REPORT = PlanReport(RANKS, equal_step_seconds=0.025, boa_step_seconds=0.0125)


def test_the_gain_is_the_ratio_of_the_measured_steps() -> None:
    assert REPORT.gain == 2.0
    assert REPORT.compute_gain == pytest.approx(2.0)


def test_the_linear_ceiling_is_mean_speed_over_slowest_speed() -> None:
    assert REPORT.linear_ceiling == pytest.approx((1000 + 1000 / 3) / 2 / (1000 / 3))


def test_the_idle_share_is_the_wait_for_the_slowest() -> None:
    assert REPORT.equal_idle_share(RANKS[0]) == pytest.approx(2 / 3)
    assert REPORT.equal_idle_share(RANKS[1]) == 0
    assert REPORT.boa_idle_share(RANKS[1]) == pytest.approx(0.1)


def test_speed_is_measured_where_possible_and_predicted_elsewhere() -> None:
    assert RANKS[0].samples_per_second == pytest.approx(1000)
    assert RankReport(0, "a", 8, 6, predicted_seconds=0.003).samples_per_second == pytest.approx(
        2000
    )
    assert RankReport(0, "a", 8, 0, boa_seconds=0.01).samples_per_second is None


def test_what_was_not_measured_is_unknown() -> None:
    report = PlanReport((RANKS[0], RankReport(1, "slow", 8, 4)))
    assert report.gain is None
    assert report.compute_gain is None
    assert report.linear_ceiling is None
    assert report.equal_idle_share(RANKS[0]) is None


def test_a_finished_warm_up_gives_measured_figures_of_both_splits() -> None:
    settings = OrchestrationSettings(2, 40, lower=(1, 1), upper=(40, 40), warmup="auto")
    state = Orchestration.begin(settings, 0)
    step = 0
    while state.exchange_after is not None:
        last = state.exchange_after
        records = [
            _record(each, rank, state.schedule.plan_at(each).batch_sizes[rank])
            for each in range(step, last + 1)
            for rank in (0, 1)
        ]
        step = last + 1
        state = state.observe(records, first_free_step=step)

    report = describe_plan(state.plan, state, ("fast", "slow"))
    fast, slow = report.ranks
    assert (fast.equal_rows, slow.equal_rows) == (20, 20)
    assert (fast.boa_rows, slow.boa_rows) == (30, 10)
    assert fast.equal_seconds == pytest.approx(0.02)
    assert slow.predicted_seconds == pytest.approx(0.03, rel=0.05)
    assert slow.boa_seconds == pytest.approx(0.03)
    assert report.gain == pytest.approx(2.0, rel=0.05)
    assert report.linear_ceiling == pytest.approx(2.0)
    assert report.reason


def test_of_a_given_plan_only_the_rows_are_known() -> None:
    report = describe_plan(BatchPlan((6, 2)), None, ("a", "b"))
    assert [rank.boa_rows for rank in report.ranks] == [6, 2]
    assert [rank.equal_rows for rank in report.ranks] == [4, 4]
    assert report.gain is None
    assert report.reason == "these shares were given"


def test_the_network_is_a_line_where_it_costs_something() -> None:
    plan = BatchPlan((6, 2))
    assert describe_plan(plan, None, ("a", "b")).network == ""
    cheap = NetworkFindings(1.0, 0.01, 1.01)
    assert describe_plan(plan, None, ("a", "b"), cheap).network == ""
    dear = NetworkFindings(1.0, 0.5, 1.5)
    line = describe_plan(plan, None, ("a", "b"), dear).network
    assert line == "communication takes 0.5 of 1.5 s of a step"


def test_advice_about_the_workers_stands_in_the_same_line() -> None:
    workers = choose_workers([LinearTime(0.0, 0.1)] * 2, 8, RingAllReduce(1.0, 0.5))
    found = NetworkFindings(0.4, 2.0, 2.4, worker_set=workers, hosts=("x", "x"))
    line = describe_plan(BatchPlan((4, 4)), None, ("a", "b"), found).network
    assert line == (
        "the network limits: communication takes 2 of 2.4 s of a step, which no split of the rows makes shorter; "
        "without 1 of the 2 ranks (1) a step takes 0.8 s instead of 2.4 s, 200.0% more steps per second"
    )


def test_one_device_has_nothing_to_balance() -> None:
    assert describe_plan(BatchPlan((8,)), None, ("a",)).reason == "one device, nothing to balance"


def _record(step: int, rank: int, rows: int) -> StepRecord:
    compute = rows * (0.001, 0.003)[rank]
    return StepRecord(step, rank, rows, 40, compute, 0.0, 0.0, 0.0, 0.062 if rows == 20 else 0.031)
