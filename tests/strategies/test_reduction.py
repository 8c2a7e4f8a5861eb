from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from lightning_boa.strategies import reduction
from tests.profiling.threaded_ranks import ThreadedRanks

ROWS = (5, 0, 2)


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> ThreadedRanks:
    return ThreadedRanks(3, monkeypatch)


def over_rows(three: ThreadedRanks, values: list[Tensor], rows: Any = ROWS) -> list[Tensor]:
    return three.run(lambda rank: reduction.mean_over_rows(values[rank], rows[rank]))


def test_each_row_counts_once(three: ThreadedRanks) -> None:
    values = [torch.tensor(1.0), torch.tensor(700.0), torch.tensor(8.0)]

    for mean in over_rows(three, values):
        assert mean.item() == 3.0
        assert mean.dtype == torch.float32
        assert mean.shape == ()
    assert three.collectives == ["all_reduce"]


def test_a_rank_without_rows_may_have_no_number(three: ThreadedRanks) -> None:
    values = [torch.tensor(1.0), torch.tensor(float("nan")), torch.tensor(8.0)]

    assert [mean.item() for mean in over_rows(three, values)] == [3.0] * 3


def test_a_rank_with_rows_is_not_hidden(three: ThreadedRanks) -> None:
    values = [torch.tensor(1.0), torch.tensor(1.0), torch.tensor(float("nan"))]

    assert all(mean.isnan() for mean in over_rows(three, values))


def test_every_shape_comes_back(three: ThreadedRanks) -> None:
    values = [torch.full((2, 3), float(rank), dtype=torch.float64) for rank in range(3)]
    values[2][1, 2] = 9.0

    for mean in over_rows(three, values):
        assert mean.dtype == torch.float64
        expected = torch.full((2, 3), 4 / 7, dtype=torch.float64)
        expected[1, 2] = 18 / 7
        torch.testing.assert_close(mean, expected, rtol=1e-15, atol=0)


def test_whole_numbers_are_not_cut(three: ThreadedRanks) -> None:
    values = [torch.tensor(1), torch.tensor(0), torch.tensor(2)]

    for mean in over_rows(three, values):
        assert mean.item() == pytest.approx(9 / 7)


def test_half_precision_is_summed_in_double(three: ThreadedRanks) -> None:
    values = [torch.tensor(1.0, dtype=torch.float16)] * 3

    for mean in over_rows(three, values, rows=(60_000, 30_000, 10_000)):
        assert (mean.item(), mean.dtype) == (1.0, torch.float16)


def test_the_value_itself_is_left_as_it_is(three: ThreadedRanks) -> None:
    values = [torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True) for _ in range(3)]
    over_rows(three, values)
    three.run(lambda rank: reduction.mean_over_ranks(values[rank]))

    assert [value.tolist() for value in values] == [[1.0, 2.0]] * 3
    assert all(value.grad is None for value in values)


def test_the_plain_mean_of_ranks(three: ThreadedRanks) -> None:
    values = [torch.tensor([1.0, rank]) for rank in range(3)]

    for mean in three.run(lambda rank: reduction.mean_over_ranks(values[rank])):
        assert mean.tolist() == [1.0, 1.0]
        assert mean.dtype == torch.float32


def test_the_mean_of_sums_over_the_mean_of_rows_is_exact(three: ThreadedRanks) -> None:
    """Lightning divides the one by the other; rows are whole numbers there (lightning issue 21859)."""
    rows = [torch.tensor(each) for each in ROWS]
    sums = [each * torch.tensor(1.0) for each in rows]
    for total, count in three.run(
        lambda rank: (
            reduction.mean_over_ranks(sums[rank]),
            reduction.mean_over_ranks(rows[rank]),
        )
    ):
        assert count.item() == 7 / 3
        assert (total / count).item() == 1.0


def test_gloo_takes_the_reductions() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        value = torch.tensor([2.0, 4.0])
        assert reduction.mean_over_rows(value, 3).tolist() == [2.0, 4.0]
        assert reduction.mean_over_ranks(value).tolist() == [2.0, 4.0]
        assert reduction.mean_over_ranks(torch.tensor(3)).item() == 3.0
    finally:
        dist.destroy_process_group()


OPERATIONS = {
    "sum": lambda both: both.sum(0),
    "prod": lambda both: both.prod(0),
    "product": lambda both: both.prod(0),
    "min": lambda both: both.amin(0),
    "max": lambda both: both.amax(0),
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.uint8])
@pytest.mark.parametrize("shape", [(), (3,)])
def test_a_neutral_value_changes_nothing(
    operation: str, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    mine = torch.full(shape, 5).to(dtype)
    theirs = reduction.neutral(torch.full(shape, 99).to(dtype), operation)

    assert (theirs.dtype, theirs.shape) == (dtype, mine.shape)
    assert torch.equal(OPERATIONS[operation](torch.stack([mine, theirs])).to(dtype), mine)


def test_the_extremes_of_numbers_may_be_infinite() -> None:
    assert reduction.neutral(torch.tensor(1.0), "min") == float("inf")
    assert reduction.neutral(torch.tensor(1.0), "max") == -float("inf")


@pytest.mark.parametrize(("operation", "neutral"), [("min", True), ("max", False)])
def test_truth_values_have_extremes_too(operation: str, neutral: bool) -> None:
    assert reduction.neutral(torch.tensor(True), operation).item() is neutral
