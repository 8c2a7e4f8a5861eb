"""Rows of ranks that hold different numbers of them, with ranks as threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import lightning_boa
from lightning_boa.errors import AgreementError
from lightning_boa.strategies import gathering
from tests.profiling.threaded_ranks import ThreadedRanks

ROWS = (3, 0, 2)


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> ThreadedRanks:
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    return ThreadedRanks(3, monkeypatch)


def rows_of(rank: int, *trailing: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Each row holds its number in the global batch."""
    first = sum(ROWS[:rank])
    numbers = torch.arange(first, first + ROWS[rank])
    return numbers.reshape(-1, *[1] * len(trailing)).expand(-1, *trailing).to(dtype)


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float16, torch.bfloat16, torch.int16, torch.bool, torch.complex64],
)
@pytest.mark.parametrize("trailing", [(), (2,), (2, 3)])
def test_rows_come_in_the_order_of_the_ranks(
    three: ThreadedRanks, dtype: torch.dtype, trailing: tuple[int, ...]
) -> None:
    everything = torch.cat([rows_of(rank, *trailing, dtype=dtype) for rank in range(3)])
    for gathered in three.run(
        lambda rank: gathering.gather_rows(rows_of(rank, *trailing, dtype=dtype))
    ):
        assert gathered.dtype == dtype
        assert torch.equal(gathered, everything)
    assert three.collectives == ["all_gather"] * 3


def test_the_layout_in_memory_does_not_matter(three: ThreadedRanks) -> None:
    for gathered in three.run(lambda rank: gathering.gather_rows(rows_of(rank, 2, 3).mT)):
        assert gathered.shape == (5, 3, 2)


def test_nests_keep_their_form(three: ThreadedRanks) -> None:
    def of_rank(rank: int) -> Any:
        return gathering.gather_rows(
            {"a": [rows_of(rank), "name"], "b": (rows_of(rank, 2)[:1], None)}
        )

    for gathered in three.run(of_rank):
        assert gathered["a"][0].tolist() == [0, 1, 2, 3, 4]
        assert gathered["a"][1] == "name"
        assert gathered["b"][0].tolist() == [[0, 0], [3, 3]]
        assert gathered["b"][1] is None


@pytest.mark.parametrize("trailing", [(), (2,), (0,)])
def test_nobody_may_have_rows(three: ThreadedRanks, trailing: tuple[int, ...]) -> None:
    for gathered in three.run(lambda rank: gathering.gather_rows(torch.zeros(0, *trailing))):
        assert gathered.shape == (0, *trailing)


def test_rows_of_nothing_are_counted(three: ThreadedRanks) -> None:
    for gathered in three.run(lambda rank: gathering.gather_rows(torch.zeros(ROWS[rank], 0))):
        assert gathered.shape == (5, 0)


@pytest.mark.parametrize(
    ("odd", "named"),
    [
        (torch.zeros(2, 4), "((4,), 'float32', False)"),
        (torch.zeros(2, 3, dtype=torch.float64), "((3,), 'float64', False)"),
        (torch.zeros(()), "no rows"),
        ([torch.zeros(2, 3), torch.zeros(2, 3)], "[((3,), 'float32', False), ((3,),"),
    ],
)
def test_ranks_that_differ_in_more_than_rows_are_told_so(
    three: ThreadedRanks, odd: Any, named: str
) -> None:
    def of_rank(rank: int) -> Any:
        return gathering.gather_rows(odd if rank == 1 else torch.zeros(2, 3))

    for error in three.run(of_rank):
        assert isinstance(error, AgreementError)
        assert named in str(error)
        assert "on rank 1" in str(error)


def test_a_number_has_no_rows(three: ThreadedRanks) -> None:
    for error in three.run(lambda rank: gathering.gather_rows(torch.tensor(1.0))):
        assert isinstance(error, AgreementError)
        assert "self.all_gather" in str(error)


def test_a_gradient_is_the_sum_over_ranks(three: ThreadedRanks) -> None:
    def of_rank(rank: int) -> Tensor:
        rows = rows_of(rank, 2).clone().requires_grad_()
        gathered = gathering.gather_rows(rows, sync_grads=True)
        ((rank + 1) * gathered.square()).sum().backward()
        assert rows.grad is not None
        return rows.grad

    for rank, gradient in enumerate(three.run(of_rank)):
        torch.testing.assert_close(gradient, 2 * rows_of(rank, 2) * (1 + 2 + 3))


def test_without_gradients_nothing_flows_back(three: ThreadedRanks) -> None:
    def of_rank(rank: int) -> bool:
        rows = rows_of(rank, 2).clone().requires_grad_()
        with torch.no_grad():
            quiet = gathering.gather_rows(rows, sync_grads=True)
        return bool(gathering.gather_rows(rows).requires_grad or quiet.requires_grad)

    assert three.run(of_rank) == [False] * 3


def test_a_rank_that_has_no_gradient_is_told_before_others_wait_for_it(
    three: ThreadedRanks,
) -> None:
    def of_rank(rank: int) -> Any:
        return gathering.gather_rows(rows_of(rank).requires_grad_(rank != 2), sync_grads=True)

    for error in three.run(of_rank):
        assert isinstance(error, AgreementError)
        assert "False)] on rank 2" in str(error)


def test_a_rank_that_only_takes_part_adds_no_rows_and_no_gradient(three: ThreadedRanks) -> None:
    def of_rank(rank: int) -> Any:
        rows = torch.full((2, 1), float(rank), requires_grad=True)
        gathered, absent = gathering.gather(rows, True, takes_part_only=rank == 1)
        loss = gathered.sum() * (float("nan") if rank == 1 else 1.0)
        loss.backward()
        return gathered.flatten().tolist(), absent, rows.grad.flatten().tolist()

    found = three.run(of_rank)
    assert [each[:2] for each in found] == [([0.0, 0.0, 2.0, 2.0], 1)] * 3
    assert [each[2] for each in found] == [[2.0, 2.0], [0.0, 0.0], [2.0, 2.0]]


def test_time_in_collectives_is_told(three: ThreadedRanks) -> None:
    def of_rank(rank: int) -> tuple[list[str], list[str]]:
        told: list[str] = []

        @contextmanager
        def communicating() -> Iterator[None]:
            told.append("in")
            yield
            told.append("out")

        rows = rows_of(rank, 2).requires_grad_()
        gathered, _ = gathering.gather(rows, True, communicating=communicating)
        forward = list(told)
        gathered.sum().backward()
        return forward, told[len(forward) :]

    for forward, backward in three.run(of_rank):
        assert forward == ["in", "out"] * 2
        assert backward == ["in", "out"]


def test_without_other_ranks_it_is_the_tensor_itself() -> None:
    rows = torch.zeros(2)
    assert lightning_boa.gather_rows(rows) is rows
    assert lightning_boa.gather_rows({"rows": rows}, sync_grads=True)["rows"] is rows


def test_inside_a_step_the_strategy_is_asked() -> None:
    class Strategy:
        def gather_rows(self, data: Any, sync_grads: bool = False) -> Any:
            return "asked", data, sync_grads

    token = gathering.in_step.set(Strategy())
    try:
        assert lightning_boa.gather_rows(3, sync_grads=True) == ("asked", 3, True)
    finally:
        gathering.in_step.reset(token)
