from __future__ import annotations

from collections import UserDict, namedtuple
from typing import Any

import pytest
import torch

from lightning_boa.data import Share
from lightning_boa.errors import UnsupportedError
from lightning_boa.strategies.batch_rows import RowCheck, leading_sizes

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
Pair = namedtuple("Pair", ["image", "label"])


@pytest.mark.parametrize(
    ("batch", "sizes"),
    [
        (torch.zeros(5, 2), {5}),
        (torch.tensor(3.0), set()),
        ([torch.zeros(4, 2), torch.zeros(4)], {4}),
        ([torch.zeros(4, 2), torch.tensor(1.0)], {4}),
        ((torch.zeros(4), {"ids": torch.zeros(9, 1), "text": ["a"]}), {4, 9}),
        (Pair(torch.zeros(3, 8), torch.zeros(3)), {3}),
        ([[torch.zeros(2)], [torch.zeros(2), [torch.zeros(6)]]], {2, 6}),
        (torch.zeros(0, 3), {0}),
        (["text", None, 3], set()),
        (object(), set()),
        ({}, set()),
    ],
)
def test_all_tensors_of_a_batch_are_looked_at(batch: Any, sizes: set[int]) -> None:
    assert set(leading_sizes(batch)) == sizes


def share(rows: int, step: int = 3) -> Share:
    return Share(step=step, rows=rows, step_rows=16, fetched=rows)


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param(torch.zeros(4, 3), id="stacked"),
        pytest.param([torch.zeros(8, 3), torch.zeros(8)], id="two views of each row"),
        pytest.param([(torch.zeros(3), torch.zeros(3))] * 4, id="collate_fn=list"),
        pytest.param(([torch.zeros(3, 5, 5)] * 4, [{"box": torch.zeros(3, 4)}] * 4), id="zip"),
        pytest.param({"x": torch.zeros(7, 4, 2), "y": torch.zeros(7, 4)}, id="time first"),
        pytest.param([torch.zeros(9, 2), torch.zeros(4)], id="graphs and their labels"),
        pytest.param("no tensor", id="no tensor"),
    ],
)
def test_batches_with_as_many_rows_as_asked_for(batch: Any) -> None:
    RowCheck()(batch, share(4), rank=1)


def test_each_row_becomes_as_many_as_before() -> None:
    check = RowCheck()
    check(torch.zeros(2, 6), share(1), rank=0)
    check(torch.zeros(8, 6), share(4), rank=0)
    with pytest.raises(UnsupportedError, match="3 rows on rank 0"):
        check(torch.zeros(9, 5), share(3), rank=0)


def test_the_number_of_fields_is_no_number_of_rows() -> None:
    batch = {"x": torch.zeros(5, 2), "y": torch.zeros(5), "z": torch.zeros(5)}
    with pytest.raises(UnsupportedError, match="3 rows on rank 0"):
        RowCheck()(batch, share(3), rank=0)


class Encoding(UserDict[str, Any]):
    """A mapping that is no dict, as tokenizers give it."""


def test_other_mappings_are_opened() -> None:
    assert set(leading_sizes(Encoding(ids=torch.zeros(4, 7), mask=torch.zeros(4, 7)))) == {4}
    assert set(leading_sizes([Encoding(ids=torch.zeros(4, 7)), torch.zeros(3)])) == {4, 3}


@pytest.mark.parametrize(
    "batch",
    [torch.zeros(3, 6), [torch.zeros(3, 6), torch.zeros(3, 1)], {"x": [torch.zeros(5, 2)]}],
)
def test_batches_with_other_rows_are_refused(batch: Any) -> None:
    check = RowCheck()
    check(torch.zeros(4, 6), share(4), rank=1)
    with pytest.raises(UnsupportedError, match=r"4 rows on rank 1 \(its share of step 3\)"):
        check(batch, share(4), rank=1)


def test_where_nobody_knows_the_rows_nothing_is_compared() -> None:
    check = RowCheck()
    for rows in (8, 6):
        check(torch.zeros(rows, 2), Share(step=0, rows=1, step_rows=2, fetched=0), rank=0)
