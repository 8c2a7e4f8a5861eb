from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_boa.errors import OptionError, PlanError
from lightning_boa.planning import (
    BatchPlan,
    LinearTime,
    TableTime,
    equal_split,
    fixed_plan,
    plan_batches,
)

plans = st.lists(st.integers(0, 40), min_size=1, max_size=8).filter(any).map(tuple).map(BatchPlan)


@given(plans, st.data())
def test_every_step_is_split_exactly(plan, data):
    step_rows = data.draw(st.integers(1, plan.global_batch_size))
    rows = plan.rows_of(step_rows)
    assert sum(rows) == step_rows
    assert len(rows) == plan.world_size
    assert all(0 <= part <= whole for part, whole in zip(rows, plan.batch_sizes, strict=True))


@given(st.integers(1, 8), st.integers(1, 300))
def test_the_equal_split_is_that_of_ddp(world_size, rows):
    sizes = equal_split(world_size, rows).batch_sizes
    assert sum(sizes) == rows
    assert max(sizes) - min(sizes) <= 1
    assert list(sizes) == sorted(sizes, reverse=True)


@given(
    st.lists(st.floats(1e-4, 1.0), min_size=1, max_size=8),
    st.lists(st.floats(0.0, 1.0), min_size=8, max_size=8),
    st.integers(0, 300),
    st.sampled_from([1, 1, 2, 8]),
)
def test_plans_sum_to_the_global_batch_and_never_lose_to_the_equal_split(
    slopes, overheads, extra, granularity
):
    models = [LinearTime(*pair) for pair in zip(overheads, slopes, strict=False)]
    rows = granularity * len(models) + extra
    plan = plan_batches(models, rows, granularity=granularity)
    assert plan.global_batch_size == rows
    assert plan.world_size == len(models)
    assert min(plan.batch_sizes) >= 1
    assert plan.step_seconds == max(plan.rank_seconds)
    if granularity == 1:
        assert plan.step_seconds <= plan.equal_step_seconds


def test_256_rows_on_7_ranks():
    models = [LinearTime(0.01 * rank, 0.001 * (1 + rank % 3)) for rank in range(7)]
    plan = plan_batches(models, 256)
    assert equal_split(7, 256).batch_sizes == (37, 37, 37, 37, 36, 36, 36)
    assert plan.global_batch_size == 256
    for step_rows in range(1, 257):
        assert sum(plan.rows_of(step_rows)) == step_rows


def test_three_kinds_of_devices():
    speeds = [4.9] * 4 + [2.4] * 3 + [1.0]
    plan = plan_batches([LinearTime(0.0, 1 / speed) for speed in speeds], 512)
    assert sorted(plan.batch_sizes, reverse=True) == [91, 91, 90, 90, 44, 44, 44, 18]
    assert plan.linear_ceiling == pytest.approx(sum(speeds) / 8)
    assert plan.equal_step_seconds == pytest.approx(64)


def test_the_equal_split_within_bounds():
    assert equal_split(4, 10).batch_sizes == (3, 3, 2, 2)
    assert equal_split(4, 12, lower=[10, 0, 0, 0]).batch_sizes == (10, 1, 1, 0)
    assert equal_split(3, 12, upper=[2, 12, 12]).batch_sizes == (2, 5, 5)
    assert equal_split(3, 20, granularity=4).batch_sizes == (8, 8, 4)
    assert sorted(equal_split(3, 22, granularity=4).batch_sizes) == [6, 8, 8]


def test_the_digest_depends_on_the_rows_alone():
    plan = BatchPlan((5, 2, 1))
    assert plan.digest == 1288436381187362240
    assert plan.digest == BatchPlan((5, 2, 1), step_seconds=1.0).digest
    assert plan.digest != BatchPlan((52, 1)).digest
    assert BatchPlan(tuple(np.array([5, 2, 1]))) == plan


@given(plans)
def test_digests_fit_into_63_bits(plan):
    assert 0 <= plan.digest < 2**63


def test_plans_come_back_from_plain_values_and_pickles():
    models = [LinearTime(0.1, 0.2), TableTime([5, 10], [1.0, 3.0])]
    for plan in (plan_batches(models, 30), BatchPlan((5, 2, 1))):
        assert BatchPlan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
        assert pickle.loads(pickle.dumps(plan)) == plan


def test_the_ceiling_is_unknown_without_speeds():
    assert BatchPlan((5, 2, 1)).linear_ceiling is None
    assert BatchPlan((5, 0), rank_seconds=(1.0, 1.0)).linear_ceiling is None


@pytest.mark.parametrize("sizes", [(), (0, 0), (1, -1), (1.5,), (True,)])
def test_impossible_plans_are_refused(sizes):
    with pytest.raises(PlanError, match="batch_sizes"):
        BatchPlan(sizes)


def test_seconds_for_other_ranks_are_refused():
    with pytest.raises(PlanError, match="rank_seconds"):
        BatchPlan((5, 2), rank_seconds=(1.0,))


@pytest.mark.parametrize("step_rows", [0, -1])
def test_steps_of_impossible_rows(step_rows):
    with pytest.raises(PlanError, match="at least 1 row"):
        BatchPlan((5, 2, 1)).rows_of(step_rows)


def test_more_rows_than_the_global_batch_are_split_in_proportion():
    assert BatchPlan((5, 2, 1)).rows_of(16) == (10, 4, 2)
    assert sum(BatchPlan((5, 2, 1)).rows_of(17)) == 17


def test_no_models():
    with pytest.raises(OptionError, match=r"^time_models"):
        plan_batches([], 10)


def test_a_fixed_plan():
    assert fixed_plan([5, 0, 3], world_size=3, global_batch_size=8).batch_sizes == (5, 0, 3)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ([5, 3], "each of the 3 ranks"),
        ([5, -1, 4], ">= 0, got -1"),
        ([5, 2.0, 1], r"got 2\.0"),
        ([0, 0, 0], "at least one rank"),
        ([5, 2, 2], "sum 8 of global_batch_size"),
        (8, "a list"),
        ("521", "a list"),
    ],
)
def test_a_wrong_fixed_plan(sizes, words):
    with pytest.raises(OptionError, match=f"^batch_sizes: .*{words}"):
        fixed_plan(sizes, world_size=3, global_batch_size=8)


@pytest.mark.parametrize(
    ("batch_sizes", "rows", "split"),
    [
        ((16, 48), 1, (1, 0)),
        ((16, 48), 2, (2, 0)),
        ((16, 48), 3, (3, 0)),
        ((16, 48), 5, (2, 3)),
        ((16, 48), 8, (2, 6)),
        ((2, 48), 3, (1, 2)),
        ((4, 4, 4), 3, (3, 0, 0)),
        ((4, 4, 4), 5, (3, 2, 0)),
        ((4, 4, 4), 7, (3, 2, 2)),
        ((0, 4, 4), 1, (0, 1, 0)),
        ((1, 1, 6), 3, (1, 0, 2)),
        ((5, 5, 1), 4, (2, 2, 0)),
    ],
)
def test_a_short_step_leaves_no_rank_with_a_single_row_where_it_can(batch_sizes, rows, split):
    assert BatchPlan(batch_sizes).rows_of(rows) == split


def test_more_than_two_rows_may_be_asked_for():
    assert BatchPlan((16, 16, 16)).rows_of(12, least=5) == (6, 6, 0)
    assert BatchPlan((16, 16, 16)).rows_of(15, least=5) == (5, 5, 5)
