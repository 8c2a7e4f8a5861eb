"""The twin at the seams where Lightning handles loaders, without a trainer or a process."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from torch.utils.data import DataLoader

from lightning_boa.data import EvenSteps, SequentialOrder, ShareBatchSampler, boa_loader

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
]


class Lightning(NamedTuple):
    combined_loader: ModuleType
    data: ModuleType


@pytest.fixture(params=["pytorch_lightning", "lightning.pytorch"])
def lightning(request: pytest.FixtureRequest) -> Lightning:
    pytest.importorskip(request.param)
    fabric = "lightning.fabric" if "." in request.param else "lightning_fabric"
    return Lightning(
        importlib.import_module(f"{request.param}.utilities.combined_loader"),
        importlib.import_module(f"{fabric}.utilities.data"),
    )


def twin(rows: int = 6, batch: int = 2, **options: Any) -> Any:
    sampler = ShareBatchSampler(
        EvenSteps(SequentialOrder(rows), batch, drop_last=False),
        rank=0,
        seed=0,
        rows_of=lambda _, rows: (rows,),
        first_step=lambda: (0, 0),
    )
    loader: DataLoader[Any] = DataLoader(range(rows), 1, **options)  # type: ignore[arg-type]
    return boa_loader(loader, sampler)


def test_worker_seeding_reaches_the_workers(
    lightning: Lightning, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PL_SEED_WORKERS", "1")
    loader = twin(num_workers=1)

    lightning.data._auto_add_worker_init_fn(loader, 3)

    assert loader.worker_init_fn.keywords == {"rank": 3}
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]


def test_the_epoch_reaches_the_sampler(lightning: Lightning) -> None:
    loader = twin()

    lightning.data._set_sampler_epoch(loader, 7)

    assert loader.batch_sampler.epoch == 7


@pytest.mark.parametrize("mode", ["min_size", "max_size_cycle", "max_size", "sequential"])
def test_combined_loader_counts_and_iterates(lightning: Lightning, mode: str) -> None:
    combined = lightning.combined_loader.CombinedLoader([twin(6), twin(4)], mode)
    iter(combined)

    assert len(combined) == {"min_size": 2, "sequential": 5}.get(mode, 3)
    batches = [batch for batch, _, _ in combined]
    assert len(batches) == len(combined)


def test_combined_loader_stops_persistent_workers(lightning: Lightning) -> None:
    loader = twin(num_workers=1, persistent_workers=True)
    combined = lightning.combined_loader.CombinedLoader(loader)
    first = [batch.tolist() for batch, _, _ in combined]
    assert loader._iterator is not None

    combined.reset()

    assert loader._iterator is None
    assert [batch.tolist() for batch, _, _ in combined] == first
    combined.reset()


def test_combined_loader_keeps_and_loads_the_empty_state(lightning: Lightning) -> None:
    combined = lightning.combined_loader.CombinedLoader([twin(), twin()])

    assert combined._state_dicts() == [{}, {}]
    combined._load_state_dicts([{}, {"position": 3}])
