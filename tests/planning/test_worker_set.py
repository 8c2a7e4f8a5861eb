from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_boa.errors import MeasurementError, OptionError, PlanError
from lightning_boa.planning import (
    LinearTime,
    MeasuredAllReduce,
    RingAllReduce,
    TableTime,
    choose_workers,
)
from lightning_boa.planning.capable_sets import CapableSets

FREE = RingAllReduce(0, 1.0)
TIE = 1e-11


@dataclass(frozen=True)
class AnyCommunication:
    """Seconds by size, also falling ones, and slower by the slowest link."""

    seconds_at: tuple[float, ...]
    speeds: tuple[float, ...]

    def links(self, workers):
        return np.array(self.speeds[:workers])

    def seconds(self, sizes, slowest_link):
        return np.array([0.0, *self.seconds_at])[sizes] / slowest_link


def random_model(random):
    if random.random() < 0.3:
        sizes = np.sort(random.choice(np.arange(1, 20), 3, replace=False))
        return TableTime(sizes.tolist(), random.choice([0.1, 0.5, 1.0, 1.5, 3.0], 3).tolist())
    return LinearTime(
        overhead=float(random.choice([0.0, 0.1, random.uniform(0, 2)])),
        seconds_per_sample=float(random.choice([0.1, 0.25, random.uniform(0.05, 1)])),
        floor=float(random.choice([0.0, 0.5, random.uniform(0, 3)])),
    )


def random_communication(random, workers):
    some = float(random.choice([0.0, 0.05, random.uniform(0, 0.5)]))
    speeds = random.choice([1.0, 2.0, 4.0, random.uniform(0.5, 4)], workers)
    kind = random.integers(4)
    if kind == 0:
        return RingAllReduce(some, float(speeds[0]), latency=some / 20)
    if kind == 1:
        return RingAllReduce(some, speeds, latency=float(random.uniform(0, 0.1)))
    if kind == 2:
        return MeasuredAllReduce({2: some, workers + 1: float(random.uniform(0, 2))})
    return AnyCommunication(
        tuple(random.choice([0.0, 0.5, 1.0, 2.0], workers).tolist()), tuple(speeds.tolist())
    )


def random_problem(random):
    workers = int(random.integers(1, 11))
    rows = int(random.integers(1, 25))
    alike = random.random() < 0.5
    lower = (
        [int(random.integers(0, 5))] * workers if alike else random.integers(0, 4, workers).tolist()
    )
    upper = random.integers(1, 25, workers).tolist() if random.random() < 0.5 else None
    granularity = int(random.choice([1, 1, 2, 3, 5]))
    models = [random_model(random) for _ in range(workers)]
    return models, rows, random_communication(random, workers), lower, upper, granularity


