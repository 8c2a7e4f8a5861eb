from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_boa.errors import MeasurementError, PlanError
from lightning_boa.planning import (
    Buckets,
    LinearTime,
    OverlappedTime,
    TableTime,
    allocate,
    plan_batches,
    step_end,
)


def exchanged_one_after_another(models, split):
    """When the last bucket is exchanged: each begins when all ranks are ready and the one before is over."""
    over = 0.0
    for bucket, seconds in enumerate(models[0].buckets.seconds):
        ready = max(
            float(model.before.seconds(size))
            + model.buckets.ready[bucket] * float(model.backward.seconds(size))
            for model, size in zip(models, split, strict=True)
        )
        over = max(over, ready) + seconds
    return over


def eighths(random, most, size=None):
    """Multiples of 1/8, whose sums and products are exact."""
    return random.integers(0, 8 * most + 1, size) / 8


def random_part(random):
    if random.random() < 0.3:
        return TableTime([1, 3, 5], (0.125 + np.sort(eighths(random, 4, 3))).tolist())
    return LinearTime(eighths(random, 2), 0.125 + eighths(random, 1), eighths(random, 3))


def random_ranks(random):
    buckets = int(random.integers(1, 5))
    seconds = eighths(random, 2, buckets)
    ready = np.sort(eighths(random, 1, buckets))
    ready[-1] = 1.0
    shared = Buckets(tuple(ready), tuple(seconds))
    return [
        OverlappedTime(random_part(random), random_part(random), shared)
        for _ in range(int(random.integers(1, 4)))
    ]


def every_split(rows, ranks, lower, upper, granularity):
    for split in itertools.product(range(lower, upper + 1), repeat=ranks):
        uneven = [size % granularity for size in split if size % granularity]
        if sum(split) == rows and uneven in ([], [rows % granularity]):
            yield split


@pytest.mark.parametrize("seed", range(10))
def test_no_split_ends_earlier(seed):
    random = np.random.default_rng(seed)
    solved = 0
    while solved < 100:
        models = random_ranks(random)
        rows = int(random.integers(0, 10))
        lower, upper = int(random.integers(0, 3)), int(random.integers(3, 10))
        granularity = int(random.choice([1, 1, 2, 3]))
        bounds = {"lower": lower, "upper": upper, "granularity": granularity}
        ends = {
            split: exchanged_one_after_another(models, split)
            for split in every_split(rows, len(models), **bounds)
        }
        if not ends:
            with pytest.raises(PlanError):
                allocate(models, rows, **bounds)
            continue
        split = tuple(allocate(models, rows, **bounds).tolist())
        assert ends[split] == min(ends.values()), (models, rows, bounds)
        solved += 1


@given(st.integers(0, 2**32 - 1), st.integers(1, 9))
@settings(deadline=None)
def test_the_end_of_a_step_is_explained(seed, rows):
    random = np.random.default_rng(seed)
    models = random_ranks(random)
    split = random.multinomial(rows, np.full(len(models), 1 / len(models))).tolist()
    end = step_end(models, split)
    buckets = models[0].buckets
    backward = [
        float(model.before.seconds(size) + model.backward.seconds(size))
        for model, size in zip(models, split, strict=True)
    ]
    assert end.seconds == exchanged_one_after_another(models, split)
    assert end.backward_seconds == max(backward)
    assert end.least_seconds == min(
        exchanged_one_after_another(models, other)
        for other in every_split(rows, len(models), 0, rows, 1)
    )
    assert end.most_gain >= 0
    assert end.exposed_seconds >= buckets.seconds[-1]
    assert end.network_bound == (
        end.exposed_seconds > buckets.seconds[-1] or end.exposed_seconds > end.backward_seconds
    )
    waited_for = models[end.rank]
    ready = float(waited_for.before.seconds(split[end.rank])) + waited_for.buckets.ready[
        end.bucket
    ] * float(waited_for.backward.seconds(split[end.rank]))
    assert ready + sum(buckets.seconds[end.bucket :]) == end.seconds


def test_without_communication_a_step_is_its_computation():
    model = OverlappedTime(LinearTime(1.0, 0.5), LinearTime(0.0, 2.0), Buckets((0.3, 1), (0, 0)))
    np.testing.assert_allclose(model.seconds([[0, 1], [2, 3]]), [[1.0, 3.5], [6.0, 8.5]])
    assert model.seconds(3).shape == ()


