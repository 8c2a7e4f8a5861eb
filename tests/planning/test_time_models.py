from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_boa.errors import MeasurementError
from lightning_boa.planning import LinearTime, TableTime, time_model_from_dict


def test_a_line_above_a_floor():
    model = LinearTime(overhead=0.1, seconds_per_sample=0.01, floor=0.3)
    np.testing.assert_allclose(model.seconds([0, 20, 30, 100]), [0.3, 0.3, 0.4, 1.1])
    assert model.seconds(30).shape == ()


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.1])
@pytest.mark.parametrize("name", ["overhead", "seconds_per_sample", "floor"])
def test_a_line_of_impossible_seconds_is_refused(name, value):
    values = {"overhead": 1.0, "seconds_per_sample": 1.0, name: value}
    with pytest.raises(MeasurementError, match=name):
        LinearTime(**values)


def test_a_line_without_time_is_refused():
    with pytest.raises(MeasurementError, match="all 0"):
        LinearTime(0.0, 0.0)


def test_a_table_joins_its_points_and_goes_on_beyond_them():
    model = TableTime([10, 20, 40], [1.0, 3.0, 5.0])
    np.testing.assert_allclose(
        model.seconds([0, 5, 10, 15, 20, 30, 40, 60]), [0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 7.0]
    )


def test_a_table_is_made_monotone():
    model = TableTime([30, 10, 20, 40], [2.0, 3.0, 2.5, 6.0])
    assert model.batch_sizes == (10, 20, 30, 40)
    assert model.seconds_at == (2.5, 2.5, 2.5, 6.0)
    np.testing.assert_allclose(model.seconds([5, 35, 50]), [2.5, 4.25, 9.5])


def test_a_table_of_one_point_goes_through_the_origin():
    np.testing.assert_allclose(TableTime([10], [2.0]).seconds([5, 10, 20]), [1.0, 2.0, 4.0])


def test_a_flat_table_goes_on_along_the_line_from_the_origin():
    np.testing.assert_allclose(TableTime([10, 20], [2.0, 2.0]).seconds([20, 30]), [2.0, 3.0])


@pytest.mark.parametrize(
    ("sizes", "seconds", "words"),
    [
        ([], [], "at least one"),
        ([1, 2], [1.0], "as many"),
        ([1, 1], [1.0, 2.0], "stand once"),
        ([0, 1], [1.0, 2.0], "whole numbers >= 1"),
        ([1.5], [1.0], "whole numbers"),
        ([1], [0.0], "> 0"),
        ([1], [math.nan], "finite"),
    ],
)
def test_an_impossible_table_is_refused(sizes, seconds, words):
    with pytest.raises(MeasurementError, match=words):
        TableTime(sizes, seconds)


@given(
    st.dictionaries(st.integers(1, 500), st.floats(1e-6, 1e3), min_size=1, max_size=6),
)
def test_tables_never_fall_in_floating_point(points):
    model = TableTime(list(points), list(points.values()))
    seconds = model.seconds(np.arange(0, 600))
    assert np.all(np.diff(seconds) >= 0)
    assert np.all(seconds >= 0)


@pytest.mark.parametrize("model", [LinearTime(0.1, 0.2, 0.3), TableTime([3, 1], [2.0, 1.0])])
def test_models_come_back_from_plain_values_and_pickles(model):
    assert time_model_from_dict(model.to_dict()) == model
    model.seconds(1)
    assert pickle.loads(pickle.dumps(model)) == model


def test_an_unknown_kind_of_model():
    with pytest.raises(MeasurementError, match="'cubic'"):
        time_model_from_dict({"kind": "cubic"})
