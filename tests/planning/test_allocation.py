from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lightning_boa.errors import MeasurementError, PlanError
from lightning_boa.planning import LinearTime, TableTime, TimeModel, allocate
from lightning_boa.planning.allocation import WorkerTimes
from lightning_boa.planning.time_models import scaled


@dataclass(frozen=True)
class SteppedTime:
    """A device that handles whole tiles of rows."""

    tile: int
    per_tile: float

    def seconds(self, rows):
        return np.ceil(np.asarray(rows, dtype=np.float64) / self.tile) * self.per_tile


def greedy(models, rows, lower, upper):
    """Each row to the worker that would finish earliest with it."""
    split = list(lower)
    queue = []

    def offer(worker):
        if split[worker] < upper[worker]:
            after = float(models[worker].seconds(split[worker] + 1))
            heapq.heappush(queue, (after, worker))

    for worker in range(len(models)):
        offer(worker)
    for _ in range(rows - sum(lower)):
        _, worker = heapq.heappop(queue)
        split[worker] += 1
        offer(worker)
    return split


def slowest(models, split):
    return max(float(model.seconds(size)) for model, size in zip(models, split, strict=True))


def every_split(rows, lower, upper, granularity):
    """All splits into multiples of the granularity, one worker holding the rest besides."""
    rest = rows % granularity
    ranges = [range(low, high + 1) for low, high in zip(lower, upper, strict=True)]
    for split in itertools.product(*ranges):
        uneven = [size % granularity for size in split if size % granularity]
        if sum(split) == rows and uneven in ([rest] if rest else [], []):
            yield split


seconds_of_some = st.sampled_from([0.0, 0.1, 0.25, 0.3, 1.0, 1 / 3, 2.5])
slopes = st.sampled_from([0.0, 1e-18, 0.1, 0.2, 0.3, 1 / 3, 0.7, 1.0])


@st.composite
def tables(draw):
    sizes = draw(st.lists(st.integers(1, 12), min_size=1, max_size=4, unique=True))
    times = draw(st.lists(st.sampled_from([0.1, 0.5, 1.0, 1.5, 3.0]), min_size=4, max_size=4))
    return TableTime(sizes, times[: len(sizes)])


steps = st.builds(SteppedTime, st.integers(1, 4), st.sampled_from([0.1, 0.5, 1.0]))
nonzero_lines = st.one_of(
    st.builds(
        lambda slope, floor: LinearTime(0.0, slope, floor), slopes.filter(bool), seconds_of_some
    ),
    st.builds(
        lambda overhead, slope: LinearTime(overhead, slope), seconds_of_some.filter(bool), slopes
    ),
    st.builds(LinearTime, st.floats(0, 3), st.floats(1e-3, 2), st.floats(0, 2)),
)
models = st.lists(st.one_of(nonzero_lines, tables(), steps), min_size=1, max_size=4)


@st.composite
def problems(draw):
    workers: list[TimeModel] = draw(models)
    rows = draw(st.integers(0, 10))
    lower = [draw(st.integers(0, 3)) for _ in workers]
    upper = [low + draw(st.integers(0, 10)) for low in lower]
    granularity = draw(st.sampled_from([1, 1, 2, 3, 4]))
    prefer = draw(
        st.none() | st.lists(st.integers(0, 10), min_size=len(workers), max_size=len(workers))
    )
    return workers, rows, lower, upper, granularity, prefer


def distance(split, wished):
    return sum(abs(size - wish) for size, wish in zip(split, wished, strict=True))


@given(problems())
@settings(max_examples=400)
@example(([LinearTime(1.0, 1e-18)] * 2, 10, [0, 0], [10, 10], 1, [10, 0]))
@example(([LinearTime(0.1, 0.1), LinearTime(0.3, 0.1)], 10, [0, 0], [10, 10], 3, None))
@example(([LinearTime(0.0, 5e-324), LinearTime(0.0, 1.0)], 9, [0, 0], [10, 10], 1, None))
def test_is_the_optimum_nearest_to_the_preferred_split(problem):
    workers, rows, lower, upper, granularity, prefer = problem
    within = [min(high, rows) for high in upper]
    splits = list(every_split(rows, lower, within, granularity))
    if not splits:
        with pytest.raises(PlanError):
            allocate(workers, rows, lower=lower, upper=upper, granularity=granularity)
        return
    split = allocate(
        workers, rows, lower=lower, upper=upper, granularity=granularity, prefer=prefer
    ).tolist()
    assert tuple(split) in splits
    best = min(slowest(workers, other) for other in splits)
    assert slowest(workers, split) == best
    base, longer = divmod(rows, len(workers))
    wished = prefer or [base + (worker < longer) for worker in range(len(workers))]
    assert distance(split, wished) == min(
        distance(other, wished) for other in splits if slowest(workers, other) == best
    )


