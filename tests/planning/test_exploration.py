from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_boa.planning import LinearTime, equal_split
from lightning_boa.planning.exploration import exploratory_split


def explore(slopes, current, *, lower=1, upper=None, granularity=1):
    ranks = len(current)
    return exploratory_split(
        [LinearTime(0.0, slope) for slope in slopes],
        current,
        lower=(lower,) * ranks,
        upper=upper or tuple(3 * size for size in current),
        granularity=granularity,
    )


@given(
    st.lists(st.floats(0.01, 1.0), min_size=2, max_size=8),
    st.integers(2, 64),
    st.sampled_from([1, 1, 2, 4]),
)
def test_every_rank_gets_another_size(slopes, rows_per_rank, granularity):
    rows = rows_per_rank * len(slopes) * granularity
    current = equal_split(len(slopes), rows, granularity=granularity).batch_sizes
    split = explore(slopes, current, granularity=granularity)
    assert sum(split) == rows
    for size, before in zip(split, current, strict=True):
        assert abs(size - before) >= max(granularity, 0.1 * before)
        assert 1 <= size <= 3 * before


def test_goes_towards_the_speeds():
    assert explore([1 / 4, 1, 1], (20, 20, 20)) == (40, 10, 10)


def test_growth_is_limited():
    assert explore([0.01, 1, 1, 1], (20,) * 4) == (59, 7, 7, 7)


def test_equal_speeds_are_set_apart_by_a_tenth():
    split = explore([1.0] * 4, (20,) * 4)
    assert sorted(split) == [18, 18, 22, 22]


def test_one_row_each_leaves_nothing_to_change():
    assert explore([1.0, 0.5, 0.25], (1, 1, 1)) == (1, 1, 1)


def test_one_spare_row_moves():
    assert explore([1.0, 0.5, 0.25], (2, 1, 1)) == (1, 1, 2)


@pytest.mark.parametrize("upper", [(20, 60, 20), (20, 20, 20)])
def test_a_rank_at_its_bound_keeps_its_rows(upper):
    split = explore([0.1, 1.0, 1.0], (20, 20, 20), upper=upper)
    assert sum(split) == 60
    assert all(size <= top for size, top in zip(split, upper, strict=True))