COMPUTE = Buckets(ready=(0.25, 1.0), seconds=(0.5, 0.25))
NETWORK = Buckets(ready=(0.25, 1.0), seconds=(8.0, 0.25))


def two_ranks(buckets):
    return [
        OverlappedTime(LinearTime(0.0, part), LinearTime(0.0, 2 * part), buckets)
        for part in (0.125, 0.5)
    ]


def test_two_buckets_are_cannikins_two_cases():
    before, backward = LinearTime(0.5, 0.125), LinearTime(0.25, 0.25)
    rows = np.arange(20)
    hidden = (1 - 0.25) * backward.seconds(rows) >= 2.0
    first = before.seconds(rows) + 0.25 * backward.seconds(rows) + 2.0 + 0.5
    last = before.seconds(rows) + backward.seconds(rows) + 0.5
    model = OverlappedTime(before, backward, Buckets((0.25, 1.0), (2.0, 0.5)))
    assert set(hidden.tolist()) == {False, True}
    np.testing.assert_array_equal(model.seconds(rows), np.where(hidden, last, first))


def test_devices_that_limit_are_named_and_rows_are_worth_moving():
    end = step_end(two_ranks(COMPUTE), [5, 5])
    assert (end.rank, end.bucket, end.network_bound) == (1, 1, False)
    assert end.seconds == 5 * 1.5 + 0.25
    assert end.most_gain == pytest.approx(7.75 / 3.25 - 1)
    assert end.finding == (
        "rank 1 limits: all ranks wait for the end of its backward, and 0.25 of 7.75 s come after it; "
        "another split gains at most 138.5%"
    )


def test_a_network_that_limits_is_named_and_little_is_gained_by_moving_rows():
    models = two_ranks(NETWORK)
    plan = plan_batches(models, 10)
    assert plan.step_seconds == 9.75
    end = step_end(models, [7, 3])
    assert (end.rank, end.bucket, end.network_bound) == (1, 0, True)
    assert end.exposed_seconds == 10.5 - 4.5
    assert end.finding == (
        "the network limits: it is never idle from bucket 1 of 2 on, and 6 of 10.5 s come after the slowest "
        "backward; another split gains at most 7.7%"
    )


@pytest.mark.parametrize(
    ("ready", "seconds", "words"),
    [
        ((), (), "at least one"),
        ((1.0,), (1.0, 2.0), "as many seconds"),
        ((0.5, 0.9), (1.0, 1.0), "up to 1"),
        ((0.5, 0.2, 1.0), (1.0, 1.0, 1.0), "must not decrease"),
        ((-0.5, 1.0), (1.0, 1.0), "from 0"),
        ((math.nan, 1.0), (1.0, 1.0), "ready"),
        ((0.5, 1.0), (1.0, -1.0), "finite and >= 0"),
        ((0.5, 1.0), (1.0, math.inf), "finite and >= 0"),
    ],
)
def test_impossible_buckets_are_refused(ready, seconds, words):
    with pytest.raises(MeasurementError, match=words):
        Buckets(ready, seconds)


def test_ranks_and_rows_have_to_match():
    models = two_ranks(COMPUTE)
    with pytest.raises(PlanError, match="each of 2 ranks"):
        step_end(models, [1])
    for ranks, split in (([], []), (models, [0, 0])):
        with pytest.raises(PlanError, match="at least one row"):
            step_end(ranks, split)
    with pytest.raises(PlanError, match=r"\[0.5, 0.25\] on rank 0 and \[8.0, 0.25\] on rank 1"):
        step_end([models[0], two_ranks(NETWORK)[1]], [1, 1])


def test_a_single_bucket_that_takes_most_of_the_step_is_the_network():
    models = [
        OverlappedTime(model.before, model.backward, Buckets((1.0,), (30.0,)))
        for model in two_ranks(COMPUTE)
    ]
    end = step_end(models, [5, 5])
    assert end.network_bound
    assert end.finding.startswith("the network limits: it is never idle from bucket 1 of 1 on")
    assert end.most_gain == pytest.approx(37.5 / 33.0 - 1)
