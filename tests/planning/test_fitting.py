from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_boa.errors import MeasurementError
from lightning_boa.planning import LinearTime, TableTime, fit_time


def measured(model, sizes, *, repeats=4, noise=0.0, seed=0):
    rows = np.repeat(sizes, repeats)
    factors = 1 + noise * np.random.default_rng(seed).standard_normal(rows.size)
    return rows, model.seconds(rows) * factors


@given(
    st.floats(0, 1),
    st.floats(1e-4, 1),
    st.lists(st.integers(1, 500), min_size=2, max_size=5, unique=True),
)
def test_a_line_is_found_exactly_without_noise(overhead, slope, sizes):
    model = LinearTime(overhead, slope)
    fit = fit_time(*measured(model, sizes))
    np.testing.assert_allclose(fit.model.seconds(sizes), model.seconds(sizes), rtol=1e-6)
    assert fit.batch_sizes == tuple(sorted(sizes))
    assert fit.counts == (4,) * len(sizes)
    assert fit.relative_error < 1e-3


@pytest.mark.parametrize("at", range(8))
def test_one_outlier_among_four_has_no_effect(at):
    rows, seconds = measured(LinearTime(0.1, 0.01), [20, 60])
    seconds[at] *= 50
    fit = fit_time(rows, seconds)
    np.testing.assert_allclose(fit.model.seconds([20, 40, 60]), [0.3, 0.5, 0.7])
    assert fit.relative_error < 1e-6


def test_noise_is_estimated_and_so_is_the_error_of_the_prediction():
    model, sizes = LinearTime(0.1, 0.01), [20, 40, 60]
    fits = [fit_time(*measured(model, sizes, noise=0.03, seed=seed)) for seed in range(200)]
    assert np.mean([fit.noise for fit in fits]) == pytest.approx(0.03, rel=0.25)
    deviations = [float(fit.model.seconds(40)) / 0.5 - 1 for fit in fits]
    claimed = float(np.mean([fit.relative_error for fit in fits]))
    assert 0.5 * claimed < np.std(deviations) < 1.5 * claimed


def test_a_latency_floor_is_found_from_three_sizes():
    model = LinearTime(0.0, 0.01, floor=0.5)
    fit = fit_time(*measured(model, [20, 40, 80]))
    np.testing.assert_allclose(fit.model.seconds([20, 40, 60, 80]), [0.5, 0.5, 0.6, 0.8])


def test_a_latency_floor_with_an_overhead_above_it():
    model = LinearTime(0.2, 0.01, floor=0.5)
    fit = fit_time(*measured(model, [10, 20, 50, 80, 100]))
    assert isinstance(fit.model, LinearTime)
    np.testing.assert_allclose(fit.model.seconds([20, 60, 90]), [0.5, 0.8, 1.1])


def test_a_curve_that_is_no_bent_line_becomes_a_table():
    rows = np.repeat([10, 20, 30, 40], 4)
    fit = fit_time(rows, np.sqrt(rows))
    assert isinstance(fit.model, TableTime)
    np.testing.assert_allclose(fit.model.seconds([10, 20, 30, 40]), np.sqrt([10, 20, 30, 40]))


def test_noise_does_not_bend_a_line():
    for seed in range(20):
        fit = fit_time(*measured(LinearTime(0.1, 0.01), [20, 40, 60], noise=0.02, seed=seed))
        assert isinstance(fit.model, LinearTime)
        assert fit.model.floor == 0


def test_times_that_fall_with_rows_become_a_constant():
    fit = fit_time([10, 10, 20, 20], [1.0, 1.0, 0.9, 0.9])
    assert fit.model.seconds_per_sample == 0
    assert 0.9 < fit.model.overhead < 1.0


def test_a_negative_overhead_becomes_a_line_through_the_origin():
    fit = fit_time([10, 20], [1.0, 2.1])
    assert fit.model.overhead == 0
    assert 0.1 < fit.model.seconds_per_sample < 0.11


def test_times_that_rise_faster_than_rows_become_a_table():
    fit = fit_time([10, 10, 20, 20], [1.0, 1.0, 3.0, 3.0])
    np.testing.assert_allclose(fit.model.seconds([10, 15, 20, 30]), [1.0, 2.0, 3.0, 5.0])
    assert fit.relative_error == 0


def test_one_size_needs_the_origin():
    with pytest.raises(MeasurementError, match="at least two batch sizes, got only 10"):
        fit_time([10, 10], [1.0, 1.0])
    assert fit_time([10, 10], [1.0, 1.0], through_origin=True).model == LinearTime(0.0, 0.1)


def test_single_measurements_do_not_claim_certainty():
    assert fit_time([10, 20], [1.0, 2.0]).relative_error > 0.02


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, -1.0])
def test_impossible_times_are_refused(value):
    with pytest.raises(MeasurementError, match="20 rows"):
        fit_time([10, 20], [1.0, value])


@pytest.mark.parametrize(
    ("rows", "seconds"), [([], []), ([10], [1.0, 2.0]), ([0, 1], [1.0, 1.0]), ([1.5], [1.0])]
)
def test_impossible_sizes_are_refused(rows, seconds):
    with pytest.raises(MeasurementError):
        fit_time(rows, seconds)
