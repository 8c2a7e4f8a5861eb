"""Loaders that give no rows by number: counted as they come, ending together."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from lightning_boa.data import RowRequests, Share, Together, can_be_planned, stream_loader
from lightning_boa.errors import LoaderError

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Length of IterableDataset:UserWarning"),
]


class Numbers(IterableDataset[int]):
    """0 to `end`, split among the workers."""

    def __init__(self, end: int) -> None:
        self.end = end

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(first, self.end, step))


class Ranks:
    """What the other ranks would say: each step `others` rows, until step `end`."""

    def __init__(self, others: int = 0, end: int = 10**9) -> None:
        self.asked: list[int | None] = []
        self.delivered: list[Share] = []
        self.begun = 0
        self._others = others
        self._end = end

    def agree(self, rows: int | None) -> Together:
        self.asked.append(rows)
        ended = [0] * (len(self.asked) > self._end) + [1] * (rows is None)
        return Together(tuple(ended), (rows or 0) + self._others)

    def begin(self) -> None:
        self.begun += 1

    def stream(self, loader: Any, **options: Any) -> Any:
        return stream_loader(
            loader,
            agree=self.agree,
            next_step=lambda: 5,
            deliver=self.delivered.append,
            begin=self.begin,
            count_rows=lambda batch: len(batch) if isinstance(batch, Tensor) else None,
            **options,
        )


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_are_counted_where_they_are_collated(workers: int) -> None:
    ranks = Ranks(others=3)
    loader = DataLoader(Numbers(10), batch_size=4, collate_fn=list, num_workers=workers)
    stream = ranks.stream(loader)
    batches = list(stream)
    assert sorted(row for batch in batches for row in batch) == list(range(10))
    assert [share.rows for share in ranks.delivered] == [len(batch) for batch in batches]
    assert [share.step for share in ranks.delivered] == list(range(5, 5 + len(batches)))
    assert all(share.step_rows == share.rows + 3 for share in ranks.delivered)
    assert ranks.asked[-1] is None
    assert ranks.begun == 1


def test_the_first_end_of_any_rank_is_the_end_of_all() -> None:
    ranks = Ranks(end=2)
    stream = ranks.stream(DataLoader(Numbers(100), batch_size=1, collate_fn=list))
    with pytest.warns(UserWarning, match=r"ranks \[0\] ended first, after 2 batches"):
        assert list(stream) == [[0], [1]]
    assert ranks.asked == [1, 1, 1]
    assert len(ranks.delivered) == 2


@pytest.mark.parametrize(
    ("ranks", "rows"), [(Ranks(end=0), 100), (Ranks(others=3), 0)], ids=["others", "itself"]
)
def test_a_rank_without_any_batch_is_an_error_on_all(ranks: Ranks, rows: int) -> None:
    with pytest.raises(LoaderError, match=r"a batch on every rank, got none on \[\d\]"):
        list(ranks.stream(DataLoader(Numbers(rows), batch_size=1)))


def test_no_batch_on_any_rank_is_an_empty_epoch() -> None:
    assert list(Ranks().stream(DataLoader(Numbers(0), batch_size=1))) == []


def test_a_plan_decides_how_many_rows_are_fetched() -> None:
    ranks = Ranks()
    requests = RowRequests(lambda step: step - 3, lambda: 5)
    loader = DataLoader(Numbers(11), batch_size=4, collate_fn=list)
    assert can_be_planned(loader)
    assert list(ranks.stream(loader, requests=requests)) == [
        [0, 1],
        [2, 3, 4],
        [5, 6, 7, 8],
        [9, 10],
    ]
    assert [share.rows for share in ranks.delivered] == [2, 3, 4, 2]
    assert requests.handed_out >= 7


def test_a_twin_of_a_stream_is_of_the_users_class_and_keeps_its_state() -> None:
    class Resumable(DataLoader[Any]):
        def state_dict(self) -> dict[str, int]:
            return {"seen": 3}

        def load_state_dict(self, state: dict[str, int]) -> None: ...

    stream = Ranks().stream(Resumable(Numbers(4), batch_size=2))
    assert isinstance(stream, Resumable)
    assert stream.state_dict() == {"seen": 3}
    assert type(stream).__name__ == "Resumable"


class Mixed(DataLoader[Any]):
    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        for batch in super().__iter__():
            yield batch * 10


def test_what_stands_between_sees_batches_as_they_are() -> None:
    ranks = Ranks()
    loader = Mixed(Numbers(3), batch_size=2)
    assert not can_be_planned(loader)
    batches = list(ranks.stream(loader))
    assert [batch.tolist() for batch in batches] == [[0, 10], [20]]
    assert [share.rows for share in ranks.delivered] == [2, 1]


def test_any_iterable_of_batches_stays_what_it_is() -> None:
    ranks = Ranks()

    class Batches:
        name = "mine"

        def __iter__(self) -> Iterator[Tensor]:
            return iter([torch.zeros(3, 2), torch.zeros(1, 2)])

    stream = ranks.stream(Batches())
    assert [len(batch) for batch in stream] == [3, 1]
    assert stream.name == "mine"
    assert not hasattr(stream, "__len__")
    assert [share.rows for share in ranks.delivered] == [3, 1]
    assert len(ranks.stream([torch.zeros(1)] * 4)) == 4


def test_a_batch_without_visible_rows_is_refused() -> None:
    with pytest.raises(LoaderError, match=r"share one leading size.* give batch_weight a function"):
        list(Ranks().stream([{"text": "abc"}]))


def test_a_batch_without_visible_rows_counts_as_one_where_rows_are_not_needed() -> None:
    ranks = Ranks(others=1)
    batches = [{"text": "abc"}, torch.zeros(4)]
    assert list(ranks.stream(batches, needs_rows=False)) == batches
    assert [share[1:4] for share in ranks.delivered] == [(1, 2, 0), (4, 5, 4)]


def test_a_stream_can_be_copied() -> None:
    stream = Ranks().stream(DataLoader(Numbers(4), batch_size=2))
    assert type(copy.copy(stream)) is type(stream)
    assert len(copy.copy(Ranks().stream([torch.zeros(2)]))) == 1
