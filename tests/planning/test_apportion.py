from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lightning_boa.errors import PlanError
from lightning_boa.planning import apportion

share_lists = st.lists(st.integers(0, 50), min_size=1, max_size=8)


@given(share_lists, st.integers(0, 400))
def test_without_bounds_every_share_is_its_quota_rounded_down_or_up(shares, rows):
    assume(sum(shares) > 0)
    split = apportion(shares, rows)
    assert sum(split) == rows
    for share, size in zip(shares, split, strict=True):
        assert abs(size - Fraction(rows * share, sum(shares))) < 1


@given(share_lists, st.data())
def test_bounds_are_kept_and_the_sum_is_exact(shares, data):
    lower = [data.draw(st.integers(0, 5)) for _ in shares]
    upper = [low + data.draw(st.integers(0, 9)) for low in lower]
    rows = data.draw(st.integers(sum(lower), sum(upper)))
    split = apportion(shares, rows, lower=lower, upper=upper)
    assert sum(split) == rows
    for low, size, high in zip(lower, split, upper, strict=True):
        assert low <= size <= high


@given(share_lists, st.data())
def test_a_part_of_the_whole_never_gives_more_than_the_whole(shares, data):
    assume(sum(shares) > 0)
    rows = data.draw(st.integers(0, sum(shares)))
    split = apportion(shares, rows)
    assert all(size <= share for size, share in zip(split, shares, strict=True))


@pytest.mark.parametrize(
    ("shares", "rows", "expected"),
    [
        ((1, 1, 1), 10, (4, 3, 3)),
        ((1, 4, 1), 2, (1, 1, 0)),
        ((5, 2, 1), 4, (3, 1, 0)),
        ((0.1, 0.2, 0.7), 10, (1, 2, 7)),
        ((0, 0), 3, (2, 1)),
        ((7,), 0, (0,)),
    ],
)
def test_equal_remainders_favour_the_lower_rank(shares, rows, expected):
    assert apportion(shares, rows) == expected


def test_a_bound_passes_rows_on_in_proportion():
    assert apportion((6, 2, 1), 18, upper=(6, 18, 18)) == (6, 8, 4)
    assert apportion((6, 2, 1), 18, lower=(0, 0, 6)) == (9, 3, 6)


def test_workers_without_a_share_take_rows_last():
    assert apportion((1, 0, 0), 10, upper=(4, 10, 10)) == (4, 3, 3)


@pytest.mark.parametrize(
    ("shares", "options"),
    [
        ((), {}),
        ((1, -1), {}),
        ((1, float("nan")), {}),
        ((1, 1), {"lower": 6}),
        ((1, 1), {"upper": 4}),
        ((1, 1), {"upper": (10, 10, 10)}),
    ],
)
def test_what_cannot_be_apportioned_is_refused(shares, options):
    with pytest.raises(PlanError):
        apportion(shares, 10, **options)
