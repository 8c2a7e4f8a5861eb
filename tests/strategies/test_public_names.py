"""What users rely on: a change here is a change for them and belongs into the changelog."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import fields
from typing import Any

import pytest

import lightning_boa
from lightning_boa.strategies.options import BoaOptions

OPTIONS = {
    "global_batch_size": None,
    "batch_sizes": None,
    "warmup": "auto",
    "rebalance": "auto",
    "batch_weight": None,
    "granularity": 1,
    "min_batch_size": 1,
    "max_batch_size": None,
    "worker_set": "advise",
    "profile": None,
    "verbose": True,
    "record": "auto",
}
NAMES = [
    "AsynchronousStrategy",
    "BackupWorkersStrategy",
    "BatchPlan",
    "BoaCallback",
    "BoaStrategy",
    "EmulatedCluster",
    "InPasses",
    "LbBspStrategy",
    "LinearTime",
    "MeasuredAllReduce",
    "ParameterServerStrategy",
    "ProportionalStrategy",
    "RingAllReduce",
    "TableTime",
    "WorkerSet",
    "choose_workers",
    "gather_rows",
    "plan_batches",
]


@pytest.fixture(params=["for_pytorch_lightning", "for_lightning"])
def ours(request: pytest.FixtureRequest) -> Any:
    if request.param == "for_lightning":
        pytest.importorskip("lightning.pytorch")
    return importlib.import_module(f"lightning_boa.{request.param}")


def test_the_names_of_the_package() -> None:
    assert lightning_boa.__all__ == NAMES
    assert set(NAMES) <= set(dir(lightning_boa))
    for name in NAMES:
        assert getattr(lightning_boa, name).__name__ == name
    assert lightning_boa.__version__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'BoaStrategist'"):
        lightning_boa.BoaStrategist  # noqa: B018


def test_the_options_of_the_strategy(ours: Any) -> None:
    parameters = inspect.signature(ours.BoaStrategy).parameters
    *options, others = parameters.values()

    assert {option.name: option.default for option in options} == OPTIONS
    assert {option.kind for option in options} == {inspect.Parameter.KEYWORD_ONLY}
    assert others.kind is inspect.Parameter.VAR_KEYWORD


def test_every_option_is_checked_and_explained(ours: Any) -> None:
    assert {field.name: field.default for field in fields(BoaOptions)} == OPTIONS
    explained = inspect.getdoc(ours.BoaStrategy) or ""
    for name in OPTIONS:
        assert f"    {name}: " in explained


def test_the_options_of_the_emulated_cluster(ours: Any) -> None:
    assert list(inspect.signature(ours.EmulatedCluster).parameters) == [
        "seconds_per_sample",
        "overhead",
        "floor",
        "names",
        "throttle",
        "rows_at_once",
        "bandwidth",
        "latency",
        "clock",
        "sleep",
        "work_clock",
    ]


def test_both_lightnings_get_the_same_names(ours: Any) -> None:
    assert ours.__all__ == [
        "AsynchronousStrategy",
        "BackupWorkersStrategy",
        "BoaCallback",
        "BoaStrategy",
        "EmulatedCluster",
        "LbBspStrategy",
        "ParameterServerStrategy",
        "ProportionalStrategy",
    ]
    lightning = importlib.import_module(
        "lightning.pytorch" if ours.__name__.endswith("for_lightning") else "pytorch_lightning"
    )
    assert issubclass(ours.BoaStrategy, lightning.strategies.DDPStrategy)
    assert issubclass(ours.BoaCallback, lightning.Callback)
    assert issubclass(ours.EmulatedCluster, lightning.Callback)