@given(
    st.lists(nonzero_lines, min_size=1, max_size=40),
    st.integers(0, 2000),
    st.integers(0, 3),
)
@settings(max_examples=100)
def test_equals_the_greedy_reference_on_larger_problems(workers, rows, least):
    rows += least * len(workers)
    lower, upper = [least] * len(workers), [rows] * len(workers)
    split = allocate(workers, rows, lower=least, upper=rows)
    assert split.sum() == rows
    assert split.min() >= least
    assert slowest(workers, split) == slowest(workers, greedy(workers, rows, lower, upper))


@pytest.mark.parametrize("seed", range(8))
def test_equals_the_greedy_reference_on_a_thousand_mixed_workers(seed):
    random = np.random.default_rng(seed)
    workers = [
        LinearTime(*random.uniform(0, 1, 3))
        if random.random() < 0.99
        else TableTime([10, 20, 30], random.uniform(0, 20, 3))
        for _ in range(1000)
    ]
    upper = random.integers(0, 40, 1000)
    rows = int(upper.sum() // 2)
    split = allocate(workers, rows, lower=0, upper=upper)
    expected = greedy(workers, rows, [0] * 1000, upper.tolist())
    assert split.sum() == rows
    assert np.all(split <= upper)
    assert slowest(workers, split) == slowest(workers, expected)


def test_equal_workers_keep_the_equal_split():
    assert allocate([LinearTime(0.1, 0.3)] * 4, 10, lower=1, upper=10).tolist() == [3, 3, 2, 2]


def test_rows_in_excess_are_spread_where_time_permits():
    flat = [LinearTime(0.0, 0.01, 5.0), LinearTime(0.0, 0.01, 5.0), LinearTime(0.0, 1.0)]
    assert allocate(flat, 90, lower=1, upper=90).tolist() == [43, 42, 5]


def test_the_rest_goes_to_one_worker():
    split = allocate(
        [LinearTime(0.0, 0.5), LinearTime(0.0, 1.0)], 100, lower=1, upper=100, granularity=8
    )
    assert split.tolist() == [68, 32]


def test_the_holder_of_a_rest_among_many_workers():
    split = allocate([LinearTime(0.0, 1.0)] * 200, 8 * 300 + 5, lower=0, upper=100, granularity=8)
    assert split.sum() == 2405
    assert np.count_nonzero(split % 8) == 1
    assert split.max() <= 16


@pytest.mark.parametrize(
    ("rows", "options", "words"),
    [
        (10, {"lower": 6, "upper": 10}, "lower bounds add up to 12"),
        (10, {"lower": 0, "upper": 4}, "upper bounds add up to 8"),
        (10, {"lower": [0, 5], "upper": [10, 4]}, "rank 1"),
        (10, {"lower": [0, -1], "upper": 10}, "rank 1"),
        (10, {"lower": [1], "upper": 10}, "one for each of 2 workers"),
        (10, {"lower": 0.5, "upper": 10}, "whole numbers"),
        (10, {"lower": 3, "upper": 10, "granularity": 8}, "granularity=8"),
    ],
)
def test_what_cannot_be_kept_is_named(rows, options, words):
    with pytest.raises(PlanError, match=words):
        allocate([LinearTime(0.0, 1.0)] * 2, rows, **options)


@given(st.integers(0, 2**32 - 1))
def test_workers_at_once_are_those_one_by_one(seed):
    random = np.random.default_rng(seed)
    models = [
        LinearTime(0.1, 0.013),
        TableTime((8, 32, 100), (0.2, 0.5, 2.1)),
        LinearTime(0.0, 0.007, floor=0.3),
        SteppedTime(16, 0.21),
    ]
    rows, factors = random.integers(0, 200, 4), random.uniform(0.3, 3, 4)
    times = WorkerTimes.of(models)
    for at_once, one_by_one in (
        (times, models),
        (times.scaled(factors), list(map(scaled, models, factors.tolist()))),
    ):
        expected = [float(each.seconds(size)) for each, size in zip(one_by_one, rows, strict=True)]
        assert at_once.seconds(rows).tolist() == expected
        bounds = {"lower": 1, "upper": 300}
        split = allocate(one_by_one, 300, **bounds)
        assert allocate(at_once, 300, **bounds).tolist() == split.tolist()


def test_no_workers():
    with pytest.raises(PlanError, match="none"):
        allocate([], 10, lower=0, upper=10)


def test_a_time_that_is_not_finite():
    class Endless:
        def seconds(self, rows):
            return np.full(np.shape(rows), np.nan)

    with pytest.raises(MeasurementError, match="worker 1"):
        allocate([LinearTime(0.0, 1.0), Endless()], 10, lower=1, upper=10)
