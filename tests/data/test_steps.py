"""Steps that hold the next n batches of a user's batch sampler."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, count
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from lightning_boa.data import BatchListSteps, BatchSource, ShareBatchSampler, source_of
from lightning_boa.errors import LoaderError
from lightning_boa.planning import BatchPlan

batches = st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=7), max_size=12)
plans = st.lists(st.integers(0, 5), min_size=1, max_size=5).filter(any)


@given(lists=batches, shares=plans, per_step=st.integers(1, 4))
def test_ranks_get_every_row_of_the_next_batches_in_order(
    lists: list[list[int]], shares: list[int], per_step: int
) -> None:
    plan = BatchPlan(tuple(shares))
    by_rank = [
        [list(rows) for rows in _sampler(lists, plan, per_step, rank)]
        for rank in range(len(shares))
    ]
    steps = [lists[first : first + per_step] for first in range(0, len(lists), per_step)]
    assert {len(of_rank) for of_rank in by_rank} == {len(steps)}
    for step, batches_of_step in enumerate(steps):
        rows = list(chain.from_iterable(batches_of_step))
        split = plan.rows_of(len(rows))
        together = [by_rank[rank][step] if count else [] for rank, count in enumerate(split)]
        assert list(chain.from_iterable(together)) == rows


def _sampler(
    lists: Any, plan: BatchPlan, per_step: int, rank: int, **options: Any
) -> ShareBatchSampler:
    return ShareBatchSampler(
        BatchListSteps(lists, per_step, 1),
        rank=rank,
        seed=0,
        rows_of=lambda _, rows: plan.rows_of(rows),
        first_step=lambda: (0, 0),
        **options,
    )


class Lies:
    """Says it yields five batches and yields three."""

    def __len__(self) -> int:
        return 5

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[0, 1], [2, 3], [4]])


def test_an_epoch_ends_with_its_last_batch_whatever_its_length_says() -> None:
    sampler = _sampler(Lies(), BatchPlan((1, 1)), 2, 0)
    assert len(sampler) == 3
    assert list(sampler) == [[0, 1], [4]]
    assert sampler.iteration.total == 2


def test_a_sampler_without_a_length_has_none() -> None:
    steps = BatchListSteps((rows for rows in [[1]]), 2, 1)
    with pytest.raises(TypeError, match="has no length"):
        len(steps)


def test_an_epoch_in_which_a_rank_has_no_rows_leaves_steps_out() -> None:
    sampler = _sampler([[0], [1], [2, 3, 4]], BatchPlan((1, 1)), 1, 1, skip_ghosts=True)
    assert list(sampler) == [[4]]
    with pytest.raises(TypeError, match="not known"):
        len(sampler)


def test_batches_are_drawn_alike_on_all_ranks_and_anew_in_each_epoch() -> None:
    lists = BatchSampler(RandomSampler(range(40)), 4, False)
    drawn = []
    for rank_seed in (1, 2):
        torch.manual_seed(rank_seed)
        before = torch.get_rng_state()
        drawn.append(
            [BatchListSteps(lists, 2, 4).draw(7, epoch).indices.tolist() for epoch in (0, 1)]
        )  # type: ignore[union-attr]
        assert torch.equal(torch.get_rng_state(), before)
    assert drawn[0] == drawn[1]
    assert drawn[0][0] != drawn[0][1]


def test_a_batch_sampler_must_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_boa.data.steps.MOST_UNSIZED", 100)
    with pytest.raises(LoaderError, match="to end, got more than 100 batches"):
        BatchListSteps(([row] for row in count()), 2, 1).draw(0, 0)


class Told:
    def __init__(self) -> None:
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)


class Buckets(Told):
    """A batch sampler around a sampler; both want to know the epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.sampler: Told = Told()

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[0]])


def test_the_epoch_reaches_the_batch_sampler_and_the_sampler_inside() -> None:
    buckets = Buckets()
    BatchListSteps(buckets, 1, 1).draw(0, 5)
    assert buckets.epochs == buckets.sampler.epochs == [5]


def test_the_epoch_reaches_samplers_however_deep_they_are_once_each() -> None:
    outer, middle, inner, beside = Buckets(), Buckets(), Buckets(), Told()
    outer.sampler, middle.sampler = middle, beside
    middle.batch_sampler = inner  # type: ignore[attr-defined]
    inner.sampler = outer
    BatchListSteps(outer, 1, 1).draw(0, 5)
    assert [told.epochs for told in (outer, middle, inner, beside)] == [[5]] * 4


@pytest.mark.parametrize("lists", [[1, 2], [[1], []], ["ab"]], ids=["rows", "empty", "text"])
def test_what_is_no_list_of_rows_is_refused(lists: Any) -> None:
    with pytest.raises(LoaderError, match="to yield lists of rows, got"):
        BatchListSteps(lists, 1, 1).draw(0, 0)


class Sized(BatchSampler):
    def __init__(self, extra: str, batch_size: int) -> None:
        super().__init__(range(9), batch_size, False)
        self.extra = extra


@pytest.mark.parametrize(
    ("loader", "batch_size", "has_usual_size", "length"),
    [
        (DataLoader(range(9), batch_sampler=Sized("x", 4)), 4, True, 3),  # type: ignore[arg-type, var-annotated]
        (DataLoader(range(9), batch_sampler=[[1], [2]]), 1, False, 2),  # type: ignore[arg-type, var-annotated]
        (DataLoader(range(9), batch_sampler=iter([[1]])), 1, False, None),  # type: ignore[arg-type, var-annotated]
        (DataLoader(range(9), batch_size=None, sampler=[[1], [2, 3]]), 1, False, 2),  # type: ignore[arg-type, var-annotated]
    ],
)
def test_what_a_batch_sampler_says(
    loader: DataLoader[Any], batch_size: int, has_usual_size: bool, length: int | None
) -> None:
    source = source_of(loader)
    assert isinstance(source, BatchSource)
    assert (source.batch_size, source.has_usual_size) == (batch_size, has_usual_size)
    assert source.length == length
    assert source.needs_comparison


@pytest.mark.parametrize("shuffle", [False, True])
def test_items_that_are_whole_batches_are_refused_before_any_is_drawn(shuffle: bool) -> None:
    loader: DataLoader[Any] = DataLoader(range(9), batch_size=None, shuffle=shuffle)  # type: ignore[arg-type]
    with pytest.raises(LoaderError, match=r"yields lists of rows .*use_distributed_sampler=False"):
        source_of(loader)
