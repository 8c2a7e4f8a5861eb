from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_boa.errors import OptionError
from lightning_boa.planning import BatchPlan, gradient_weight


@given(st.lists(st.integers(0, 30), min_size=1, max_size=8).filter(any), st.data())
def test_the_average_of_weighted_means_is_the_mean_of_the_step(sizes, data):
    plan = BatchPlan(tuple(sizes))
    step_rows = data.draw(st.integers(1, plan.global_batch_size))
    rows = plan.rows_of(step_rows)
    values = data.draw(st.lists(st.floats(-1, 1), min_size=step_rows, max_size=step_rows))
    start, average = 0, 0.0
    for size in rows:
        local = values[start : start + size]
        start += size
        mean = sum(local) / size if size else 123.0
        average += gradient_weight(size, step_rows, plan.world_size) * mean / plan.world_size
    assert average == pytest.approx(sum(values) / step_rows, abs=1e-12)


def test_sums_undo_the_division_by_the_ranks():
    assert gradient_weight(3, 8, 4, "sum") == 4.0
    assert gradient_weight(0, 8, 4, "sum") == 0.0


def test_a_loss_with_its_own_factor_stays_as_it_is():
    assert gradient_weight(3, 8, 4, "none") == 1.0
    assert gradient_weight(0, 8, 4, "none") == 0.0


def test_an_unknown_weight_lists_the_known():
    with pytest.raises(OptionError, match=r"^batch_weight: expected one of samples, sum, none"):
        gradient_weight(3, 8, 4, "tokens")


@pytest.mark.parametrize(("rows", "step_rows"), [(9, 8), (-1, 8), (0, 0)])
def test_impossible_rows(rows, step_rows):
    with pytest.raises(OptionError):
        gradient_weight(rows, step_rows, 4)
