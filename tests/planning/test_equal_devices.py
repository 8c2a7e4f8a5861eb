"""The second size of equal devices, and what they have in common."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_boa.planning import BatchPlan, LinearTime, StepRecord
from lightning_boa.planning.equal_devices import CHANGE, common_fits, second_split
from lightning_boa.planning.plan import equal_split
from lightning_boa.planning.rounds import Evidence

SIZES = ((64, 64, 64, 64), (80, 80, 48, 48), (64, 64, 64, 64))


@st.composite
def bounded_splits(draw):
    ranks, granularity = draw(st.integers(2, 9)), draw(st.sampled_from([1, 1, 4]))
    rows = granularity * draw(st.integers(ranks, 40 * ranks))
    equal = equal_split(ranks, rows, granularity=granularity).batch_sizes
    lower = [granularity * draw(st.integers(0, size // granularity)) for size in equal]
    upper = [size + granularity * draw(st.integers(0, 20)) for size in equal]
    return equal, lower, upper, granularity


@given(bounded_splits())
def test_a_second_split_moves_a_quarter_of_the_rows_of_every_rank_that_may_change(case):
    equal, lower, upper, granularity = case
    split = second_split(equal, lower=lower, upper=upper, granularity=granularity)
    if split is None:
        return
    assert sum(split) == sum(equal)
    for size, before, low, high in zip(split, equal, lower, upper, strict=True):
        change = granularity * np.ceil(CHANGE * before / granularity)
        assert max(1, low) <= size <= high
        assert size % granularity == 0
        assert abs(size - before) >= change or (
            size == before and before + change > high and before - change < max(1, low)
        )


@pytest.mark.parametrize(
    ("upper", "expected"),
    [
        pytest.param((99, 99, 99, 99), (40, 40, 24, 24), id="free"),
        pytest.param((33, 33, 99, 99), (24, 24, 40, 40), id="two of them full"),
        pytest.param((33, 33, 33, 99), (24, 24, 24, 56), id="three of them full"),
        pytest.param((33, 33, 33, 33), None, id="all full"),
        pytest.param((33, 33, 33, 40), None, id="not enough room"),
    ],
)
def test_rows_go_to_the_ranks_that_have_room(upper, expected):
    assert second_split((32,) * 4, lower=(1,) * 4, upper=upper) == expected


def evidence_of(devices, splits=SIZES, noise=0.0, seed=0, steps=4):
    random = np.random.default_rng(seed)
    records = tuple(
        StepRecord(
            step=steps * number + step,
            rank=rank,
            rows=rows,
            step_rows=256,
            compute=float(device.seconds(rows)) * (1 + noise * random.standard_normal()),
            loader_wait=0.0,
            communication=0.0,
            optimizer=0.0,
            period=1.0,
        )
        for number, split in enumerate(splits)
        for step in range(steps)
        for rank, (device, rows) in enumerate(zip(devices, split, strict=True))
    )
    equal = splits[0]
    return Evidence(BatchPlan(equal), equal, (1,) * 4, (256,) * 4, 1, records)


def test_devices_that_differ_by_less_than_a_hundredth_keep_their_level_and_share_a_shape():
    levels = [1.0, 1.003, 0.998, 1.006]
    fits = common_fits(evidence_of([LinearTime(0.1 * each, 0.01 * each) for each in levels]))
    assert fits is not None
    for fit, level in zip(fits, levels, strict=True):
        assert fit.model.seconds([16, 64, 80]) == pytest.approx(
            level * (0.1 + 0.01 * np.asarray([16, 64, 80])), rel=0.002
        )
        assert fit.batch_sizes == (48, 64, 80)
        assert fit.counts == (8, 32, 8)
        assert fit.median(64) == pytest.approx(level * 0.74, rel=0.001)


def test_together_noisy_ranks_know_their_shape_better_than_each_alone():
    device = LinearTime(0.1, 0.01)
    ratio = float(device.seconds(32) / device.seconds(64))

    def miss(fits):
        ratios = [float(fit.model.seconds(32) / fit.model.seconds(64)) for fit in fits]
        return float(np.mean((np.asarray(ratios) - ratio) ** 2))

    alone, together = [], []
    for seed in range(20):
        evidence = evidence_of([device] * 4, noise=0.01, seed=seed)
        fits = common_fits(evidence)
        assert fits is not None
        assert fits[0].relative_error < evidence.error
        alone.append(miss(evidence.fits))
        together.append(miss(fits))
    assert np.mean(together) < 0.5 * np.mean(alone)


@pytest.mark.parametrize(
    ("devices", "splits"),
    [
        pytest.param([LinearTime(0.1, 0.01)] * 3 + [LinearTime(0.1, 0.011)], SIZES, id="unequal"),
        pytest.param([LinearTime(0.1, 0.01)] * 4, SIZES[:1], id="one size"),
    ],
)
def test_others_have_nothing_in_common(devices, splits):
    assert common_fits(evidence_of(devices, splits)) is None
