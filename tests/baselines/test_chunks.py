"""The loader whose rows go to whoever claims them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from lightning_boa.baselines.chunks import Chunks
from lightning_boa.baselines.rules import AsTheyArrive
from lightning_boa.baselines.server import Server
from lightning_boa.data import source_of
from lightning_boa.errors import UnsupportedError

WORKERS = 2


def chunks(
    server: Server, worker: int, is_behind: Callable[[], bool], epoch: int = 0, **loader: Any
) -> Chunks:
    rows = TensorDataset(torch.arange(loader.pop("rows", 22)))
    return Chunks(
        source_of(DataLoader(rows, batch_size=4, **loader)),
        workers=WORKERS,
        seed=7,
        epoch=lambda: epoch,
        claim=lambda epoch, number: server.claim(worker, epoch, number),
        is_behind=is_behind,
    )


def new_server() -> Server:
    return Server(AsTheyArrive(WORKERS, None), WORKERS)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_ranks_that_compute_in_turns_use_each_row_once(num_workers: int) -> None:
    server = new_server()
    loaders = [
        chunks(server, worker, lambda: False, shuffle=True, num_workers=num_workers)
        for worker in range(WORKERS)
    ]
    assert [len(loader) for loader in loaders] == [6, 6]
    used: list[int] = []
    for batches in zip(*loaders, strict=True):
        for loader, (rows,) in zip(loaders, batches, strict=True):
            if loader.rows is not None:
                assert loader.take() == len(rows)
                used += rows.tolist()
    assert sorted(used) == list(range(22))
    assert used != sorted(used)


def test_a_rank_that_is_behind_claims_nothing_but_its_first_rows() -> None:
    server = new_server()
    loader = chunks(server, 0, lambda: True)
    batches = iter(loader)
    first = next(batches)[0].tolist()
    assert loader.take() == 4
    assert [batch[0].tolist() for batch in batches] == [first] * 5
    assert loader.rows is None
    assert [server.claim(1, 0, 6) for _ in range(6)] == [1, 2, 3, 4, 5, None]


def test_rows_that_were_not_computed_stay_for_the_next_step() -> None:
    loader = chunks(new_server(), 0, lambda: False)
    batches = iter(loader)
    first, second = next(batches), next(batches)
    assert first[0].tolist() == second[0].tolist()
    assert loader.take() == 4
    assert next(batches)[0].tolist() != first[0].tolist()


def test_the_last_chunk_is_short_unless_it_is_dropped() -> None:
    for drop_last, number, wanted in ((False, 6, [4, 4, 4, 4, 2]), (True, 5, [4, 4, 4, 4])):
        loader = chunks(new_server(), 0, lambda: False, drop_last=drop_last)
        assert [loader.take() for _ in loader if loader.rows is not None] == wanted
        assert len(loader) == number


def test_an_epoch_has_rows_for_each_rank() -> None:
    with pytest.raises(UnsupportedError, match="Expected at least a batch for each of 2 ranks"):
        chunks(new_server(), 0, lambda: False, rows=3)
