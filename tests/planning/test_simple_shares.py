"""Shares in proportion to speed, and rows that move from the slowest to the fastest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_boa.planning import moved_shares, proportional_shares

workers = st.lists(
    st.tuples(st.integers(1, 40), st.floats(0.01, 10.0)), min_size=1, max_size=6
).map(lambda pairs: tuple(zip(*pairs, strict=True)))


@given(workers)
def test_shares_in_proportion_keep_the_sum_and_give_each_a_row(measured):
    rows, seconds = measured
    shares = proportional_shares(rows, seconds)
    assert sum(shares) == sum(rows)
    assert min(shares) >= 1
    speeds = [size / lasted for size, lasted in zip(rows, seconds, strict=True)]
    wanted = [sum(rows) * speed / sum(speeds) for speed in speeds]
    if min(wanted) >= 1:
        for share, exact in zip(shares, wanted, strict=True):
            assert abs(share - exact) < 1 + 1e-9


def test_shares_in_proportion_keep_to_bounds_and_multiples():
    assert proportional_shares((6, 6, 6), (1.0, 2.0, 30.0)) == (11, 6, 1)
    assert proportional_shares((6, 6, 6), (1.0, 2.0, 30.0), lower=(1, 1, 4)) == (9, 5, 4)
    assert proportional_shares((6, 6, 6), (1.0, 2.0, 30.0), lower=(3, 3, 4), granularity=3) == (
        9,
        3,
        6,
    )


@given(workers, st.integers(1, 9))
def test_rows_move_from_the_slowest_to_the_fastest(measured, rows_moved):
    rows, seconds = measured
    moved = moved_shares(rows, seconds, rows_moved)
    change = {worker: now - rows[worker] for worker, now in enumerate(moved) if now != rows[worker]}
    slowest, fastest = seconds.index(max(seconds)), seconds.index(min(seconds))
    moves = min(rows_moved, rows[slowest] - 1) if max(seconds) > min(seconds) else 0
    assert change == ({slowest: -moves, fastest: moves} if moves else {})


@pytest.mark.parametrize(
    ("rows", "rows_moved", "options", "moved"),
    [
        ((9, 9), 2, {}, (7, 11)),
        ((9, 9), 20, {}, (1, 17)),
        ((9, 9), 20, {"lower": (4, 1)}, (4, 14)),
        ((3, 15), 2, {"lower": (4, 1)}, (3, 15)),
        ((9, 9), 1, {"granularity": 3}, (6, 12)),
        ((9, 9), 5, {"granularity": 3}, (6, 12)),
        ((9, 9), 6, {"granularity": 3, "lower": (4, 3)}, (6, 12)),
    ],
)
def test_as_many_rows_move_as_bounds_and_multiples_permit(rows, rows_moved, options, moved):
    assert moved_shares(rows, (2.0, 1.0), rows_moved, **options) == moved


def test_the_first_of_equals_gives_and_gets():
    assert moved_shares((5, 5, 5, 5), (2.0, 1.0, 2.0, 1.0), 1) == (4, 6, 5, 5)
    assert moved_shares((5, 5, 5), (2.0, 2.0, 2.0), 1) == (5, 5, 5)
