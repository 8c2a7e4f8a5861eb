from __future__ import annotations

import itertools
import re

import pytest

from lightning_boa.cli.clusters import EmulatedDevices, RealDevices
from lightning_boa.cli.framework import EmulatedCluster
from lightning_boa.errors import OptionError

FAST = {"name": "fast", "seconds_per_sample": 0.001, "overhead": 0.002}
SLOW = {"name": "slow", "seconds_per_sample": 0.004, "floor": 0.01}


def test_every_device_is_taken_unless_fewer_are_asked_for() -> None:
    cluster = EmulatedDevices([FAST, SLOW, FAST])
    assert cluster.devices_for("auto") == 3
    assert cluster.devices_for(2) == 2


def test_fewer_ranks_are_the_first_devices() -> None:
    (emulation,) = EmulatedDevices([FAST, SLOW, FAST]).callbacks(2)
    assert isinstance(emulation, EmulatedCluster)
    assert emulation.names == ("fast", "slow")
    assert emulation.step_seconds(0, 8) == pytest.approx(0.010)
    assert emulation.step_seconds(1, 1) == pytest.approx(0.010)


def test_a_device_may_get_slower_on_the_way() -> None:
    (emulation,) = EmulatedDevices([FAST, {**FAST, "throttle": {5: 3.0}}]).callbacks("auto")
    assert isinstance(emulation, EmulatedCluster)
    assert emulation.step_seconds(1, 8, step=4) == emulation.step_seconds(0, 8, step=5)
    assert emulation.step_seconds(1, 8, step=5) == 3 * emulation.step_seconds(0, 8, step=5)


def test_a_device_may_be_behind_a_slow_link() -> None:
    far = {**FAST, "bandwidth": 1e4}
    (emulation,) = EmulatedDevices([FAST, far, FAST], latency=0.5).callbacks("auto")
    assert isinstance(emulation, EmulatedCluster)
    assert emulation.exchange_seconds([0, 2], 1000) == 2 * 0.5
    assert emulation.exchange_seconds([0, 1], 1000) == 2 * (0.5 + 500 / 1e4)


def test_all_times_may_be_multiplied() -> None:
    devices = [{**FAST, "bandwidth": 1e4, "rows_at_once": 9, "throttle": {5: 3.0}}, SLOW]
    usual, slowed = (
        EmulatedDevices(devices, latency=0.5, times=times).callbacks("auto")[0]
        for times in (1.0, 2.5)
    )
    assert isinstance(usual, EmulatedCluster)
    assert isinstance(slowed, EmulatedCluster)
    for rank, rows, step in itertools.product((0, 1), (1, 8), (4, 5)):
        seconds = usual.step_seconds(rank, rows, step)
        assert slowed.step_seconds(rank, rows, step) == pytest.approx(2.5 * seconds)
    exchange = usual.exchange_seconds([0, 1], 1000)
    assert slowed.exchange_seconds([0, 1], 1000) == pytest.approx(2.5 * exchange)
    assert (slowed.names, slowed.rows_at_once) == (usual.names, usual.rows_at_once)


@pytest.mark.parametrize("requested", [0, -1, 4, [0, 1], "2", None])
def test_other_numbers_of_devices_are_refused(requested: object) -> None:
    with pytest.raises(OptionError, match=r"^trainer\.devices: "):
        EmulatedDevices([FAST, SLOW, FAST]).devices_for(requested)


@pytest.mark.parametrize(
    "device",
    [
        {"name": "x"},
        {**FAST, "seconds_per_sample": 0},
        {**FAST, "overhead": -1},
        {**FAST, "floor": "long"},
        {**FAST, "speed": 3},
        {**FAST, "bandwidth": 0},
    ],
)
def test_a_device_that_cannot_be_is_refused(device: dict[str, object]) -> None:
    with pytest.raises(OptionError, match=r"^cluster\.devices"):
        EmulatedDevices([device])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"devices": []}, "cluster.devices: expected at least one device"),
        ({"devices": [FAST], "accelerator": "gpu"}, "cluster.accelerator: expected one of cpu"),
        (
            {"devices": [FAST], "start_method": "thread"},
            "cluster.start_method: expected one of popen",
        ),
        ({"devices": [FAST], "latency": -1}, "cluster.latency: expected a number of at least 0"),
        ({"devices": [FAST], "times": 0}, "cluster.times: expected a number above 0"),
    ],
)
def test_other_mistakes_are_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        EmulatedDevices(**arguments)  # type: ignore[arg-type]


def test_real_devices_are_left_to_the_trainer() -> None:
    cluster = RealDevices()
    assert cluster.devices_for([0, 3]) == [0, 3]
    assert cluster.callbacks("auto") == []