def best_of_all_sets(models, rows, communication, lower, upper, granularity):
    """Least seconds of every set: each time that occurs is tried on each, with each holder of the rest."""
    workers = len(models)
    sets = np.array(list(itertools.product([False, True], repeat=workers)))[1:]
    low = np.maximum(lower, 1)
    seconds = np.array([model.seconds(np.arange(rows + 1)) for model in models])
    possible = np.arange(rows + 1) <= np.reshape(
        [rows] * workers if upper is None else upper, (-1, 1)
    )
    times = np.unique(seconds)
    most = np.array(
        [(possible & (seconds <= time)).sum(axis=1) - 1 for time in times]
    )  # times x workers
    grains, rest = divmod(rows, granularity)
    enough = np.zeros((len(times), len(sets)), dtype=bool)
    for holder in range(workers):
        extra = np.where(np.arange(workers) == holder, rest, 0)
        least_grains = np.maximum(-((extra - low) // granularity), 0)
        most_grains = (most - extra) // granularity
        unable = (most_grains < least_grains) @ sets.T.astype(int) > 0
        held = most_grains @ sets.T.astype(int)
        asked = least_grains @ sets.T.astype(int)
        enough |= ~unable & (held >= grains) & (asked <= grains) & sets[:, holder]
    compute = np.where(enough.any(axis=0), times[enough.argmax(axis=0)], np.inf)
    links = communication.links(workers)
    exchange = [float(communication.seconds(kept.sum(), links[kept].min())) for kept in sets]
    return sets, compute + exchange


def check(chosen, problem):
    models, rows, communication, lower, upper, granularity = problem
    kept = list(chosen.ranks)
    split = chosen.plan.batch_sizes
    assert len(split) == len(kept) > 0
    assert sum(split) == rows
    for rank, size in zip(kept, split, strict=True):
        assert max(1, lower[rank]) <= size <= (rows if upper is None else upper[rank])
    uneven = [size % granularity for size in split if size % granularity]
    assert uneven in ([], [rows % granularity])
    compute = max(float(models[rank].seconds(size)) for rank, size in zip(kept, split, strict=True))
    links = communication.links(len(models))
    exchange = float(communication.seconds(len(kept), links[kept].min()))
    assert chosen.plan.step_seconds == compute
    assert chosen.communication_seconds == exchange


def options(problem):
    _, _, _, lower, upper, granularity = problem
    return {"min_batch_size": lower, "max_batch_size": upper, "granularity": granularity}


@pytest.mark.parametrize("seed", range(10))
def test_no_other_set_is_faster_and_none_as_fast_is_larger(seed):
    random = np.random.default_rng(seed)
    solved = 0
    while solved < 100:
        problem = random_problem(random)
        models, rows, communication, lower, _, granularity = problem
        low = np.maximum(lower, 1)
        least = -(-low // granularity)
        if np.any(low != low[0]) and least.sum() > rows // granularity:
            with pytest.raises(PlanError, match="min_batch_size"):
                choose_workers(models, rows, communication, **options(problem))
            continue
        sets, seconds = best_of_all_sets(*problem)
        if np.isinf(seconds).all():
            with pytest.raises(PlanError, match="no set of the"):
                choose_workers(models, rows, communication, **options(problem))
            continue
        chosen = choose_workers(models, rows, communication, **options(problem))
        check(chosen, problem)
        as_fast = seconds <= seconds.min() * (1 + TIE) + 1e-300
        assert chosen.step_seconds == pytest.approx(seconds.min(), rel=TIE), problem
        assert len(chosen.ranks) == sets[as_fast].sum(axis=1).max(), problem
        of_all = seconds[-1]
        assert chosen.all_seconds == (None if math.isinf(of_all) else pytest.approx(of_all))
        solved += 1


times = st.sampled_from([0.25, 0.5, 1.0, 1.5, 3.0])
small_models = st.one_of(
    st.builds(LinearTime, st.sampled_from([0.0, 0.5, 2.0]), times, st.sampled_from([0.0, 2.0])),
    st.builds(lambda a, b: TableTime([1, 3], [a, b]), times, times),
)


@st.composite
def small_problems(draw):
    models = draw(st.lists(small_models, min_size=1, max_size=3))
    rows = draw(st.integers(1, 8))
    lower = [draw(st.integers(0, 3))] * len(models)
    upper = [draw(st.integers(0, 8)) for _ in models]
    communication = AnyCommunication(
        tuple(draw(st.lists(st.sampled_from([0.0, 0.25, 1.0, 4.0]), min_size=3, max_size=3))),
        tuple(draw(st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=3, max_size=3))),
    )
    return models, rows, communication, lower, upper, draw(st.integers(1, 4))


@given(small_problems())
@settings(max_examples=300, deadline=None)
def test_no_split_of_any_set_is_faster(problem):
    models, rows, communication, lower, upper, granularity = problem
    links = communication.links(len(models))
    possible = []
    for split in itertools.product(range(rows + 1), repeat=len(models)):
        kept = [rank for rank, size in enumerate(split) if size]
        uneven = [size % granularity for size in split if size % granularity]
        if (
            sum(split) == rows
            and all(lower[rank] <= split[rank] <= upper[rank] for rank in kept)
            and uneven in ([], [rows % granularity])
        ):
            compute = max(float(models[rank].seconds(split[rank])) for rank in kept)
            exchange = float(communication.seconds(len(kept), links[kept].min()))
            possible.append((compute + exchange, -len(kept)))
    if not possible:
        with pytest.raises(PlanError):
            choose_workers(models, rows, communication, **options(problem))
        return
    chosen = choose_workers(models, rows, communication, **options(problem))
    check(chosen, problem)
    assert (chosen.step_seconds, -len(chosen.ranks)) == min(possible)


@given(
    st.lists(small_models, min_size=1, max_size=8),
    st.integers(1, 60),
    st.floats(0, 2),
    st.floats(1.0, 4.0),
)
@settings(deadline=None)
def test_a_slower_network_never_makes_a_step_faster(models, rows, seconds, factor):
    def step(size):
        return choose_workers(models, rows, RingAllReduce(size, 1.0)).step_seconds

    assert step(seconds) <= step(seconds * factor) * (1 + TIE)


@pytest.mark.parametrize("granularity", [1, 8, 7])
@pytest.mark.parametrize("links", ["one", "some", "all"])
def test_a_thousand_workers_need_few_sorts(monkeypatch, granularity, links):
    random = np.random.default_rng(3)
    asked, solved = [], []
    within, best_split = CapableSets.within, CapableSets.best_split
    monkeypatch.setattr(CapableSets, "within", lambda *given: asked.append(1) or within(*given))
    monkeypatch.setattr(
        CapableSets, "best_split", lambda *given: solved.append(1) or best_split(*given)
    )
    models = [LinearTime(*random.uniform(0, (0.1, 0.005, 0.3))) for _ in range(1000)]
    bandwidth = {
        "one": 1e9,
        "some": random.choice([1e8, 1e9, 1e10], 1000),
        "all": random.uniform(1e8, 1e10, 1000),
    }[links]
    chosen = choose_workers(
        models, 20_000, RingAllReduce(1e8, bandwidth, 1e-5), granularity=granularity
    )
    assert sum(chosen.batch_sizes) == 20_000
    assert len(asked) < (10_000 if links == "all" else 400)
    assert len(solved) < 200


def test_a_worker_that_does_not_earn_its_communication_is_left_out():
    models = [LinearTime(0.0, 0.01), LinearTime(0.0, 0.01), LinearTime(0.0, 1.0)]
    chosen = choose_workers(models, 100, MeasuredAllReduce({2: 0.1, 3: 0.2}))
    assert chosen.ranks == (0, 1)
    assert chosen.left_out == (2,)
    assert chosen.batch_sizes == (50, 50, 0)
    assert chosen.step_seconds == pytest.approx(0.6)
    assert chosen.all_seconds == pytest.approx(1.2)
    assert chosen.gain == pytest.approx(1.0)
    assert not chosen.network_bound
    assert chosen.advice == (
        "without 1 of the 3 ranks (2) a step takes 0.6 s instead of 1.2 s, 100.0% more steps per second"
    )


def test_the_slowest_link_of_the_set_counts():
    models = [LinearTime(0.0, 0.01)] * 4
    chosen = choose_workers(models, 100, RingAllReduce(100, [1000.0, 1000.0, 10.0, 1000.0]))
    assert chosen.ranks == (0, 1, 3)
    assert chosen.communication_seconds == pytest.approx(4 / 3 * 0.1)


def test_equal_workers_without_communication_are_all_kept():
    chosen = choose_workers([LinearTime(0.3, 0.1, 5.0)] * 5, 12, FREE)
    assert chosen.ranks == (0, 1, 2, 3, 4)
    assert chosen.gain == 0
    assert chosen.advice == "all 5 ranks are worth their communication: no smaller set is faster"


def test_a_batch_smaller_than_the_workers():
    chosen = choose_workers([LinearTime(0.0, 1.0 + rank) for rank in range(5)][::-1], 3, FREE)
    assert chosen.ranks == (3, 4)
    assert chosen.batch_sizes == (0, 0, 0, 1, 2)
    assert chosen.all_seconds is chosen.gain is None
    assert (
        "without 3 of the 5 ranks (0, 1, 2), since not all of them can have rows" in chosen.advice
    )


def test_a_network_that_limits_is_named():
    models = [LinearTime(0.0, 0.001, floor=1.0)] * 2
    assert not choose_workers(models, 2000, MeasuredAllReduce({2: 0.9})).network_bound
    chosen = choose_workers(models, 2000, MeasuredAllReduce({2: 3.0}), max_batch_size=1000)
    assert chosen.ranks == (0, 1)
    assert chosen.network_bound
    assert chosen.advice.endswith(
        "; the network limits: 75% of a step are communication, which no split of the rows makes shorter"
    )


def test_many_left_out_are_not_all_listed():
    models = [LinearTime(0.0, 0.1), *[LinearTime(9.0, 0.1)] * 20]
    advice = choose_workers(models, 40, FREE).advice
    assert advice.startswith("without 20 of the 21 ranks (1, 2, 3, 4, 5, 6, 7, 8, …) a step")


def test_a_worker_whose_bounds_permit_no_row_is_left_out():
    chosen = choose_workers(
        [LinearTime(0.0, 0.1)] * 3, 10, FREE, min_batch_size=4, max_batch_size=[3, 10, 10]
    )
    assert chosen.batch_sizes == (0, 5, 5)
    assert chosen.all_seconds is None


@pytest.mark.parametrize(
    ("values", "error", "words"),
    [
        ({"time_models": []}, OptionError, "time_models"),
        ({"global_batch_size": 0}, OptionError, "global_batch_size"),
        ({"granularity": 0}, OptionError, "granularity"),
        ({"min_batch_size": [1]}, OptionError, "min_batch_size"),
        ({"max_batch_size": 2.5}, OptionError, "max_batch_size"),
        ({"max_batch_size": 4}, PlanError, "upper ones add up to 8 rows"),
        ({"max_batch_size": 7, "granularity": 8}, PlanError, "granularity=8"),
        ({"min_batch_size": 11}, PlanError, "no set of the 2 workers"),
        ({"min_batch_size": [5, 6]}, PlanError, "min_batch_size: .* 11 rows"),
        ({"communication": RingAllReduce(1, [1.0] * 3)}, OptionError, "bandwidth"),
        ({"communication": 0.5}, OptionError, "communication: .* got 0.5"),
        (
            {"communication": AnyCommunication((0.0, math.nan), (1.0, 1.0))},
            MeasurementError,
            "communication: .* nan for 2 workers",
        ),
        (
            {"communication": AnyCommunication((-1.0, 0.0), (1.0, 1.0))},
            MeasurementError,
            "communication: .* -1.0 for 1 workers",
        ),
    ],
)
def test_what_cannot_be_is_named(values, error, words):
    given = {
        "time_models": [LinearTime(0.0, 1.0)] * 2,
        "global_batch_size": 10,
        "communication": FREE,
        **values,
    }
    with pytest.raises(error, match=words):
        choose_workers(**given)


def test_a_time_that_is_not_finite():
    class Endless:
        def seconds(self, rows):
            return np.full(np.shape(rows), np.nan)

    with pytest.raises(MeasurementError, match="worker 1"):
        choose_workers([LinearTime(0.0, 1.0), Endless()], 10, FREE)
