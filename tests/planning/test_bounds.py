from __future__ import annotations

import numpy as np
import pytest

from lightning_boa.errors import OptionError, PlanError
from lightning_boa.planning import row_bounds


def test_numbers_and_lists_become_one_bound_per_rank():
    assert row_bounds(3, 10) == ((1, 1, 1), (10, 10, 10))
    assert row_bounds(3, 10, min_batch_size=0, max_batch_size=[4, 40, 5]) == (
        (0, 0, 0),
        (4, 10, 5),
    )
    assert row_bounds(2, 9, max_batch_size=np.array([5, 6])) == ((1, 1), (5, 6))


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"min_batch_size": [1, 1]}, "min_batch_size"),
        ({"min_batch_size": -1}, "min_batch_size"),
        ({"min_batch_size": True}, "min_batch_size"),
        ({"min_batch_size": "many"}, "min_batch_size"),
        ({"max_batch_size": [1, 2.5, 3]}, "max_batch_size"),
        ({"max_batch_size": 4.0}, "max_batch_size"),
        ({"granularity": 0}, "granularity"),
        ({"granularity": 1.0}, "granularity"),
    ],
)
def test_a_wrong_option_begins_the_message(options, name):
    with pytest.raises(OptionError, match=f"^{name}: "):
        row_bounds(3, 10, **options)


def test_a_wrong_global_batch_size():
    with pytest.raises(OptionError, match=r"^global_batch_size: "):
        row_bounds(3, 0)


def test_fewer_rows_than_ranks_says_how_to_permit_it():
    with pytest.raises(PlanError, match="min_batch_size=0 permits ranks without rows"):
        row_bounds(4, 3)
    assert row_bounds(4, 3, min_batch_size=0)[0] == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"min_batch_size": 5}, "lower min_batch_size"),
        ({"max_batch_size": 3}, "raise max_batch_size"),
        ({"min_batch_size": [1, 6, 1], "max_batch_size": 5}, "rank 1"),
        ({"granularity": 8, "min_batch_size": 3}, "granularity=8"),
    ],
)
def test_bounds_that_exclude_every_split(options, words):
    with pytest.raises(PlanError, match=words):
        row_bounds(3, 10, **options)
