"""Splits of very many rows: exact, or refused in a sentence."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lightning_boa.errors import OptionError, PlanError
from lightning_boa.planning import (
    InPasses,
    LinearTime,
    RingAllReduce,
    TableTime,
    allocate,
    apportion,
    choose_workers,
    equal_split,
    plan_batches,
    row_bounds,
)
from lightning_boa.planning.bounds import MOST_ROWS
from lightning_boa.planning.words import passes_in_words

lines = st.builds(LinearTime, st.floats(0, 100), st.floats(1e-9, 10), st.floats(0, 100))
tables = st.builds(
    lambda start, gain: TableTime([4, 4000, 4_000_000], [start, start + gain, start + 3 * gain]),
    st.floats(1e-3, 10),
    st.floats(0, 10),
)
huge = st.integers(10**6, MOST_ROWS)


@given(
    models=st.lists(lines | tables, min_size=1, max_size=6),
    rows=huge,
    granularity=st.integers(1, 1000),
    parts=st.lists(st.integers(0, 100), min_size=6, max_size=6),
)
@example(
    models=[LinearTime(0.0, 0.001), LinearTime(0.001, 0.003)],
    rows=10**11,
    granularity=1,
    parts=[0] * 6,
)
@example(
    models=[LinearTime(0.0, 1.0)] * 3,
    rows=MOST_ROWS,
    granularity=7,
    parts=[100, 1, 1, 1, 1, 1],
)
def test_shares_of_huge_batches_add_up(models, rows, granularity, parts):
    prefer = [rows // 600 * part for part in parts[: len(models)]]
    plan = plan_batches(models, rows, granularity=granularity, prefer=prefer)
    assert sum(plan.batch_sizes) == rows
    assert sum(size % granularity > 0 for size in plan.batch_sizes) <= 1
    assert all(size >= 1 for size in plan.batch_sizes)


@given(rows=huge, workers=st.integers(1, 9))
def test_the_equal_split_of_a_huge_batch_is_equal(rows, workers):
    sizes = equal_split(workers, rows).batch_sizes
    assert sum(sizes) == rows
    assert max(sizes) - min(sizes) <= 1
    assert all(before >= after for before, after in pairwise(sizes))


@given(rows=huge, shares=st.lists(st.floats(1e-6, 1e12), min_size=1, max_size=6))
def test_proportional_parts_of_a_huge_batch_add_up(rows, shares):
    parts = apportion(shares, rows)
    assert sum(parts) == rows
    for part, share in zip(parts, shares, strict=True):
        assert part == pytest.approx(rows * share / sum(shares), rel=1e-9, abs=1.1)


def test_a_huge_batch_is_as_fast_as_the_mathematics_permits():
    plan = plan_batches([LinearTime(0.0, 0.001), LinearTime(0.001, 0.003)], 10**11)
    assert plan.step_seconds == pytest.approx(0.75e8)
    assert plan.batch_sizes == (75_000_000_000, 25_000_000_000)


def test_very_many_passes_cost_no_memory():
    plan = plan_batches([InPasses(LinearTime(0.0, 0.001), 1)] * 2, MOST_ROWS)
    assert plan.pass_counts == (MOST_ROWS // 2,) * 2
    assert plan.has_passes
    assert "several passes" in passes_in_words(plan)


@pytest.mark.parametrize(
    "split",
    [
        lambda rows: plan_batches([LinearTime(0.0, 1.0)], rows),
        lambda rows: equal_split(2, rows),
        lambda rows: row_bounds(2, rows),
        lambda rows: row_bounds(2, 8, min_batch_size=rows),
        lambda rows: row_bounds(2, 8, granularity=rows),
        lambda rows: choose_workers([LinearTime(0.0, 1.0)], rows, RingAllReduce(0.0, 1.0)),
    ],
)
@pytest.mark.parametrize("rows", [MOST_ROWS + 1, 2**63, 10**30])
def test_more_rows_than_that_are_refused(split, rows):
    with pytest.raises(OptionError, match=rf"expected at most 1,000,000,000,000, got {rows:,}"):
        split(rows)


@pytest.mark.parametrize("rows", [MOST_ROWS + 1, 2**63])
def test_the_allocation_refuses_them_too(rows):
    with pytest.raises(PlanError, match=r"at most 1,000,000,000,000 rows"):
        allocate([LinearTime(0.0, 1.0)], rows, lower=0, upper=np.iinfo(np.int64).max)
    with pytest.raises(PlanError, match=r"at most 1,000,000,000,000 rows"):
        apportion([1.0], rows)


def test_an_upper_bound_may_be_any_number():
    assert row_bounds(2, 8, max_batch_size=10**30) == ((1, 1), (8, 8))
    chosen = choose_workers(
        [LinearTime(0.0, 1.0)], 8, RingAllReduce(0.0, 1.0), max_batch_size=10**30
    )
    assert chosen.batch_sizes == (8,)
