"""The clusters of conf/ in the simulator, and what it says of them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from lightning_boa.cli.clusters import EmulatedDevices
from lightning_boa.cli.convnet import ConvNet
from lightning_boa.cli.framework import EmulatedCluster
from lightning_boa.cli.simulated import simulated_cluster
from lightning_boa.emulation import bytes_of
from lightning_boa.planning import plan_batches
from lightning_boa.planning.time_models import scaled
from lightning_boa.simulation import (
    BackupWorkers,
    Boa,
    Cluster,
    EqualSplit,
    Policy,
    Proportional,
    compare,
)
from lightning_boa.simulation.trial import Trial

FILES = {
    path.stem: path for path in (Path(__file__).parents[2] / "conf/train/cluster").glob("*.yaml")
}
EMULATED = sorted(
    name
    for name, path in FILES.items()
    if OmegaConf.load(path)._target_.endswith(".EmulatedDevices")
)
COMPARED = sorted(
    name for name in EMULATED if name.startswith(("thesis", "two_gen", "cloud", "one_slow"))
)
ROWS = 16
GRADIENT_BYTES = bytes_of(ConvNet().parameters())
SETTLED = 60


def devices_of(name: str, **options: Any) -> EmulatedDevices:
    devices = instantiate(OmegaConf.load(FILES[name]), _convert_="all", **options)
    assert isinstance(devices, EmulatedDevices)
    return devices


def simulated_of(emulated: EmulatedDevices) -> Cluster:
    return simulated_cluster(emulated.devices, GRADIENT_BYTES, latency=emulated.latency)


def median_step_seconds(devices: EmulatedDevices, policies: list[Policy]) -> list[float]:
    """Of steps after a warm-up."""
    cluster = simulated_of(devices)
    simulated = compare(
        cluster, policies, global_batch_size=ROWS * cluster.workers, steps=2 * SETTLED
    )
    return [sorted(each.step_seconds[SETTLED:])[SETTLED // 2] for each in simulated]


@pytest.mark.parametrize("name", EMULATED)
def test_a_simulated_step_lasts_as_long_as_an_emulated_one(name: str) -> None:
    devices = devices_of(name, times=1.7)
    (emulated,) = devices.callbacks("auto")
    assert isinstance(emulated, EmulatedCluster)
    simulated = simulated_of(devices)
    trial = Trial(simulated, global_batch_size=ROWS * simulated.workers, steps=1, seed=0)
    ranks = range(simulated.workers)
    for rank, rows, step in itertools.product(ranks, (1, 5, ROWS), (0, 49, 50, 90, 160, 500)):
        seconds = float(simulated.time_models[rank].seconds(rows))
        seconds *= trial.disturbances.of(rank, step)
        assert seconds == pytest.approx(emulated.step_seconds(rank, rows, step))
    reduced = simulated.links.reduced_by(ranks).seconds(0.25)
    assert reduced == pytest.approx(0.25 + emulated.exchange_seconds(ranks, GRADIENT_BYTES))


def test_a_device_with_little_memory_runs_several_passes() -> None:
    device = {"name": "little", "seconds_per_sample": 0.01, "overhead": 0.1, "rows_at_once": 8}
    (model,) = simulated_of(EmulatedDevices([device])).time_models
    assert model.seconds([8, 16]).tolist() == pytest.approx([0.18, 0.36])


@pytest.mark.parametrize("name", COMPARED)
def test_the_slowest_device_takes_a_few_tenths_of_a_second_for_an_equal_share(name: str) -> None:
    models = simulated_of(devices_of(name)).time_models
    assert 0.2 <= max(float(model.seconds(ROWS)) for model in models) <= 0.4


@pytest.mark.parametrize("name", COMPARED)
def test_boa_is_within_three_per_cent_of_the_optimum(name: str) -> None:
    devices = devices_of(name)
    cluster = simulated_of(devices)
    (simulated,) = compare(cluster, [Boa()], global_batch_size=ROWS * cluster.workers, steps=200)
    slow = {worker: max(factors) for worker, factors in cluster.throttle.items()}
    last = [
        scaled(model, cluster.throttle[worker][slow[worker]] if worker in slow else 1.0)
        for worker, model in enumerate(cluster.time_models)
    ]
    optimum = plan_batches(last, ROWS * cluster.workers).step_seconds
    assert optimum is not None
    allowed = 1.03 * float(cluster.links.reduced_by(range(cluster.workers)).seconds(optimum))
    assert simulated.step_seconds[-1] <= allowed


def test_boa_beats_a_backup_worker_on_the_devices_of_the_thesis() -> None:
    devices = devices_of("thesis_8gpu", times=1 / 0.392)
    equal, backup, boa = median_step_seconds(devices, [EqualSplit(), BackupWorkers(1), Boa()])
    assert equal == pytest.approx(1.0)
    assert backup / boa >= 1.23


def test_boa_beats_shares_in_proportion_where_fixed_costs_differ() -> None:
    devices = devices_of("thesis_8gpu_fixed_costs", times=1 / 0.392)
    equal, proportional, boa = median_step_seconds(devices, [EqualSplit(), Proportional(), Boa()])
    assert equal == pytest.approx(1.0)
    assert proportional / boa >= 1.05


def test_one_slow_link_makes_a_step_longer() -> None:
    cluster = simulated_of(devices_of("one_slow_link"))
    computing = max(float(model.seconds(ROWS)) for model in cluster.time_models)
    reduced = cluster.links.reduced_by(range(cluster.workers))
    assert reduced.seconds(computing) >= 1.3 * computing
