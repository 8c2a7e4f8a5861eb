from __future__ import annotations

import math

import numpy as np
import pytest

from lightning_boa.errors import MeasurementError, OptionError
from lightning_boa.planning import (
    Communication,
    LinkedAllReduce,
    MeasuredAllReduce,
    RingAllReduce,
)


def test_a_ring_sends_each_part_around_twice():
    ring = RingAllReduce(gradient_bytes=1200, bandwidth=100.0, latency=0.5)
    assert float(ring.seconds(4, 100.0)) == 6 * 0.5 + 6 * (1200 / 4) / 100.0
    np.testing.assert_allclose(ring.seconds([1, 2, 3], 50.0), [0.0, 1.0 + 24.0, 2.0 + 32.0])


def test_a_bandwidth_is_that_of_all_links_or_one_each():
    assert RingAllReduce(1, 5).links(3).tolist() == [5.0, 5.0, 5.0]
    ring = RingAllReduce(1, np.array([5, 7]))
    assert ring.bandwidth == (5.0, 7.0)
    assert ring.links(2).tolist() == [5.0, 7.0]
    with pytest.raises(OptionError, match=r"bandwidth: .* each of 3 workers, got 2"):
        ring.links(3)


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"gradient_bytes": -1.0}, "gradient_bytes"),
        ({"gradient_bytes": math.inf}, "gradient_bytes"),
        ({"latency": math.nan}, "latency"),
        ({"bandwidth": 0.0}, "bandwidth"),
        ({"bandwidth": [1.0, math.inf]}, "bandwidth"),
        ({"bandwidth": []}, "bandwidth"),
    ],
)
def test_an_impossible_ring_is_refused(values, name):
    with pytest.raises(MeasurementError, match=name):
        RingAllReduce(**{"gradient_bytes": 1.0, "bandwidth": 1.0, **values})


def test_one_measurement_is_enough_for_smaller_sets():
    measured = MeasuredAllReduce({8: 0.7})
    ring = RingAllReduce(gradient_bytes=40, bandwidth=100.0)
    sizes = np.arange(1, 9)
    np.testing.assert_allclose(measured.seconds(sizes), ring.seconds(sizes, 100.0))


def test_measured_seconds_stay_as_they_are():
    measured = MeasuredAllReduce({4: 0.3, 2: 0.5})
    assert measured.seconds([1, 2, 4]).tolist() == [0.0, 0.5, 0.3]
    assert 0.3 < float(measured.seconds(3)) < 0.5
    assert measured.links(4).tolist() == [1.0] * 4


def test_more_workers_than_were_measured_are_refused():
    with pytest.raises(OptionError, match=r"at least 5 workers, got \[2, 4\]"):
        MeasuredAllReduce({2: 0.1, 4: 0.1}).links(5)


@pytest.mark.parametrize(
    "seconds", [{}, {1: 0.1}, {2.5: 0.1}, {2: -0.1}, {2: math.nan}, {2: math.inf}]
)
def test_impossible_measurements_are_refused(seconds):
    with pytest.raises(MeasurementError, match="MeasuredAllReduce"):
        MeasuredAllReduce(seconds)


def test_a_faster_slowest_link_shortens_what_was_measured():
    among = MeasuredAllReduce({2: 0.4, 4: 0.6})
    linked = LinkedAllReduce((1.0, 8.0, 2.0, 8.0), among)
    assert isinstance(linked, Communication)
    assert linked.links(4).tolist() == [1.0, 8.0, 2.0, 8.0]
    assert linked.seconds([1, 2, 4], 2.0).tolist() == [0.0, 0.2, 0.3]
    with pytest.raises(OptionError, match=r"speeds: .* each of 3 workers, got 4"):
        linked.links(3)


@pytest.mark.parametrize("speeds", [(), (1.0, 0.0), (1.0, math.inf), (math.nan,)])
def test_impossible_speeds_are_refused(speeds):
    with pytest.raises(MeasurementError, match="LinkedAllReduce"):
        LinkedAllReduce(speeds, MeasuredAllReduce({2: 0.1}))
