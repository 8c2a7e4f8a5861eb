from __future__ import annotations

from collections import UserDict, namedtuple
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_sequence

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
        ([pack_sequence([torch.zeros(4), torch.zeros(2)]), torch.zeros(2)], {2}),
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


def packed(*lengths: int) -> PackedSequence:
    return pack_sequence([torch.zeros(each, 6) for each in lengths], enforce_sorted=False)


def fields(rows: int, other: int = 6) -> dict[str, Tensor]:
    """Rows whose other dimension may be as many as were asked for."""
    return {"x": torch.zeros(rows, other, 4), "number": torch.zeros(rows)}


def detection(*objects: int) -> Any:
    """Columns of images and targets, an image of each size."""
    images = tuple(torch.zeros(3, 8 + each, 8) for each in objects)
    return images, tuple({"boxes": torch.zeros(each, 4)} for each in objects)


@pytest.mark.parametrize(
    ("asked", "batch"),
    [
        pytest.param(6, fields(5), id="as many time steps"),
        pytest.param(3, {"x": torch.zeros(2, 3, 8, 8), "y": torch.zeros(2)}, id="three channels"),
        pytest.param(
            3, [torch.zeros(2, 6), torch.zeros(2), torch.zeros(2, 1).long()], id="three fields"
        ),
        pytest.param(4, detection(1, 2, 3), id="columns"),
        pytest.param(2, detection(1), id="two columns"),
        pytest.param(4, {"text": ["a"] * 3, "boxes": [torch.zeros(7, 4)] * 3}, id="named columns"),
        pytest.param(4, [(torch.zeros(3), "a")] * 3, id="collate_fn=list"),
        pytest.param(4, [packed(3, 2, 1), torch.zeros(3)], id="packed sequences"),
    ],
)
def test_rows_that_are_missing_at_once_are_refused(asked: int, batch: Any) -> None:
    with pytest.raises(UnsupportedError, match=f"{asked} rows on rank 0 .*boa_batch_weight"):
        RowCheck()(batch, share(asked), rank=0)


def views(rows: int) -> Any:
    return [torch.zeros(rows, 3, 8, 8), torch.zeros(rows, 3, 8, 8)]


def with_extras(rows: int) -> Any:
    return {"ids": torch.zeros(rows, 9), "prior": torch.zeros(8), "names": ["a", "b", "c"]}


def graphs(rows: int) -> Any:
    return {"nodes": torch.zeros(3 * rows, 4), "labels": torch.zeros(rows)}


def rows_of_lists(rows: int) -> Any:
    return {
        "crops": [[torch.zeros(3, 5)] * (1 + row) for row in range(rows)],
        "prior": torch.ones(5),
    }


def two_lists(rows: int) -> Any:
    return detection(*range(1, rows + 1))


def of_strings(rows: int) -> Any:
    return ["text"] * rows, torch.zeros(7), torch.zeros(9)


def packed_rows(rows: int) -> Any:
    return packed(*range(1, rows + 1)), torch.zeros(rows)


KINDS = [views, with_extras, graphs, rows_of_lists, two_lists, of_strings, packed_rows, fields]


@pytest.mark.parametrize("kind", KINDS)
def test_batches_of_any_number_of_rows_are_no_false_alarm(kind: Any) -> None:
    check = RowCheck()
    for rows in (6, 6, 4, 2, 3, 5, 1, 6, 9):
        check(kind(rows), share(rows), rank=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "before",
    [
        pytest.param((6, 4), id="two sizes"),
        pytest.param((6, 6, 6, 6, 6), id="some batches"),
    ],
)
def test_rows_that_are_missing_later_are_refused(kind: Any, before: tuple[int, ...]) -> None:
    check = RowCheck()
    for rows in before:
        check(kind(rows), share(rows), rank=0)
    with pytest.raises(UnsupportedError, match="6 rows on rank 0"):
        check(kind(5), share(6), rank=0)


def test_it_says_where_the_rows_showed() -> None:
    check = RowCheck()
    for rows in (6, 4):
        check(with_extras(rows), share(rows), rank=0)
    with pytest.raises(
        UnsupportedError, match=r"got 5 as batch\['ids'\]\.shape\[0\], where the rows"
    ):
        check(with_extras(5), share(6), rank=0)


def test_what_is_equal_to_the_rows_by_chance_is_no_place_of_rows() -> None:
    """Neither a dimension that never changes nor one that did not show the rows in another batch."""
    check = RowCheck()
    for nodes, asked in ((7, 4), (9, 4), (4, 4), (6, 4), (8, 3), (5, 3)):
        check({"nodes": torch.zeros(nodes, 4), "edges": torch.zeros(2, 3 * nodes)}, share(asked), 0)


def test_time_first_may_be_as_long_as_there_are_rows() -> None:
    check = RowCheck()
    for time, rows in ((4, 4), (4, 4), (7, 4), (4, 4), (5, 2), (2, 2), (6, 4)):
        check({"x": torch.zeros(time, rows, 2), "y": torch.zeros(time, rows)}, share(rows), rank=0)


def test_a_dimension_that_never_changes_hides_no_missing_rows_once_it_is_known() -> None:
    check = RowCheck()
    for rows in (3, 2):
        check(torch.zeros(rows, 3, 8, 8), share(rows), rank=0)
    with pytest.raises(UnsupportedError, match="3 rows on rank 0"):
        check(torch.zeros(2, 3, 8, 8), share(3), rank=0)
